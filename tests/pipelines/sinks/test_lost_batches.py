"""A sink that lacks batches which its checkpoint has done is refused."""

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.checkpoint.test_checkpoint import used_by_spark
from tests.pipelines.sinks.conftest import CHECKPOINTED, MOVABLE
from tests.pipelines.sinks.runs import Runs, emptied
from tests.pipelines.sinks.targets import (
    EVENTS,
    QUERY,
    DeltaTarget,
    IcebergTarget,
    PostgresTarget,
    SqliteTarget,
    Target,
    named,
)

from lanemq.model.errors import StateLost, StorageError
from lanemq.pipelines import ForeachSink, SqliteSink
from lanemq.pipelines.batches import batch_number
from lanemq.pipelines.ports import Append, Results, SinkRun

exact = pytest.mark.parametrize("target", CHECKPOINTED, indirect=True)
movable = pytest.mark.parametrize("target", MOVABLE, indirect=True)


def moved_away(target: Target) -> Callable[[], object]:
    """Move the target away, as for maintenance; returns a function that moves it back."""
    if isinstance(target, PostgresTarget | SqliteTarget):
        name = f"{target.schema}.rows" if isinstance(target, PostgresTarget) else "rows"
        away = name.replace("rows", "away")
        ask = target.ask
        try:
            ask(f"ALTER TABLE {name} RENAME TO away")
        except Exception as error:
            raise LookupError(name) from error
        return lambda: ask(f"ALTER TABLE {away} RENAME TO rows")
    found = next(
        (target.folder / each for each in ("table", "files", "warehouse") if (target.folder / each).exists()), None
    )
    if found is None:
        raise LookupError(target.folder)
    found.rename(target.folder / "away")
    return lambda: (target.folder / "away").rename(found)


@exact
def test_a_sink_that_was_emptied_is_refused_at_every_start(runs: Runs, tmp_path: Path) -> None:
    for number in range(3):
        runs.do(number)
    runs.crash()
    emptied(runs.target)
    for _ in range(2):
        with pytest.raises(StateLost, match=r"has none of its batches, and .* is done up to batch 2") as error:
            runs.start()
        for part in (
            str(tmp_path / "checkpoint"),
            "rows" if "rows" in str(runs.make()) else str(tmp_path),
            "--new-sink",
        ):
            assert part in str(error.value)


@movable
def test_a_sink_that_is_restored_after_a_refusal_is_accepted(runs: Runs) -> None:
    """The refusal changes nothing: a batch that the sink has and Spark has not recorded is not applied again."""
    for number in range(3):
        runs.do(number, recorded=number < 2)
    runs.crash()
    put_back = moved_away(runs.target)
    for _ in range(2):
        with pytest.raises(StateLost, match="has none of its batches"):
            runs.start()
        runs.crash()
    put_back()
    runs.do(2)
    assert runs.target.numbers() == [0, 1, 2]


@movable
def test_a_refusal_creates_no_table(runs: Runs) -> None:
    runs.do(0)
    runs.crash()
    emptied(runs.target)
    with pytest.raises(StateLost):
        runs.start()
    runs.crash()
    with pytest.raises(LookupError):
        moved_away(runs.target)


def test_looking_for_a_sqlite_file_does_not_create_it(tmp_path: Path) -> None:
    assert SqliteSink(tmp_path / "mistyped.db", "rows").applied("q", {}) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["sqlite", "postgres"], indirect=True)
