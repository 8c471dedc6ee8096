"""Compactions of a Delta table that several programs write: no row is lost or doubled, whoever commits in between."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import RemoveAction
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, DeltaTarget, changes, named

from lanemq.pipelines import DeltaSink, read_table
from lanemq.pipelines.ports import Append, SinkRun, TableRows
from lanemq.pipelines.sinks import delta_compaction
from lanemq.pipelines.sinks.exact_sink import arrow_schema

EVERY = 3


class Writer:
    """A pipeline that writes one row with each batch, and compacts the table every three batches."""

    def __init__(self, target: DeltaTarget, query: str, first: int, epoch: int = 1) -> None:
        self.target, self.query, self.first, self.epoch = target, query, first, epoch
        self.sink = DeltaSink(target.folder / "table", maintain_every=EVERY)
        self.sink.open(SinkRun(None, query, epoch, EVENTS, Append()))  # type: ignore[arg-type]
        self.number = 0

    def write(self, batches: int = 1) -> None:
        for _ in range(batches):
            rows = self.target.batch_rows(**{self.query: [self.first + self.number]})
            self.sink.write(rows, named(self.epoch, self.number, self.query))
            self.number += 1


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(tmp_path)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes something happen once, when a compaction has read its files and before it commits."""

    def arrange(act: Callable[[], object]) -> None:
        real, acted = delta_compaction._rewritten, threading.Event()

        def raced(*arguments: Any) -> Any:
            found = real(*arguments)
            if not acted.is_set():
                acted.set()
                act()
            return found

        monkeypatch.setattr(delta_compaction, "_rewritten", raced)

    return arrange


def table_of(target: DeltaTarget) -> DeltaTable:
    return DeltaTable(target.folder / "table")


def files(target: DeltaTarget) -> int:
    return len(table_of(target).file_uris())


def test_compactions_of_two_pipelines_that_overlap_leave_each_row_once(
    target: DeltaTarget, between: Callable[[Callable[[], object]], None]
) -> None:
    one, other = Writer(target, "one", 0), Writer(target, "other", 100)
    one.write(EVERY - 1)
    other.write(EVERY - 1)
    between(other.write)
    one.write()
    assert target.numbers() == [0, 1, 2, 100, 101, 102]
    assert files(target) == 1


def test_a_compaction_of_a_replaced_run_leaves_each_row_once(
    target: DeltaTarget, between: Callable[[Callable[[], object]], None]
) -> None:
    old = Writer(target, "one", 0)
    old.write(EVERY - 1)

    def replaced() -> None:
        new = Writer(target, "one", 0, epoch=2)
        new.number = EVERY
        new.write(EVERY)

    between(replaced)
    old.write()
    assert target.numbers() == [*range(2 * EVERY)]


def test_a_batch_that_is_committed_during_a_compaction_does_not_stop_it(
    target: DeltaTarget, between: Callable[[Callable[[], object]], None]
) -> None:
    one, other = Writer(target, "one", 0), Writer(target, "other", 100)
    one.write(EVERY - 1)
    between(other.write)
    one.write()
    assert target.numbers() == [0, 1, 2, 100]
    assert files(target) == 2


@pytest.mark.parametrize("partial", [False, True])
def test_a_compaction_gives_way_to_one_of_another_program(
    target: DeltaTarget, between: Callable[[Callable[[], object]], None], partial: bool
) -> None:
    one = Writer(target, "one", 0)
    one.write(EVERY - 1)
    theirs = table_of(target)  # without the last batch
    between(lambda: (theirs if partial else table_of(target)).optimize.compact())
    one.write()
    assert target.numbers() == [0, 1, 2]
    assert files(target) == (2 if partial else 1)
    left = {Path(path).name for path in map(str, (target.folder / "table").glob("lanemq-*.parquet"))}
    assert len(left) == EVERY, "the file that was not used is deleted"


