"""A sink that lacks what its checkpoint has done: refused, with every sink that can know it, and never by mistake."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.running.fakes import FakeSink, FakeStage
from tests.pipelines.running.test_checkpoint import used_by_spark
from tests.pipelines.sinks.conftest import FENCING
from tests.pipelines.sinks.places import EVENTS, Place, PostgresPlace, SqlitePlace

from lanemq.model.errors import StateLost
from lanemq.pipelines.batch import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.effects import Effects
from lanemq.pipelines.ports import Append, Results
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.sinks import ForeachSink, SqliteSink

exact = pytest.mark.parametrize("place", FENCING, indirect=True)


class Runs:
    """Runs of one checkpoint with the sink of a place; every batch has one row, its number."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.stage = FakeStage()
        self.stage.schema = EVENTS
        self.stage.run = self._row  # type: ignore[method-assign]
        self.make: Callable[[], Any] = place.make
        self.held: list[Any] = []
        folder.mkdir()

    def _row(self, messages: Any, batch: Batch) -> Results:
        return Results(self.place.batch_rows(a=[batch.spark_batch]))

    def start(self, *, new_sink: bool = False) -> BatchProcessor:
        self.crash()
        checkpoint = Checkpoint(self.folder, "orders")
        self.held.append(checkpoint)
        effects = Effects(None, "orders")
        work = BatchProcessor(self.stage, self.make(), FakeSink(), checkpoint, effects, new_sink=new_sink)  # type: ignore[arg-type]
        self.held.append(work)
        work.open(None)  # type: ignore[arg-type]
        return work

    def crash(self) -> None:
        while self.held:
            self.held.pop().close()

    def do(self, number: int, *, noted: bool = True, new_sink: bool = False) -> None:
        """A run for one batch; unless `noted`, it dies before Spark's note."""
        work = self.start(new_sink=new_sink)
        used_by_spark(self.folder, planned=number, done=number - 1)
        work.run_batch(None, number)  # type: ignore[arg-type]
        if noted:
            used_by_spark(self.folder, planned=number, done=number)


