"""What every sink guarantees: each batch once, by the newest run only."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from tests.pipelines.sinks.conftest import ALL, FENCING, MERGING, ORDERED
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, QUERY, Died, Target, changes, dies_at, named

from lanemq.model.errors import Closed, InvalidOption, OrderError, SinkFenced, UsageError
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.ports import QUEUE, SEQUENCE, FileRows, TableRows
from lanemq.spark.versions import to_arrow_schema

every = pytest.mark.parametrize("target", ALL, indirect=True)
ordered = pytest.mark.parametrize("target", ORDERED, indirect=True)
fencing = pytest.mark.parametrize("target", FENCING, indirect=True)
merging = pytest.mark.parametrize("target", MERGING, indirect=True)

STEPS = 5
"""One more than any sink has."""


@every
def test_a_repeated_batch_adds_nothing(target: Target) -> None:
    rows = target.batch_rows(a=[1, 2], b=[3])
    sink = target.opened()
    assert sink.write(rows, named(1, 1024))
    assert not sink.write(rows, named(1, 1024))
    again = target.opened(epoch=2)
    again.write(rows, named(2, 1024))
    assert target.numbers() == [1, 2, 3]


@ordered
def test_rows_of_a_shard_keep_their_order(target: Target) -> None:
    target.opened().write(target.batch_rows(a=range(3_000), b=range(3_000, 6_000)), named(1, 0))
    for shard, first in (("a", 0), ("b", 3_000)):
        assert [row["n"] for row in target.events() if row["shard"] == shard] == list(range(first, first + 3_000))


@every
def test_an_empty_batch_is_recorded(target: Target) -> None:
    """Otherwise the batch would be repeated at every start."""
    sink = target.opened()
    assert sink.write(target.batch_rows(a=[1]), named(1, 0))
    assert sink.write(target.batch_rows(a=[]), named(1, 1))
    assert sink.write(FileRows(target.batch_rows().schema, []), named(1, 2))
    assert sink.applied(QUERY, {}) == target.known(2)
    assert not sink.write(target.batch_rows(a=[]), named(1, 2))
    assert target.numbers() == [1]


@every
def test_numbers_may_have_gaps_and_never_go_back(target: Target) -> None:
    sink = target.opened()
    assert sink.applied(QUERY, {}) is None
    for number in (0, 1024, 1029, 9 * 1024):
        assert sink.write(target.batch_rows(a=[number]), named(1, number))
        assert sink.applied(QUERY, {}) == target.known(number)
    assert not sink.write(target.batch_rows(a=[-1]), named(1, 1024))
    assert target.numbers() == [0, 1024, 1029, 9 * 1024]


@fencing
def test_a_reopened_sink_knows_the_last_batch(target: Target) -> None:
    first = target.opened()
    first.write(target.batch_rows(a=[1]), named(1, 5))
    first.close()
    assert target.opened(epoch=1).applied(QUERY, {}) == 5
    assert target.opened(epoch=2).applied(QUERY, {}) == 5


@pytest.mark.parametrize("step", range(STEPS))
@every
def test_a_batch_interrupted_at_any_step_is_applied_once_by_its_repetition(target: Target, step: int) -> None:
    rows = target.batch_rows(a=[1, 2], b=[3])
    target.opened().write(target.batch_rows(a=[0]), named(1, 0))
    dying = target.opened()
    dies_at(dying, step)
    if _finishes(dying, rows):
        assert step > 0, "a sink without a step to die at"
        return
    assert step < STEPS - 1, "a sink with more steps than are tried"
    dying.close()
    assert target.numbers() in ([0], [0, 1, 2, 3]), "completely or not at all"
    after = target.opened(epoch=2)
    after.write(rows, named(2, 1024))
    after.write(target.batch_rows(a=[4]), named(2, 2048))
    assert target.numbers() == [0, 1, 2, 3, 4]


def _finishes(sink: Any, rows: FileRows) -> bool:
    try:
        sink.write(rows, named(1, 1024))
    except Died:
        return False
    return True


@fencing
def test_a_replaced_run_is_refused_before_its_successor_has_written(target: Target) -> None:
    old = target.opened(epoch=1)
    target.opened(epoch=2)
    with pytest.raises(SinkFenced, match=r"run 1 .* replaced by run 2"):
        old.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.numbers() == []


def copies(tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint that was copied while it was stopped; both copies are started."""
    Checkpoint(tmp_path / "one", "orders").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    return Checkpoint(tmp_path / "one", "orders"), Checkpoint(tmp_path / "two", "orders")


