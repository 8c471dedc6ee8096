"""The Parquet sink: one rename makes a batch visible, and one moves a replaced run's folder away."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, Died, ParquetTarget, dies_at, named

from lanemq.model.errors import InvalidOption, SinkFenced
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA as DEAD_LETTERS
from lanemq.pipelines.ports import TableRows
from lanemq.pipelines.sinks import ParquetSink
from lanemq.pipelines.sinks.exact_sink import arrow_schema


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    return ParquetTarget(tmp_path)


def test_a_batch_is_a_folder_with_a_file_per_shard_and_a_note(target: ParquetTarget) -> None:
    target.opened(query="q/1").write(
        target.batch_rows(**{"orders/broker-a/0": [1], "orders/broker-a/1": [2]}), named(1, 7, "q/1")
    )
    folder = target.folder / "files" / "lanemq_query=q%2F1" / "lanemq_batch=7"
    assert sorted(file.name for file in folder.iterdir()) == [
        "000-orders-broker-a-0.parquet", "001-orders-broker-a-1.parquet", "_batch.json"
    ]  # fmt: skip
    assert json.loads((folder / "_batch.json").read_text()) == {"query": "q/1", "batch": 7, "epoch": 1, "rows": 2}


def test_batches_without_rows_leave_one_file_and_no_folders(target: ParquetTarget) -> None:
    """A silent topic may have an empty batch every few seconds, for years."""
    sink = target.opened()
    sink.write(target.batch_rows(a=[1]), named(1, 0))
    for number in range(1, 6):
        assert sink.write(target.batch_rows(a=[]), named(1, number))
    files = target.folder / "files"
    assert [found.name for found in (files / "lanemq_query=3f1c-query").iterdir()] == ["lanemq_batch=0"]
    workshop = files / "_lanemq" / "query=3f1c-query"
    assert sorted(found.name for found in workshop.iterdir()) == ["empty-5", "epoch=1"]
    assert list((workshop / "epoch=1").iterdir()) == []
    again = target.opened(epoch=2)
    assert again.applied() == 5, "known to the next run"
    assert not again.write(target.batch_rows(a=[]), named(2, 5))
    assert again.write(target.batch_rows(a=[2]), named(2, 6))
    assert target.opened(epoch=3).applied() == 6
    assert target.numbers() == [1, 2]


@pytest.mark.parametrize("step", range(4))
def test_an_empty_batch_interrupted_at_any_step_can_be_repeated(target: ParquetTarget, step: int) -> None:
    target.opened().write(target.batch_rows(a=[]), named(1, 1))
    dying = target.opened()
    dies_at(dying, step)
    with suppress(Died):
        dying.write(target.batch_rows(a=[]), named(1, 2))
    after = target.opened(epoch=2)
    assert after.applied() in (1, 2)
    assert after.write(target.batch_rows(a=[]), named(2, 2)) == (step == 0)
    assert after.write(target.batch_rows(a=[]), named(2, 3))
    assert target.opened(epoch=3).applied() == 3
    assert [note.name for note in (target.folder / "files").rglob("empty-*")] == ["empty-3"]


def test_a_run_replaced_while_it_records_an_empty_batch_is_refused(target: ParquetTarget) -> None:
    old = target.opened(epoch=1)
    old.reached = lambda step: target.opened(epoch=2) if step == "staged" else None
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[]), named(1, 0))
    assert target.opened(epoch=2).applied() is None


def test_spark_reads_committed_rows_only(target: ParquetTarget, spark: SparkSession) -> None:
    target.opened().write(target.batch_rows(a=[1], b=[2]), named(1, 0))
    dying = target.opened()
    dies_at(dying, 1)
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[3], b=[4]), named(1, 1024))
    found = spark.read.parquet(str(target.folder / "files"))
    assert sorted(row["n"] for row in found.collect()) == [1, 2]
    assert set(found.columns) == {*EVENTS.names, "lanemq_query", "lanemq_batch"}


def test_the_column_batch_of_dead_letters_can_be_read_back(target: ParquetTarget) -> None:
    """The names of the folders must not hide columns of the rows."""
    sink = target.opened(schema=DEAD_LETTERS)
    row = {"topic": "orders", "queue_id": 1, "queue_offset": 5, "value": b"x", "reason": "poison", "batch": 3}
    table = pa.Table.from_pylist([row], schema=arrow_schema(DEAD_LETTERS))
    sink.write(TableRows(DEAD_LETTERS, table), named(1, 3072))
    found = pq.read_table(target.folder / "files").to_pylist()
    assert (found[0]["batch"], found[0]["lanemq_batch"], found[0]["value"]) == (3, 3072, b"x")


def test_files_of_a_replaced_run_are_removed(target: ParquetTarget) -> None:
    dying = target.opened()
    dies_at(dying, 1)
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[3], b=[4]), named(1, 0))
    target.opened(epoch=2)
    workshop = target.folder / "files" / "_lanemq" / "query=3f1c-query"
    assert [found.name for found in workshop.iterdir()] == ["epoch=2"]
    assert list((workshop / "epoch=2").iterdir()) == []


def test_a_run_replaced_between_its_last_file_and_the_rename_is_refused(target: ParquetTarget) -> None:
    old = target.opened(epoch=1)

    def replace_when_staged(step: str) -> None:
        if step == "staged":
            target.opened(epoch=2)

    old.reached = replace_when_staged
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.events() == []


def test_only_the_newer_of_two_concurrent_opens_can_write(target: ParquetTarget) -> None:
    """The newer run opens the sink while the older one is opening it."""
    first = target.opened(epoch=1)
    first.close()
    older, newer = target.make(), []

    def interrupt(step: str) -> None:
        if not newer:
            newer.append(target.opened(epoch=3))

    older.reached = interrupt  # type: ignore[method-assign]
    older.open(None, "3f1c-query", 2, EVENTS, target.opened(epoch=1, query="x")._opened().how)  # type: ignore[arg-type]
    with pytest.raises(SinkFenced):
        older.write(target.batch_rows(a=[1]), named(2, 0))
    assert newer[0].write(target.batch_rows(a=[1]), named(3, 0))


def test_merging_into_parquet_is_refused_with_alternatives(target: ParquetTarget) -> None:
    with pytest.raises(InvalidOption, match="delta, iceberg, sqlite or postgres"):
        target.opened(schema=CHANGES, how=KEYED)


def test_a_column_may_be_added_but_not_change_its_type(target: ParquetTarget) -> None:
    target.opened()
    target.opened(epoch=2, schema=StructType([*EVENTS, StructField("extra", LongType())]))
    with pytest.raises(InvalidOption, match=r"column extra is bigint .* would become string"):
        target.opened(epoch=3, schema=StructType([StructField("extra", StringType())]))


def test_object_stores_are_refused() -> None:
    with pytest.raises(InvalidOption, match="Delta sink"):
        ParquetSink("s3://bucket/files")


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