@pytest.fixture
def runs(place: Place, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(place, tmp_path / "checkpoint")
    yield made
    made.crash()


def emptied(place: Place) -> None:
    """As people do it: the table is dropped, the ledger beside it forgotten; a folder is deleted."""
    if isinstance(place, PostgresPlace):
        place.ask(f"DROP TABLE {place.schema}.rows")
    elif isinstance(place, SqlitePlace):
        place.ask("DROP TABLE rows")
    else:
        for name in ("table", "files"):
            shutil.rmtree(place.folder / name, ignore_errors=True)


def moved_away(place: Place) -> Callable[[], object]:
    """For maintenance; what is given back brings it back. An error if there is nothing to move."""
    if isinstance(place, PostgresPlace | SqlitePlace):
        name = f"{place.schema}.rows" if isinstance(place, PostgresPlace) else "rows"
        away = name.replace("rows", "away")
        ask = place.ask
        try:
            ask(f"ALTER TABLE {name} RENAME TO away")
        except Exception as error:
            raise LookupError(name) from error
        return lambda: ask(f"ALTER TABLE {away} RENAME TO rows")
    found = next((place.folder / each for each in ("table", "files") if (place.folder / each).exists()), None)
    if found is None:
        raise LookupError(place.folder)
    found.rename(place.folder / "away")
    return lambda: (place.folder / "away").rename(found)


@exact
def test_a_sink_that_was_emptied_is_refused_at_every_start(runs: Runs, tmp_path: Path) -> None:
    for number in range(3):
        runs.do(number)
    runs.crash()
    emptied(runs.place)
    for _ in range(2):
        with pytest.raises(StateLost, match=r"has none of its batches, and .* is done up to batch 2") as told:
            runs.start()
        for part in (
            str(tmp_path / "checkpoint"),
            "rows" if "rows" in str(runs.make()) else str(tmp_path),
            "--new-sink",
        ):
            assert part in str(told.value)


@exact
def test_a_sink_that_was_away_while_it_was_refused_is_right_when_it_is_back(runs: Runs) -> None:
    """The refusal changes nothing: the batch that the sink has beyond Spark's notes is not applied again."""
    for number in range(3):
        runs.do(number, noted=number < 2)
    runs.crash()
    put_back = moved_away(runs.place)
    for _ in range(2):
        with pytest.raises(StateLost, match="has none of its batches"):
            runs.start()
        runs.crash()
    put_back()
    runs.do(2)
    assert runs.place.numbers() == [0, 1, 2]


@exact
def test_a_refusal_makes_no_table(runs: Runs) -> None:
    runs.do(0)
    runs.crash()
    emptied(runs.place)
    with pytest.raises(StateLost):
        runs.start()
    runs.crash()
    with pytest.raises(LookupError):
        moved_away(runs.place)


def test_to_look_for_a_file_does_not_make_it(tmp_path: Path) -> None:
    assert SqliteSink(tmp_path / "mistyped.db", "rows").applied_before_open("q") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_table_of_somebody_else_is_left_as_it_is(runs: Runs) -> None:
    """It has no ledger beside it, and gets none; nor the columns of the rows."""
    runs.do(0)
    runs.crash()
    place: Any = runs.place
    schema = f"{place.schema}." if isinstance(place, PostgresPlace) else ""
    for name in ("rows", "lanemq_ledger"):
        place.ask(f"DROP TABLE {schema}{name}")
    place.ask(f"CREATE TABLE {schema}rows (shard text)")
    with pytest.raises(StateLost, match="has none of its batches"):
        runs.start()
    runs.crash()
    place.ask(f"CREATE TABLE {schema}lanemq_ledger (made text)")
    place.ask(f"ALTER TABLE {schema}rows ADD COLUMN n text")


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_the_session_that_looked_is_not_the_one_that_writes(place: PostgresPlace) -> None:
    """A successor finds the session of a run that hangs by the query's name."""
    sink = place.make()
    place.sinks.append(sink)
    assert sink.applied_before_open("q") is None
    sink.open(None, "q", 1, EVENTS, Append())  # type: ignore[arg-type]
    name = sink._session_name()
    assert place.ask(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'") == [(1,)]


@exact
def test_a_new_sink_is_said_once(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        runs.do(number)
    runs.crash()
    emptied(runs.place)
    with caplog.at_level(logging.WARNING):
        runs.start(new_sink=True)
    assert "goes on after batch 2" in caplog.text
    runs.start()
    runs.do(3)
    assert runs.place.numbers() == [3]


@exact
def test_a_sink_that_has_everything_does_not_mind_the_word(runs: Runs) -> None:
    for number in range(3):
        runs.do(number, new_sink=True)
    assert runs.place.numbers() == [0, 1, 2]


@exact
def test_a_sink_that_was_put_back_is_refused(runs: Runs) -> None:
    """From a backup: batch 1 and 2 would never come again."""
    runs.do(0)
    used_by_spark(runs.folder, planned=2, done=2)
    with pytest.raises(StateLost, match=r"ends with batch 0, and checkpoint .* is done up to batch 2"):
        runs.start()
    runs.start(new_sink=True)
    runs.do(3)
    assert runs.place.numbers() == [0, 3]


@exact
def test_a_first_batch_that_died_anywhere_is_no_lost_one(runs: Runs) -> None:
    runs.start()
    used_by_spark(runs.folder, planned=0, done=-1)
    runs.start()
    runs.do(0, noted=False)
    runs.do(0)
    runs.do(1, noted=False)
    runs.do(1)
    assert runs.place.numbers() == [0, 1]


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_table_that_was_dropped_before_anything_was_done_is_filled_again(runs: Runs) -> None:
    """The ledger had batch 0, and Spark repeats it: the new table must not count as having it."""
    runs.do(0, noted=False)
    runs.crash()
    emptied(runs.place)
    runs.do(0)
    assert runs.place.numbers() == [0]


@exact
def test_passes_behind_the_last_batch_are_no_lost_ones(runs: Runs) -> None:
    runs.do(0)
    work = runs.start()
    runs.stage.waiting.append(Results(runs.place.batch_rows(a=[7])))
    done = work.run_retry_pass(0)
    assert done is not None
    assert done.batch.number == batch_number(0, 1)
    runs.start()
    assert runs.place.numbers() == [0, 7]


@pytest.mark.parametrize("place", ["parquet"], indirect=True)
def test_a_sink_that_cannot_know_is_not_asked(runs: Runs) -> None:
    """A function keeps no ledger, and neither does a topic."""
    seen: list[int] = []
    runs.make = lambda: ForeachSink(lambda rows, batch: seen.append(batch.spark_batch))
    for number in range(3):
        runs.do(number)
    assert seen == [0, 1, 2]
