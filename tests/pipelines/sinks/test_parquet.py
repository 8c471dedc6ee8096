"""The Parquet sink: one rename makes a batch visible, and one takes a replaced run's work away."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.pipelines.sinks.places import CHANGES, EVENTS, KEYED, Died, ParquetPlace, dies_at, named

from lanemq.model.errors import InvalidOption, SinkFenced
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA as DEAD_LETTERS
from lanemq.pipelines.rows import TableRows
from lanemq.pipelines.sinks import ParquetSink
from lanemq.pipelines.sinks.columns import arrow_schema


@pytest.fixture
def place(tmp_path: Path) -> ParquetPlace:
    return ParquetPlace(tmp_path)


def test_a_batch_is_a_folder_with_a_file_per_shard_and_a_note(place: ParquetPlace) -> None:
    place.opened(query="q/1").write(
        place.batch_rows(**{"orders/broker-a/0": [1], "orders/broker-a/1": [2]}), named(1, 7, "q/1")
    )
    folder = place.folder / "files" / "lanemq_query=q%2F1" / "lanemq_batch=7"
    assert sorted(file.name for file in folder.iterdir()) == [
        "000-orders-broker-a-0.parquet", "001-orders-broker-a-1.parquet", "_batch.json"
    ]  # fmt: skip
    assert json.loads((folder / "_batch.json").read_text()) == {"query": "q/1", "batch": 7, "epoch": 1, "rows": 2}


def test_batches_without_rows_leave_one_note_and_no_folders(place: ParquetPlace) -> None:
    """A silent topic has a batch every few seconds, for years."""
    sink = place.opened()
    sink.write(place.batch_rows(a=[1]), named(1, 0))
    for number in range(1, 6):
        assert sink.write(place.batch_rows(a=[]), named(1, number))
    files = place.folder / "files"
    assert [found.name for found in (files / "lanemq_query=3f1c-query").iterdir()] == ["lanemq_batch=0"]
    workshop = files / "_lanemq" / "query=3f1c-query"
    assert sorted(found.name for found in workshop.iterdir()) == ["empty-5", "epoch=1"]
    assert list((workshop / "epoch=1").iterdir()) == []
    again = place.opened(epoch=2)
    assert again.applied() == 5, "known to the next run"
    assert not again.write(place.batch_rows(a=[]), named(2, 5))
    assert again.write(place.batch_rows(a=[2]), named(2, 6))
    assert place.opened(epoch=3).applied() == 6
    assert place.numbers() == [1, 2]


@pytest.mark.parametrize("step", range(4))
def test_a_batch_without_rows_that_died_at_any_step_is_known_or_can_be_repeated(place: ParquetPlace, step: int) -> None:
    place.opened().write(place.batch_rows(a=[]), named(1, 1))
    dying = place.opened()
    dies_at(dying, step)
    with suppress(Died):
        dying.write(place.batch_rows(a=[]), named(1, 2))
    after = place.opened(epoch=2)
    assert after.applied() in (1, 2)
    assert after.write(place.batch_rows(a=[]), named(2, 2)) == (step == 0)
    assert after.write(place.batch_rows(a=[]), named(2, 3))
    assert place.opened(epoch=3).applied() == 3
    assert [note.name for note in (place.folder / "files").rglob("empty-*")] == ["empty-3"]


def test_a_run_replaced_while_it_notes_an_empty_batch_is_refused(place: ParquetPlace) -> None:
    old = place.opened(epoch=1)
    old.reached = lambda step: place.opened(epoch=2) if step == "staged" else None
    with pytest.raises(SinkFenced):
        old.write(place.batch_rows(a=[]), named(1, 0))
    assert place.opened(epoch=2).applied() is None


def test_spark_reads_committed_rows_only(place: ParquetPlace, spark: SparkSession) -> None:
    place.opened().write(place.batch_rows(a=[1], b=[2]), named(1, 0))
    dying = place.opened()
    dies_at(dying, 1)
    with pytest.raises(Died):
        dying.write(place.batch_rows(a=[3], b=[4]), named(1, 1024))
    found = spark.read.parquet(str(place.folder / "files"))
    assert sorted(row["n"] for row in found.collect()) == [1, 2]
    assert set(found.columns) == {*EVENTS.names, "lanemq_query", "lanemq_batch"}


def test_dead_letters_have_a_column_called_batch_and_can_be_read_back(place: ParquetPlace) -> None:
    """The folders' names must not hide columns of the rows."""
    sink = place.opened(schema=DEAD_LETTERS)
    row = {"topic": "orders", "queue_id": 1, "queue_offset": 5, "value": b"x", "reason": "poison", "batch": 3}
    table = pa.Table.from_pylist([row], schema=arrow_schema(DEAD_LETTERS))
    sink.write(TableRows(DEAD_LETTERS, table), named(1, 3072))
    found = pq.read_table(place.folder / "files").to_pylist()
    assert (found[0]["batch"], found[0]["lanemq_batch"], found[0]["value"]) == (3, 3072, b"x")