def test_a_compaction_that_was_committed_and_reported_as_refused_keeps_its_rows(
    target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that commits, loses its answer and is asked again says that the version exists."""
    real = DeltaTable.create_write_transaction

    def answered_wrongly(table: DeltaTable, actions: list[Any], *arguments: Any, **named: Any) -> None:
        real(table, actions, *arguments, **named)
        if any(isinstance(action, RemoveAction) for action in actions):
            raise CommitFailedError("the version exists")

    one = Writer(target, "one", 0)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", answered_wrongly)
    one.write(EVERY)
    assert target.numbers() == [*range(EVERY)]
    assert files(target) == 1


def test_a_compaction_gives_way_to_a_merge(
    target: DeltaTarget, between: Callable[[Callable[[], object]], None]
) -> None:
    def merging(query: str, every: int) -> DeltaSink:
        sink = DeltaSink(target.folder / "table", maintain_every=every)
        sink.open(SinkRun(None, query, 1, CHANGES, KEYED))  # type: ignore[arg-type]
        return sink

    one, other = merging("one", 2), merging("other", 0)
    one.write(changes((1, "old", 1, False)), named(1, 0, "one"))
    between(lambda: other.write(changes((1, "new", 3, False)), named(1, 0, "other")))
    one.write(changes((2, "second", 2, False)), named(1, 1, "one"))
    assert target.changed() == {1: "new", 2: "second"}
    assert table_of(target).count() == 2


def test_a_compaction_of_another_program_that_ends_after_ours_is_undone(
    target: DeltaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    """delta-rs raises no conflict for it, so every row that both have compacted is there twice."""
    one = Writer(target, "one", 0)
    write_deltalake(target.folder / "table", _events(1000), mode="append")
    one.write(EVERY - 1)
    theirs = table_of(target)
    one.write()
    write_deltalake(target.folder / "table", _events(1001), mode="append")
    theirs.optimize.compact()
    assert len(target.numbers()) > 5, "delta-rs has no conflict check"
    one.write(EVERY)
    assert target.numbers() == [*range(2 * EVERY), 1000, 1001]
    assert "undone" in caplog.text
    one.write(EVERY)
    assert target.numbers() == [*range(3 * EVERY), 1000, 1001]
    assert caplog.text.count("undone") == 1
    assert files(target) == 1


def test_a_compaction_of_another_program_that_ends_while_the_sink_compacts_other_files_is_undone(
    target: DeltaTarget, between: Callable[[Callable[[], object]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The sink's own commit comes after the other one. It must not count as a look at it."""
    one = Writer(target, "one", 0)
    one.write(EVERY - 1)
    theirs = table_of(target)
    one.write()
    one.write(EVERY - 1)
    between(theirs.optimize.compact)
    one.write()
    assert len(target.numbers()) > 2 * EVERY, "delta-rs has no conflict check"
    one.write(EVERY)
    assert target.numbers() == [*range(3 * EVERY)]
    assert caplog.text.count("undone") == 1


def test_a_compaction_whose_version_before_is_gone_from_the_log_stops_nothing(
    target: DeltaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    """Old versions are deleted from the log after a month, one by one."""
    one = Writer(target, "one", 0)
    one.write(EVERY - 1)
    table_of(target).optimize.compact()
    table = table_of(target)
    table.create_checkpoint()
    for version in range(table.version()):
        (target.folder / "table" / "_delta_log" / f"{version:020}.json").unlink()
    one.write(1 + EVERY)
    assert target.numbers() == [*range(2 * EVERY)]
    assert files(target) == 1
    assert "was not compacted" not in caplog.text


def test_an_overlap_that_cannot_be_undone_is_an_error_in_the_log(
    target: DeltaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    one = Writer(target, "one", 0)
    one.write(EVERY - 1)
    theirs = table_of(target)
    one.write()
    theirs.optimize.compact()
    table_of(target).optimize.compact()  # rewrites the doubled rows, in a proper way
    one.write(EVERY)
    one.write(EVERY)
    assert [record.levelname for record in caplog.records if "cannot be undone" in record.message] == ["ERROR"]


def test_a_merge_into_a_doubled_key_logs_that_and_counts_no_stale_rows(
    target: DeltaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    sink = DeltaSink(target.folder / "table", maintain_every=EVERY)
    sink.open(SinkRun(None, "one", 1, CHANGES, KEYED))  # type: ignore[arg-type]
    for number in range(EVERY - 1):
        sink.write(changes((number, "old", 1, False)), named(1, number, "one"))
    theirs = table_of(target)
    sink.write(changes((EVERY, "old", 1, False)), named(1, EVERY, "one"))
    theirs.optimize.compact()
    assert table_of(target).count() > EVERY, "delta-rs has no conflict check"
    sink.write(changes((0, "new", 2, False)), named(1, EVERY + 1, "one"))
    assert sink.last_stale == 0
    assert [record.levelname for record in caplog.records if "has a key more than once" in record.message] == ["ERROR"]
    assert "left out" not in caplog.text


def test_the_sink_does_not_compact_while_another_program_does(
    target: DeltaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = Writer(target, "one", 0)
    one.write(EVERY - 1)
    table_of(target).optimize.compact()
    one.write()
    assert files(target) == 2
    assert "another program compacts it" in caplog.text
    one.write(EVERY)
    assert files(target) == 1, "the other program has stopped"


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_partitions_with_any_text_are_compacted(tmp_path: Path, address: str) -> None:
    """Their names are escaped in the log, and once more in the names of folders."""
    schema = StructType([*EVENTS, StructField("day", StringType())])
    days = ["a b", "ü/%20", "x=y", None, "d:e"]
    sink = DeltaSink(address.format(tmp_path / "table"), ["day"], maintain_every=2)
    sink.open(SinkRun(None, "q", 1, schema, Append()))  # type: ignore[arg-type]
    rows = [{"shard": "a", "n": n, "text": None, "day": day} for n, day in enumerate(days)]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
    write_deltalake(tmp_path / "table", table, mode="append")
    for number in range(2):
        sink.write(TableRows(schema, table), named(1, number, "q"))
    found = sorted(read_table(tmp_path / "table").to_pylist(), key=lambda row: row["n"])
    assert found == [row for row in rows for _ in range(3)]
    assert len(DeltaTable(tmp_path / "table").file_uris()) == len(days)


def test_a_table_with_deletion_vectors_is_left_to_other_programs(
    target: DeltaTarget, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    properties = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create(target.folder / "table", arrow_schema(EVENTS), configuration=properties)  # type: ignore[arg-type]
    one = Writer(target, "one", 0)
    one.write(2 * EVERY)
    assert files(target) == 2 * EVERY
    assert caplog.text.count("it has the features deletionVectors") == 1


def _events(*numbers: int) -> pa.Table:
    rows = [{"shard": "theirs", "n": n, "text": None} for n in numbers]
    return pa.Table.from_pylist(rows, schema=arrow_schema(EVENTS))