@fencing
def test_of_two_copies_of_a_checkpoint_only_the_first_gets_the_sink(target: Target, tmp_path: Path) -> None:
    """Both have the same query and numbers but other messages: each would take the other's batches for its own."""
    first, second = copies(tmp_path)
    assert first.query == second.query
    sink = target.opened(first.epoch, first.query, runs=first.runs)
    for _ in range(3):  # also with later epochs
        with pytest.raises(SinkFenced, match=r"belongs to run 2 of another copy of pipeline .* checkpoint"):
            target.opened(second.epoch, second.query, runs=second.runs)
        second.close()
        second = Checkpoint(tmp_path / "two", "orders")
    assert sink.write(target.batch_rows(a=[1]), named(first.epoch, 0, first.query))
    first.close()
    again = Checkpoint(tmp_path / "one", "orders")
    assert target.opened(again.epoch, again.query, runs=again.runs).applied(again.query, {}) == 0
    again.close()
    second.close()
    assert target.numbers() == [1]


@fencing
def test_a_replaced_run_is_refused_even_a_batch_that_the_sink_has(target: Target) -> None:
    """The replaced run must notice that it has to stop."""
    old = target.opened(epoch=1)
    old.write(target.batch_rows(a=[1]), named(1, 0))
    target.opened(epoch=2)
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1]), named(1, 0))


@every
def test_a_replaced_run_is_refused_after_its_successor_has_written(target: Target) -> None:
    old = target.opened(epoch=1)
    old.write(target.batch_rows(a=[1]), named(1, 0))
    new = target.opened(epoch=2)
    new.write(target.batch_rows(a=[2]), named(2, 1))
    new.write(target.batch_rows(a=[3]), named(2, 2))
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[2]), named(1, 1))
    assert target.numbers() == [1, 2, 3]


@pytest.mark.parametrize("target", ["delta", "iceberg", "parquet"], indirect=True)
def test_a_run_replaced_during_its_write_is_refused(target: Target) -> None:
    """It checked the ledger before its successor came, so only its commit can detect it. (Databases hold a lock.)"""
    old = target.opened(epoch=1)
    successors: list[Any] = []
    old.reached = lambda step: successors or successors.append(target.opened(epoch=2))
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    assert successors[0].applied(QUERY, {}) is None
    assert successors[0].write(target.batch_rows(a=[1], b=[2]), named(2, 0))
    assert target.numbers() == [1, 2]


@fencing
def test_a_run_that_opens_late_is_refused(target: Target) -> None:
    target.opened(epoch=7)
    with pytest.raises(SinkFenced, match="replaced by run 7"):
        target.opened(epoch=6)


@fencing
def test_a_run_refused_for_its_columns_does_not_fence_the_running_one(target: Target) -> None:
    """A new version with a mistake must not end the running one."""
    working = target.opened(epoch=1)
    with pytest.raises(InvalidOption, match="column n "):
        target.opened(epoch=2, schema=StructType([StructField("n", BinaryType())]))
    assert working.write(target.batch_rows(a=[1]), named(1, 0))


@fencing
def test_a_run_that_opens_late_adds_no_columns(target: Target) -> None:
    target.opened(epoch=7)
    with pytest.raises(SinkFenced):
        target.opened(epoch=6, schema=StructType([*EVENTS, StructField("late", BinaryType())]))
    target.opened(epoch=8, schema=StructType([*EVENTS, StructField("late", LongType())]))


@every
def test_two_pipelines_share_a_table(target: Target) -> None:
    one, other = target.opened(epoch=1, query="one"), target.opened(epoch=9, query="other")
    assert one.write(target.batch_rows(a=[1]), named(1, 5, "one"))
    assert other.write(target.batch_rows(a=[2]), named(9, 5, "other"))
    assert one.write(target.batch_rows(a=[3]), named(1, 6, "one"))
    assert (one.applied("one", {}), other.applied("other", {})) == (target.known(6), target.known(5))
    assert target.numbers() == [1, 2, 3]


