"""Executors fold a large batch in shares of its keys; the rows are those that the driver would choose."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.pipelines.stages.cdc.replica_fixture import SCHEMA, Replica, messages
from tests.pipelines.stages.cdc.test_formats import debezium

from lanemq.model.errors import OrderError, UsageError
from lanemq.pipelines import LastState
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import FileRows, Results, TableRows
from lanemq.pipelines.sinks.exact_sink import arrow_schema, merge_table
from lanemq.pipelines.stages.cdc import last_state, shares

Put = tuple[int, int, str | None]
"""Key, position of the source, and name; None for a deletion."""


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch counts as large, and every queue with 4 rows is written in shares."""
    monkeypatch.setattr(last_state, "FOLDED_BY_TASKS_FROM", 1)
    monkeypatch.setattr(shares, "DIVIDED_FROM", 4)
    monkeypatch.setattr(shares, "SHARES", 3)


def queue(number: int, *changes: Put) -> pa.Table:
    events = [
        (None, debezium("d", {"id": key}, None, lsn=at) if name is None
         else debezium("u", None, {"id": key, "name": name, "amount": None}, lsn=at))
        for key, at, name in changes
    ]  # fmt: skip
    return messages(events, queue=number)


QUEUES = (
    ((1, 5, "a"), (2, 6, "b"), (3, 7, None), (4, 1, "d"), (5, 9, "e"), (6, 10, "f")),
    ((1, 11, "newer"), (2, 2, "older"), (3, 3, "older"), (7, 12, "g"), (8, 13, None)),
    ((7, 20, None), (9, 21, "i")),
)


def replica(folder: Path) -> Replica:
    return Replica(LastState(SCHEMA, ["id"], format="debezium", sequence=("source.lsn",)), folder)


def processed(folder: Path, *queues: pa.Table) -> tuple[Replica, Results]:
    made = replica(folder)
    return made, made.process(*queues)


def in_order(results: Results) -> list[dict[str, Any]]:
    return list(results.outputs.table().sort_by("id").to_pylist())


def test_the_rows_of_the_shares_are_those_that_the_driver_chooses(tmp_path: Path, request: Any) -> None:
    batch = [queue(number, *changes) for number, changes in enumerate(QUEUES)]
    _, driver = processed(tmp_path / "driver", *batch)
    request.getfixturevalue("large")
    made, tasks = processed(tmp_path / "tasks", *batch)
    assert isinstance(driver.outputs, TableRows)
    assert isinstance(tasks.outputs, FileRows)
    assert in_order(tasks) == in_order(driver)
    assert (tasks.counts, tasks.state) == (driver.counts, driver.state)
    assert made.live.keys() == {1, 2, 4, 5, 6, 9}
    assert len({file.shard for file in tasks.outputs.files}) == len(tasks.outputs.files) > 1


def test_a_key_is_in_one_share_whatever_its_type_and_queue() -> None:
    rows = pa.table({
        "n": pa.array([1, 1, 2], pa.int64()), "text": ["é", "é", ""], "day": pa.array([9, 9, 8], pa.date32()),
        "raw": [b"\0", b"\0", b""], "price": pa.array([1, 1, 2]).cast(pa.decimal128(21, 2)),
        "ok": [True, True, False], "at": pa.array([0, 0, 1], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    for keys in (rows.column_names, *([name] for name in rows.column_names)):
        first, same, _ = shares.shares_of(rows, keys).to_pylist()
        assert first == same == shares.shares_of(rows.slice(1), keys)[0].as_py()
    spread = shares.shares_of(pa.table({"n": range(10_000)}), ["n"]).value_counts().field("counts")
    assert max(spread.to_pylist()) < 2 * min(spread.to_pylist())


def test_without_one_share_for_a_key_it_would_be_there_twice(
    tmp_path: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LastState(SCHEMA, ["id"], format="debezium", sequence=("source.lsn",))

    def checked(folder: Path) -> pa.Table:
        _, results = processed(folder, *(queue(number, *changes) for number, changes in enumerate(QUEUES)))
        return merge_table(results.outputs, arrow_schema(stage.schema, ("id",), loose=True), ("id",))

    assert checked(tmp_path / "right").num_rows == 9
    monkeypatch.setattr(
        shares, "shares_of", lambda rows, keys: pa.array([rows.num_rows % 3] * rows.num_rows, pa.int32())
    )
    with pytest.raises(UsageError, match="twice"):
        checked(tmp_path / "wrong")


def test_queues_that_disagree_are_refused_as_on_the_driver(tmp_path: Path, large: None) -> None:
    both = [queue(0, (1, 5, "one"), (2, 6, "x")), queue(1, (1, 5, "other"))]
    with pytest.raises(OrderError, match=r"the row id=1 was changed in queue t/b/0 and in queue t/b/1"):
        processed(tmp_path, *both)


def test_a_truncation_drops_older_rows_in_every_share(tmp_path: Path, large: None) -> None:
    emptied = messages([(None, debezium("t", None, None, lsn=8))], queue=2)
    made, results = processed(tmp_path, queue(0, *QUEUES[0]), queue(1, *QUEUES[1]), emptied)
    assert sorted(made.live) == [1, 5, 6, 7]
    assert results.outputs.emptied_below is not None
    late = made.process(messages([(None, debezium("u", None, {"id": 30, "name": "late"}, lsn=7))], queue=3))
    assert late.outputs.count() == 0, "older than the truncation of the batch before"


def test_the_files_stay_until_the_sinks_have_the_batch(tmp_path: Path, large: None) -> None:
    made, first = processed(tmp_path, queue(0, *QUEUES[0]))
    again = made.repeat(queue(0, *QUEUES[0]))
    assert isinstance(again.outputs, FileRows)
    assert sorted(path.name for path in (tmp_path / "work").rglob("*.parquet")) == sorted(
        file.path.name for file in again.outputs.files
    ), "those of the first attempt are gone"
    made._stage.finished(Batch("q", 1, 1))
    assert list((tmp_path / "work").rglob("*.*")) == []
    assert first.outputs.count() == again.outputs.count() == 6
