"""The Parquet sink: the file of a batch is staged, committed by an entry of a log, and moved to its place."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, QUERY, Died, ParquetTarget, dies_at, named

from lanemq.files import create, files_below, write_durably
from lanemq.model.errors import InvalidOption, SinkFenced
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Append, SinkRun
from lanemq.pipelines.sinks.parquet import ParquetSink


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    return ParquetTarget(tmp_path)


def test_a_batch_is_one_file_in_the_folder(target: ParquetTarget) -> None:
    """So programs that list the folder see all of it or nothing."""
    target.opened(query="q/1").write(
        target.batch_rows(**{"orders/broker-a/0": [1], "orders/broker-a/1": [2]}), named(1, 7, "q/1")
    )
    [file] = files_below(target.place)
    assert re.fullmatch(r"part-[0-9a-f]{8}-000000000000007-[0-9a-f]{8}\.parquet", file)
    assert target.numbers() == [1, 2]


def test_batches_without_rows_leave_no_files(target: ParquetTarget) -> None:
    """A silent topic may have an empty batch every few seconds, for years."""
    sink = target.opened()
    sink.write(target.batch_rows(a=[1]), named(1, 0))
    before = sorted(str(each) for each in (target.folder / "files").rglob("*"))
    for number in range(1, 6):
        assert sink.write(target.batch_rows(a=[]), named(1, number))
    after = sorted(str(each) for each in (target.folder / "files").rglob("*"))
    assert len(after) <= len(before) + 1, "the log keeps its first entry and the newest"
    again = target.opened(epoch=2)
    assert again.applied(QUERY, {}) == 5, "known to the next run"
    assert not again.write(target.batch_rows(a=[]), named(2, 5))
    assert again.write(target.batch_rows(a=[2]), named(2, 6))
    assert target.opened(epoch=3).applied(QUERY, {}) == 6
    assert target.numbers() == [1, 2]


def test_a_run_replaced_while_it_records_an_empty_batch_is_refused(target: ParquetTarget) -> None:
    old = target.opened(epoch=1)
    write, newer = old._commit, []
    old._commit = lambda *args: (newer.append(target.opened(epoch=2)), write(*args))
    with pytest.raises(SinkFenced, match=r"run 1 .* replaced by run 2"):
        old.write(target.batch_rows(a=[]), named(1, 0))
    assert newer[0].applied(QUERY, {}) is None


def test_spark_reads_committed_rows_only(target: ParquetTarget, spark: SparkSession) -> None:
    target.opened().write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    dying = target.opened()
    dies_at(dying, 0)
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[3], b=[4]), named(1, 1024))
    found = spark.read.parquet(str(target.folder / "files"))
    assert sorted(row["n"] for row in found.collect()) == [1, 2]
    assert found.columns == EVENTS.names


def test_files_of_a_replaced_run_are_removed(target: ParquetTarget) -> None:
    dying = target.opened()
    dies_at(dying, 0)
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[3], b=[4]), named(1, 0))
    staged = target.folder / "files" / "_lanemq" / f"query={QUERY}" / "staged"
    assert len(list(staged.iterdir())) == 1
    target.opened(epoch=2)
    assert list(staged.iterdir()) == []


def test_a_run_that_opens_late_removes_no_file_of_the_run_that_replaced_it(
    target: ParquetTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a remote store a start may hang while another one writes: its file is committed and not in its place yet."""
    late, place = target.make(), ParquetSink._place

    def write_in_between(sink: ParquetSink, run: SinkRun) -> None:
        place(sink, run)
        if sink is late:
            newer = target.opened(epoch=2)
            monkeypatch.setattr(ParquetSink, "_place", lambda *args: None)
            newer.write(target.batch_rows(a=[1]), named(2, 0))
            monkeypatch.setattr(ParquetSink, "_place", place)

    monkeypatch.setattr(ParquetSink, "_place", write_in_between)
    with pytest.raises(SinkFenced, match=r"run 1 .* replaced by run 2"):
        late.open(SinkRun(None, QUERY, 1, EVENTS, Append()))  # type: ignore[arg-type]
    target.opened(epoch=3)
    assert target.numbers() == [1]