@every
def test_a_sink_takes_batches_of_its_own_run_only(target: Target) -> None:
    sink = target.opened(epoch=3)
    for batch in (named(2, 0), named(4, 0), named(3, 0, "another")):
        with pytest.raises(UsageError, match="does not belong"):
            sink.write(target.batch_rows(a=[1]), batch)
    sink.close()
    with pytest.raises(Closed):
        sink.write(target.batch_rows(a=[1]), named(3, 0))


@merging
def test_a_merge_keeps_the_newest_row_of_a_key(target: Target) -> None:
    sink = target.merging()
    sink.write(changes((1, "first", 10, False), (2, "other", 10, False)), named(1, 0))
    sink.write(changes((1, "newer", 11, False), (2, "older", 9, False), (3, "new", 1, False)), named(1, 1))
    sink.write(changes((1, "same sequence", 11, False)), named(1, 2))
    assert target.changed() == {1: "newer", 2: "other", 3: "new"}
    assert sink.applied(QUERY, {}) == 2


PLACED = StructType([*CHANGES.fields, StructField(QUEUE, StringType())])


def placed(*rows: tuple[int, str, int, str]) -> TableRows:
    """Rows to merge: (id, text, offset, queue)."""
    columns = [
        {"id": key, "text": text, "_sequence": at, "_deleted": False, QUEUE: queue} for key, text, at, queue in rows
    ]
    return TableRows(PLACED, pa.Table.from_pylist(columns, to_arrow_schema(PLACED)))


@merging
@pytest.mark.parametrize("offset", [3, 30], ids=["lower", "higher"])
def test_a_row_that_another_queue_has_changed_is_refused(target: Target, offset: int) -> None:
    """Offsets of two queues cannot be compared: the change would be lost, or replace a newer one."""
    sink = target.opened(1, schema=PLACED, how=KEYED)
    sink.write(placed((1, "first", 10, "t/b/0"), (2, "first", 10, "t/b/1")), named(1, 0))
    sink.write(placed((1, "second", 11, "t/b/0"), (2, "late", 9, "t/b/1")), named(1, 1))
    assert (target.changed(), sink.last_stale) == ({1: "second", 2: "first"}, 1)
    told = (
        f"the row id=1 was changed in queue t/b/0 and in queue t/b/1, and nothing says .* is offset {offset}\\. .*"
        f"topic = 't' AND broker = 'b' AND queue_id = 1 AND queue_offset = {offset}\\)"
    )
    with pytest.raises(OrderError, match=told):
        sink.write(
            placed((1, "other", offset, "t/b/1"), (2, "newer", 12, "t/b/1"), (3, "new", 1, "t/b/1")), named(1, 2)
        )
    again = target.opened(2, schema=PLACED, how=KEYED)
    assert (target.changed(), again.applied(QUERY, {})) == ({1: "second", 2: "first"}, 1)


SOURCED = StructType(
    [
        StructField("id", LongType(), False),
        StructField("text", StringType()),
        StructField("amount", DoubleType()),
        StructField("tags", ArrayType(StringType())),
        StructField(SEQUENCE, StringType(), False),
        StructField("_deleted", BooleanType(), False),
        StructField(QUEUE, StringType()),
    ]
)


def sourced(*rows: tuple[int, str, int, int, int], **more: Any) -> TableRows:
    """Rows to merge: (id, text, position of the source, queue, offset)."""
    columns = [
        {
            "id": key,
            "text": text,
            "amount": float("nan"),
            "tags": [text, None],
            SEQUENCE: f"{position:019} {offset:019}",
            "_deleted": False,
            QUEUE: f"t/b/{queue}",
        }
        for key, text, position, queue, offset in rows
    ]
    return TableRows(SOURCED, pa.Table.from_pylist(columns, to_arrow_schema(SOURCED)), **more)