def test_what_a_replaced_run_left_is_removed(place: ParquetPlace) -> None:
    dying = place.opened()
    dies_at(dying, 1)
    with pytest.raises(Died):
        dying.write(place.batch_rows(a=[3], b=[4]), named(1, 0))
    place.opened(epoch=2)
    workshop = place.folder / "files" / "_lanemq" / "query=3f1c-query"
    assert [found.name for found in workshop.iterdir()] == ["epoch=2"]
    assert list((workshop / "epoch=2").iterdir()) == []


def test_a_run_replaced_between_its_last_file_and_the_rename_is_refused(place: ParquetPlace) -> None:
    old = place.opened(epoch=1)

    def replace_when_staged(step: str) -> None:
        if step == "staged":
            place.opened(epoch=2)

    old.reached = replace_when_staged
    with pytest.raises(SinkFenced):
        old.write(place.batch_rows(a=[1]), named(1, 0))
    assert place.events() == []


def test_of_two_runs_that_open_at_once_only_the_newer_can_write(place: ParquetPlace) -> None:
    """The newer one opens while the older is in the middle of opening."""
    first = place.opened(epoch=1)
    first.close()
    older, newer = place.make(), []

    def interrupt(step: str) -> None:
        if not newer:
            newer.append(place.opened(epoch=3))

    older.reached = interrupt  # type: ignore[method-assign]
    older.open(None, "3f1c-query", 2, EVENTS, place.opened(epoch=1, query="x")._opened().how)  # type: ignore[arg-type]
    with pytest.raises(SinkFenced):
        older.write(place.batch_rows(a=[1]), named(2, 0))
    assert newer[0].write(place.batch_rows(a=[1]), named(3, 0))


def test_merging_into_parquet_is_refused_with_what_to_use_instead(place: ParquetPlace) -> None:
    with pytest.raises(InvalidOption, match="delta, sqlite or postgres"):
        place.opened(schema=CHANGES, how=KEYED)


def test_a_column_may_be_added_and_must_not_change_its_type(place: ParquetPlace) -> None:
    place.opened()
    place.opened(epoch=2, schema=StructType([*EVENTS, StructField("extra", LongType())]))
    with pytest.raises(InvalidOption, match=r"column extra is bigint .* would become string"):
        place.opened(epoch=3, schema=StructType([StructField("extra", StringType())]))


def test_object_stores_are_refused() -> None:
    with pytest.raises(InvalidOption, match="Delta sink"):
        ParquetSink("s3://bucket/files")


def test_a_lost_folder_is_not_taken_for_a_newer_run(place: ParquetPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.opened()

    def gone(*_: Any) -> Path:
        raise FileNotFoundError("a stage's file")

    monkeypatch.setattr(sink, "_stage", gone)
    with pytest.raises(FileNotFoundError, match="a stage's file"):
        sink.write(place.batch_rows(a=[1]), named(1, 0))


def test_the_folders_of_a_query_are_on_the_disk_before_its_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that was renamed into a folder which a power cut takes away would be lost with it."""
    synced: list[Path] = []
    monkeypatch.setattr("lanemq.pipelines.sinks.parquet.sync", synced.append)
    place = ParquetPlace(tmp_path)
    place.opened()
    files = tmp_path / "files"
    assert [files / "_lanemq", files, tmp_path] == synced[-3:]
    place.close()