def test_a_refusal_does_not_change_a_table_of_another_writer(runs: Runs) -> None:
    """The refusal creates no ledger and adds no columns."""
    runs.do(0)
    runs.crash()
    target: Any = runs.target
    schema = f"{target.schema}." if isinstance(target, PostgresTarget) else ""
    for name in ("rows", "lanemq_ledger"):
        target.ask(f"DROP TABLE {schema}{name}")
    target.ask(f"CREATE TABLE {schema}rows (shard text)")
    with pytest.raises(StateLost, match="has none of its batches"):
        runs.start()
    runs.crash()
    target.ask(f"CREATE TABLE {schema}lanemq_ledger (made text)")
    target.ask(f"ALTER TABLE {schema}rows ADD COLUMN n text")


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_the_session_of_a_run_is_named_after_its_query(target: PostgresTarget) -> None:
    """A successor finds the session of a hanging run by the name of its query."""
    sink = target.make()
    target.sinks.append(sink)
    assert sink.applied("q", {}) is None
    sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    name = sink._session_name()
    assert target.ask(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'") == [(1,)]


@exact
def test_new_sink_is_needed_only_once(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        runs.do(number)
    runs.crash()
    emptied(runs.target)
    with caplog.at_level(logging.WARNING):
        runs.start(new_sink=True)
    assert "continues after batch 2" in caplog.text
    runs.start()
    runs.do(3)
    assert runs.target.numbers() == [3]


@exact
def test_new_sink_does_nothing_if_the_sink_has_every_batch(runs: Runs) -> None:
    for number in range(3):
        runs.do(number, new_sink=True)
    assert runs.target.numbers() == [0, 1, 2]


@exact
def test_a_sink_restored_from_an_older_copy_is_refused(runs: Runs) -> None:
    """It was restored from a backup, so batches 1 and 2 would never come again."""
    runs.do(0)
    used_by_spark(runs.folder, planned=2, done=2)
    with pytest.raises(StateLost, match=r"ends with batch 0, and checkpoint .* is done up to batch 2"):
        runs.start()
    runs.start(new_sink=True)
    runs.do(3)
    assert runs.target.numbers() == [0, 3]


@exact
def test_an_interrupted_first_batch_is_not_a_lost_one(runs: Runs) -> None:
    runs.start()
    used_by_spark(runs.folder, planned=0, done=-1)
    runs.start()
    runs.do(0, recorded=False)
    runs.do(0)
    runs.do(1, recorded=False)
    runs.do(1)
    assert runs.target.numbers() == [0, 1]


@pytest.mark.parametrize("target", ["sqlite", "postgres"], indirect=True)
def test_a_table_dropped_before_the_first_batch_was_done_is_filled_again(runs: Runs) -> None:
    """The ledger had batch 0 and Spark repeats it: the new table must not count as having it."""
    runs.do(0, recorded=False)
    runs.crash()
    emptied(runs.target)
    runs.do(0)
    assert runs.target.numbers() == [0]


@exact
def test_retry_passes_after_the_last_batch_are_not_lost_batches(runs: Runs) -> None:
    runs.do(0)
    processor = runs.start()
    runs.stage.waiting.append(Results(runs.target.batch_rows(a=[7])))
    done = processor.process_retry_pass(0)
    assert done is not None
    assert done.batch.number == batch_number(0, 1)
    runs.start()
    assert runs.target.numbers() == [0, 7]


@pytest.mark.parametrize("target", ["parquet"], indirect=True)
def test_a_sink_without_a_ledger_is_not_checked(runs: Runs) -> None:
    """Functions and topics have no ledger."""
    seen: list[int] = []
    runs.make = lambda: ForeachSink(lambda rows, batch: seen.append(batch.spark_batch))
    for number in range(3):
        runs.do(number)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("target", ["delta", "iceberg", "sqlite", "parquet"], indirect=True)
@pytest.mark.parametrize("ends", ["deleted", "restored"])
def test_a_sink_that_another_program_deletes_or_restores_during_a_run_is_refused(
    target: Target, ends: str, tmp_path: Path
) -> None:
    """The next batch would hide the loss: the sink would have the newest batch, and not those before it."""
    sink = target.opened()
    assert sink.write(target.batch_rows(a=[0]), named(1, 0))
    place = next(each for each in (target.folder / name for name in PLACES) if each.exists())
    copied(place, tmp_path / "backup")
    for number in (1, 2):
        assert sink.write(target.batch_rows(a=[number]), named(1, number))
    deleted(place)
    if ends == "restored":
        copied(tmp_path / "backup", place)
    for _ in range(2):
        with pytest.raises((StateLost, StorageError)) as error:
            sink.write(target.batch_rows(a=[3]), named(1, 3))
        if not isinstance(target, DeltaTarget | IcebergTarget):
            assert isinstance(error.value, StateLost)
    assert target.make().applied(QUERY, {}) == (0 if ends == "restored" else None)


PLACES = ("table", "warehouse", "files", "rows.db")


def copied(place: Path, to: Path) -> None:
    """Copies a folder, or a database with its log."""
    if place.is_dir():
        shutil.copytree(place, to)
        return
    with closing(sqlite3.connect(place)) as source, closing(sqlite3.connect(to)) as backup:
        source.backup(backup)


def deleted(place: Path) -> None:
    for each in place.parent.glob(f"{place.name}*"):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