@merging
@pytest.mark.parametrize("offset", [3, 30], ids=["lower", "higher"])
def test_another_change_with_the_same_source_position_in_another_queue_is_refused(target: Target, offset: int) -> None:
    """Nothing says which is newer: by offsets the change would be lost, or replace a newer one."""
    sink = target.opened(1, schema=SOURCED, how=KEYED)
    sink.write(sourced((1, "first", 7, 0, 10), (2, "newer", 9, 1, 4)), named(1, 0))
    sink.write(sourced((1, "second", 7, 0, 11), (2, "older", 8, 0, 12)), named(1, 1))
    assert target.changed() == {1: "second", 2: "newer"}
    told = (
        f"the row id=1 was changed in queue t/b/0 and in queue t/b/1 with the same sequence, .* is offset "
        f"{offset}\\. .*topic = 't' AND broker = 'b' AND queue_id = 1 AND queue_offset = {offset}\\)"
    )
    with pytest.raises(OrderError, match=told):
        sink.write(sourced((1, "other", 7, 1, offset), (2, "newest", 10, 0, 13), (3, "new", 7, 1, 2)), named(1, 2))
    again = target.opened(2, schema=SOURCED, how=KEYED)
    assert (target.changed(), again.applied(QUERY, {})) == ({1: "second", 2: "newer"}, 1)
    assert again.write(sourced((1, "third", 8, 1, 5)), named(2, 2)), "a newer position decides between queues"
    assert target.changed()[1] == "third"


@merging
@pytest.mark.parametrize("offset", [3, 30], ids=["lower", "higher"])
def test_a_repeat_in_another_queue_is_accepted_and_remembered(target: Target, offset: int) -> None:
    """A connector repeats changes after a restart. A third change of this position is then one of several queues."""
    sink = target.opened(1, schema=SOURCED, how=KEYED)
    sink.write(sourced((1, "same", 7, 0, 10), (2, "x", 3, 1, 1)), named(1, 0))
    for number in (1, 2):
        assert sink.write(sourced((1, "same", 7, 1, offset), (2, "y", 3 + number, 1, 1 + number)), named(1, number))
    assert target.changed() == {1: "same", 2: "y"}
    for queue in (0, 1):
        with pytest.raises(OrderError, match=rf"id=1 .* in queue t/b/1 and others and in queue t/b/{queue} with"):
            sink.write(sourced((1, "other", 7, queue, 40)), named(1, 3))
    assert sink.write(sourced((1, "next", 8, 0, 41)), named(1, 4))
    assert sink.write(sourced((1, "last", 8, 0, 42)), named(1, 5)), "the row is in one queue again"
    assert target.changed() == {1: "last", 2: "y"}


@merging
def test_a_truncation_with_the_source_position_of_a_row_of_another_queue_is_refused(target: Target) -> None:
    sink = target.opened(1, schema=SOURCED, how=KEYED)
    sink.write(sourced((1, "old", 3, 0, 10), (2, "same", 7, 0, 50)), named(1, 0))
    for rows in ((), ((5, "new", 8, 1, 5),)):
        with pytest.raises(OrderError, match="truncated in queue t/b/1, a row was changed in queue t/b/0, and"):
            sink.write(sourced(*rows, emptied_below=f"{7:019} {4:019} t/b/1"), named(1, 1))
    assert sink.write(sourced((1, "again", 9, 1, 5), emptied_below=f"{7:019} {51:019} t/b/0"), named(1, 1))
    assert target.changed() == {1: "again"}


@merging
def test_a_table_with_another_kind_of_sequence_is_refused(target: Target) -> None:
    by_source = [StructField(SEQUENCE, StringType()) if each.name == SEQUENCE else each for each in CHANGES]
    target.merging().close()
    with pytest.raises(InvalidOption, match=r"ordered by queue offsets, and this pipeline .* the source's sequence"):
        target.opened(2, schema=StructType(by_source), how=KEYED)