def test_a_commit_whose_answer_is_lost_is_placed_by_the_next_run(
    target: ParquetTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run takes it for a refusal, because the next one has removed the entry before it could be read again."""
    older = target.opened(epoch=1)
    with monkeypatch.context() as lost:
        lost.setattr(
            "lanemq.pipelines.checkpoint.run_log.create", lambda path, content: create(path, content) and False
        )
        with pytest.raises(SinkFenced):
            older.write(target.batch_rows(a=[1]), named(1, 0))
    newer = target.opened(epoch=2)
    assert not newer.write(target.batch_rows(a=[1]), named(2, 0))
    assert target.numbers() == [1]


@pytest.mark.parametrize("step", ["staged", "committed", "placed"])
def test_a_run_replaced_at_any_step_has_written_its_batch_once_or_not(target: ParquetTarget, step: str) -> None:
    """The newer run completes what was committed, while the older one continues with it."""
    old, newer = target.opened(epoch=1), []
    old.reached = lambda at: newer.append(target.opened(epoch=2)) if at == step and not newer else None
    if step == "staged":
        with pytest.raises(SinkFenced, match=r"run 1 .* replaced by run 2"):
            old.write(target.batch_rows(a=[1]), named(1, 0))
    else:
        old.write(target.batch_rows(a=[1]), named(1, 0))
    newer[0].write(target.batch_rows(a=[1]), named(2, 0))
    assert target.numbers() == [1]


def test_without_the_fence_a_replaced_run_writes_too(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before."""
    monkeypatch.setattr(
        "lanemq.pipelines.checkpoint.run_log.create", lambda path, content: write_durably(path, content) is None
    )
    old, newer = target.opened(epoch=1), []

    def replaced(_: str) -> None:
        if not newer:
            newer.append(target.opened(epoch=2))
            newer[0].write(target.batch_rows(a=[1]), named(2, 0))

    old.reached = replaced
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    old.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.numbers() == [1, 1]


def test_a_checkpoint_that_loses_the_folder_while_it_writes_commits_nothing(target: ParquetTarget) -> None:
    old, new = target.make(), target.make()
    old.open(SinkRun(None, "q1", 1, EVENTS, Append(), pipeline="p"))  # type: ignore[arg-type]
    assert old.write(target.batch_rows(a=[1]), Batch("q1", 0, 1))
    taken = SinkRun(None, "q2", 1, EVENTS, Append(), pipeline="p", new_checkpoint=True)  # type: ignore[arg-type]
    old.reached = lambda at: new.open(taken) if at == "staged" else None
    with pytest.raises(SinkFenced, match=r"run 1 of the pipeline .* was replaced"):
        old.write(target.batch_rows(a=[2]), Batch("q1", 1, 1))
    assert target.numbers() == [1]


@pytest.mark.parametrize("step", ["about to begin", "begun"])
def test_only_the_newer_of_two_concurrent_opens_can_write(target: ParquetTarget, step: str) -> None:
    """The newer run opens the sink while the older one is opening it."""
    target.opened(epoch=1).close()
    older, newer = target.make(), []
    older.reached = lambda at: newer.append(target.opened(epoch=3)) if at == step else None

    def opens_and_writes() -> None:
        older.open(SinkRun(None, QUERY, 2, EVENTS, Append()))  # type: ignore[arg-type]
        older.write(target.batch_rows(a=[1]), named(2, 0))

    with pytest.raises(SinkFenced, match=r"run 2 .* replaced by run 3"):
        opens_and_writes()
    assert newer[0].write(target.batch_rows(a=[1]), named(3, 0))
    assert target.numbers() == [1]


def test_a_move_that_fails_is_made_up_by_the_next_write(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full while a committed file gets its place; the run continues when there is room."""
    sink = target.opened()
    with monkeypatch.context() as full:
        full.setattr("lanemq.pipelines.sinks.parquet.move", _no_room)
        with pytest.raises(OSError, match="no room"):
            sink.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.numbers() == []
    assert not sink.write(target.batch_rows(a=[1]), named(1, 0)), "it was committed"
    assert target.numbers() == [1]


def _no_room(*_: Any) -> None:
    raise OSError("no room")


def test_merging_into_parquet_is_refused_with_alternatives(target: ParquetTarget) -> None:
    with pytest.raises(InvalidOption, match="delta, iceberg, sqlite or postgres"):
        target.opened(schema=CHANGES, how=KEYED)


def test_a_column_may_be_added_but_not_change_its_type(target: ParquetTarget) -> None:
    target.opened()
    target.opened(epoch=2, schema=StructType([*EVENTS, StructField("extra", LongType())]))
    with pytest.raises(InvalidOption, match=r"column extra is bigint .* would become string"):
        target.opened(epoch=3, schema=StructType([StructField("extra", StringType())]))


def test_a_column_that_differs_only_in_case_is_refused(target: ParquetTarget) -> None:
    """Spark and DuckDB cannot tell such columns apart."""
    with pytest.raises(InvalidOption, match="column n differs from N of the rows only in case"):
        target.opened(schema=StructType([StructField("n", LongType()), StructField("N", LongType())]))
    target.opened()
    with pytest.raises(InvalidOption, match=r"column N differs from n of the folder .* only in case"):
        target.opened(epoch=2, schema=StructType([StructField("N", LongType())]))


def test_a_lost_folder_is_not_mistaken_for_a_newer_run(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = target.opened()

    def gone(*_: Any) -> Path:
        raise FileNotFoundError("a stage's file")

    monkeypatch.setattr(sink, "_stage", gone)
    with pytest.raises(FileNotFoundError, match="a stage's file"):
        sink.write(target.batch_rows(a=[1]), named(1, 0))


def test_the_folders_of_a_query_are_on_the_disk_before_its_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could remove the folder together with a published batch."""
    synced: list[Path] = []
    monkeypatch.setattr("lanemq.pipelines.sinks.parquet.sync", synced.append)
    target = ParquetTarget(tmp_path)
    target.opened()
    files = tmp_path / "files"
    assert [files / "_lanemq", files, tmp_path] == synced[-3:]
    target.close()
