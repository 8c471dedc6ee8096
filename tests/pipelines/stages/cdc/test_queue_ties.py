"""Changes of a row in several queues: the outcome does not depend on how messages are cut into batches."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.sinks.targets import KEYED, SqliteTarget, named
from tests.pipelines.stages.cdc.replica_fixture import Frame, messages

from lanemq.model.errors import OrderError
from lanemq.pipelines import LastState
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import QUEUE, Rows
from lanemq.pipelines.sinks.arrow_merge import ArrowMerge
from lanemq.spark.versions import to_arrow_schema

SCHEMA = "id bigint, text string, n bigint"
QUEUES = 3


class Change(NamedTuple):
    key: int
    position: int
    text: str


Apply = Callable[[Rows, int], None]
Store = Callable[[Path, LastState], tuple[Apply, Callable[[], dict[int, str]]]]


def sqlite(folder: Path, stage: LastState) -> tuple[Apply, Callable[[], dict[int, str]]]:
    target = SqliteTarget(folder)
    sink = target.opened(schema=stage.schema, how=KEYED)

    def read() -> dict[int, str]:
        sink.close()
        return target.changed()

    return lambda rows, number: bool(sink.write(rows, named(1, number))) or None, read


def arrow(folder: Path, stage: LastState, shown: str = "text") -> tuple[Apply, Callable[[], dict[int, Any]]]:
    """The merge of Iceberg, over a table of one file."""
    held = [to_arrow_schema(stage.schema).empty_table()]

    def apply(rows: Rows, _: int) -> None:
        merge = ArrowMerge(rows.table(), ("id",), rows.emptied_below)
        plan = merge.plan(held[0].select(merge.index_columns))
        kept = held[0] if plan is None else merge.rewritten(held[0], plan)
        held[0] = pa.concat_tables([kept, merge.inserted()])

    return apply, lambda: {row["id"]: row[shown] for row in held[0].to_pylist()}


def outcome(store: Store, queues: Sequence[Sequence[Change]], cuts: Sequence[Sequence[int]]) -> dict[int, str] | None:
    """What the table has after these batches; None if one was refused. A batch has so many messages of each queue."""
    with tempfile.TemporaryDirectory() as name:
        stage = LastState(SCHEMA, ["id"], sequence=["n"])
        stage.open(None, Path(name) / "stage")  # type: ignore[arg-type]
        apply, read = store(Path(name), stage)
        read_so_far = [0] * QUEUES
        everything = [[len(queue) for queue in queues]]
        for number, counts in enumerate([*cuts, *everything]):
            parts = []
            for queue, count in enumerate(counts):
                first = read_so_far[queue]
                some = queues[queue][first : first + count]
                read_so_far[queue] += len(some)
                pairs = [(str(each.key), {"id": each.key, "text": each.text, "n": each.position}) for each in some]
                if pairs:
                    parts.append(messages(pairs, queue=queue, first=10 * queue + first))
            if not parts:
                continue
            frame: Any = Frame(*parts)
            try:
                results = stage.process(frame, Batch("q", number, 1))
                apply(results.outputs, number)
            except OrderError as error:
                if "with the same sequence, and nothing says which change is newer" not in str(error):
                    raise
                return None
        return read()


def expected(queues: Sequence[Sequence[Change]]) -> tuple[dict[int, str], bool]:
    """The rows, and whether the newest position of one of them has two values, so that every run must be refused."""
    rows, undecided = {}, False
    for key in {change.key for queue in queues for change in queue}:
        newest = max(change.position for queue in queues for change in queue if change.key == key)
        at_end = [[each.text for each in queue if (each.key, each.position) == (key, newest)] for queue in queues]
        last = {texts[-1] for texts in at_end if texts}
        rows[key] = max(last)
        undecided |= len(last) > 1
    return rows, undecided


def superseded_tie(queues: Sequence[Sequence[Change]]) -> bool:
    """Whether two queues have different changes of a row at one position, so that a run may be refused."""
    found: dict[tuple[int, int], list[set[str]]] = {}
    for queue in queues:
        mine: dict[tuple[int, int], set[str]] = {}
        for each in queue:
            mine.setdefault((each.key, each.position), set()).add(each.text)
        for place, texts in mine.items():
            found.setdefault(place, []).append(texts)
    return any(len(each) > 1 and len(set.union(*each)) > 1 for each in found.values())


change = st.builds(Change, st.integers(1, 2), st.integers(1, 3), st.sampled_from("ab"))
histories = st.lists(st.lists(change, max_size=4), min_size=QUEUES, max_size=QUEUES)
batches = st.lists(st.lists(st.integers(0, 2), min_size=QUEUES, max_size=QUEUES), max_size=5)


@pytest.mark.parametrize("store", [sqlite, arrow])
@settings(max_examples=60, deadline=None)
@given(queues=histories, cuts=batches)
def test_any_cut_into_batches_gives_the_same_row_or_is_refused(
    store: Store, queues: list[list[Change]], cuts: list[list[int]]
) -> None:
    found = outcome(store, queues, cuts)
    rows, undecided = expected(queues)
    if undecided:
        assert found is None, "the newest change is one of two: one would be lost"
    elif found is None:
        assert superseded_tie(queues), "nothing ties"
    else:
        assert found == rows


def test_a_repeat_in_another_queue_of_the_same_batch_is_remembered(tmp_path: Path) -> None:
    same = Change(1, 5, "a")
    stage = LastState(SCHEMA, ["id"], sequence=["n"])
    stage.open(None, tmp_path)  # type: ignore[arg-type]
    pair = [("1", {"id": same.key, "text": same.text, "n": same.position})]
    frame: Any = Frame(messages(pair), messages(pair, queue=1))
    assert stage.process(frame, Batch("q", 0, 1)).outputs.table()[QUEUE].to_pylist() == ["t/b/1 and others"]
    assert outcome(sqlite, [[same], [same], [Change(1, 5, "b")]], [[1, 1, 0]]) is None
    assert outcome(sqlite, [[same, Change(1, 5, "b")], [same], []], [[1, 1, 0]]) is None


@pytest.mark.parametrize("order", ["tc", "ct"])
@pytest.mark.parametrize("together", [True, False])
def test_a_truncation_and_a_change_with_one_position_are_refused(tmp_path: Path, order: str, together: bool) -> None:
    """In one batch and in two, whichever comes first. The same in one queue is decided by the offsets."""
    for change_queue in (0, 1):
        folder = tmp_path / f"{change_queue}"
        folder.mkdir()
        stage = LastState(SCHEMA, ["id"], sequence=["source.lsn"], format="debezium")
        stage.open(None, folder)  # type: ignore[arg-type]
        sink = SqliteTarget(folder).opened(schema=stage.schema, how=KEYED)
        row = {"id": 1, "text": "x", "n": 1}
        made = {
            "t": messages([(None, {"op": "t", "source": {"lsn": 7}})], first=order.index("t")),
            "c": messages(
                [('{"id": 1}', {"op": "c", "after": row, "source": {"lsn": 7}})],
                queue=change_queue,
                first=order.index("c"),
            ),
        }
        batches = [[made[name] for name in order]] if together else [[made[name]] for name in order]

        def run(batches: list[list[pa.Table]] = batches, stage: LastState = stage, sink: Any = sink) -> None:
            for number, parts in enumerate(batches):
                frame: Any = Frame(*parts)
                results = stage.process(frame, Batch("q", number, 1))
                if results.state:
                    stage.continue_from(results.state)
                sink.write(results.outputs, named(1, number))

        if change_queue:
            with pytest.raises(OrderError, match=r"truncated in queue t/b/0, a row was changed in queue t/b/1"):
                run()
        else:
            run()
        sink.close()


@pytest.mark.parametrize("text", ['"arr": ["NaN"]', '"st": {"a": "NaN"}', '"mp": {"x": "NaN"}', '"f": "NaN"'])
@pytest.mark.parametrize("together", [True, False])
def test_a_repeat_with_nan_in_another_queue_is_accepted(tmp_path: Path, text: str, together: bool) -> None:
    """NaN differs from itself, also inside a list; the message is a repeat all the same."""
    schema = "id bigint, n bigint, f double, arr array<double>, st struct<a: double>, mp map<string, double>"
    stage = LastState(schema, ["id"], sequence=["n"])
    stage.open(None, tmp_path / "stage")  # type: ignore[arg-type]
    apply, read = arrow(tmp_path, stage, "n")
    body = f'{{"id": 1, "n": 5, {text}}}'.encode()
    both = [messages([("1", body)], queue=queue) for queue in (0, 1)]
    for number, parts in enumerate([both] if together else [[each] for each in both]):
        frame: Any = Frame(*parts)
        apply(stage.process(frame, Batch("q", number, 1)).outputs, number)
    assert read() == {1: 5}