@merging
def test_rows_left_out_of_a_merge_are_counted_and_logged(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """If the sequence began again, every change is left out; a table that no longer changes must be noticed."""
    sink = target.merging()
    sink.write(changes((1, "first", 10, False), (2, "first", 10, False)), named(1, 0))
    assert (sink.last_stale, caplog.messages) == (0, [])
    sink.write(changes((1, "newer", 11, False), (2, "older", 9, False), (3, "new", 1, False)), named(1, 1))
    assert sink.last_stale == 1
    assert "1 of 3 rows were left out because they are older than the table's" in caplog.messages[-1]
    assert "sequence=" in caplog.messages[-1]
    sink.write(changes((1, "begun again", 0, False), (2, None, 10, True)), named(1, 2))
    assert sink.last_stale == 2, "none of them is newer: Delta commits nothing, but they are counted"
    assert sink.write(changes((1, "newest", 12, False)), named(1, 3))
    assert sink.last_stale == 0


@merging
def test_a_repeated_merge_counts_no_stale_rows(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows are in the table, so they were not left out."""
    rows = changes((1, "one", 5, False), (2, "two", 5, False))
    sink = target.merging()
    sink.write(rows, named(1, 0))
    sink.write(changes((1, "late", 4, False)), named(1, 1))
    caplog.clear()
    assert not sink.write(rows, named(1, 0))
    assert sink.last_stale == 0
    again = target.merging(epoch=2)
    assert not again.write(rows, named(2, 0))
    assert (again.last_stale, caplog.messages) == (0, [])


@merging
def test_a_deletion_wins_over_an_older_change_that_arrives_later(target: Target) -> None:
    sink = target.merging()
    sink.write(changes((1, "there", 10, False)), named(1, 0))
    sink.write(changes((1, None, 12, True), (2, None, 5, True)), named(1, 1))
    sink.write(changes((1, "late", 11, False), (2, "late", 4, False)), named(1, 2))
    assert target.changed() == {}
    sink.write(changes((1, "again", 13, False)), named(1, 3))
    assert target.changed() == {1: "again"}


@merging
def test_a_deletion_that_is_older_than_the_row_deletes_nothing(target: Target) -> None:
    sink = target.merging()
    sink.write(changes((1, "there", 10, False)), named(1, 0))
    sink.write(changes((1, None, 9, True)), named(1, 1))
    assert target.changed() == {1: "there"}


@merging
def test_a_repeated_merge_changes_nothing(target: Target) -> None:
    first = target.merging()
    first.write(changes((1, "one", 1, False)), named(1, 0))
    first.write(changes((1, "two", 2, False)), named(1, 1))
    second = target.merging(epoch=2)
    assert not second.write(changes((1, "one", 1, False)), named(2, 0))
    assert second.write(changes(), named(2, 2))
    assert second.applied(QUERY, {}) == 2
    with pytest.raises(SinkFenced):
        first.write(changes((1, "three", 3, False)), named(1, 3))
    assert target.changed() == {1: "two"}


@pytest.mark.parametrize("step", range(STEPS))
@merging
def test_a_merge_interrupted_at_any_step_is_completed_by_its_repetition(target: Target, step: int) -> None:
    target.merging().write(changes((1, "old", 1, False), (2, "old", 1, False)), named(1, 0))
    rows = changes((1, "new", 2, False), (2, None, 2, True), (3, "new", 2, False))
    dying = target.merging()
    dies_at(dying, step)
    try:
        dying.write(rows, named(1, 1))
    except Died:
        dying.close()
        assert target.changed() in ({1: "old", 2: "old"}, {1: "new", 3: "new"})
        target.merging(epoch=2).write(rows, named(2, 1))
    assert target.changed() == {1: "new", 3: "new"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changes((1, "a", 1, False), (1, "b", 2, False)), "twice"),
        (changes((1, "a", None, False)), "no _sequence"),  # type: ignore[arg-type]
        (changes((1, "a", 1, None)), "no _deleted"),  # type: ignore[arg-type]
    ],
)
@merging
def test_ambiguous_rows_are_refused_before_anything_is_written(target: Target, rows: Any, said: str) -> None:
    sink = target.merging()
    with pytest.raises(UsageError, match=said):
        sink.write(rows, named(1, 0))
    assert sink.applied(QUERY, {}) is None
    assert target.changed() == {}


@merging
def test_old_deletions_can_be_purged(target: Target) -> None:
    sink = target.merging()
    sink.write(changes((1, None, 5, True), (2, None, 6, True), (3, "there", 1, False)), named(1, 0))
    assert sink.purge_tombstones(6) == 1
    sink.write(changes((1, "back", 4, False), (2, "late", 4, False)), named(1, 1))
    assert target.changed() == {1: "back", 3: "there"}
