"""The order in which stage and sinks see a batch, and what a repetition does. Without Spark."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.pipelines.running.fakes import FakeSink, FakeStage, rows_of
from tests.pipelines.running.test_checkpoint import used_by_spark

from lanemq.checker.command import check
from lanemq.model.errors import InvalidOption, SinkFenced, StateLost
from lanemq.pipelines.batch import Batch, batch_number, start_of
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.effects import Effects
from lanemq.pipelines.ports import Results
from lanemq.pipelines.running.batch_processor import BatchProcessor

ROW = ("t", 0, 5, "k")


class Stand:
    """One checkpoint, stage and sinks; `start` is a new run of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[str] = []
        self.stage = FakeStage(self.steps)
        self.sink = FakeSink(self.steps)
        self.dead = FakeSink(self.steps, "dead")
        self.history: Path | None = None
        self.held: list[tuple[Checkpoint, BatchProcessor]] = []

    def start(self, *, whole: bool = False) -> BatchProcessor:
        self.crash()
        checkpoint = Checkpoint(self.folder, "orders")
        work = BatchProcessor(
            self.stage, self.sink, self.dead, checkpoint, Effects(self.history, "orders"), whole=whole
        )
        self.held.append((checkpoint, work))
        work.open(None)  # type: ignore[arg-type]
        return work

    def crash(self) -> None:
        """The process is gone, and with it the lock."""
        while self.held:
            checkpoint, work = self.held.pop()
            work.close()
            checkpoint.close()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    Checkpoint(folder, "orders").close()
    used_by_spark(folder, planned=5, done=4)
    made = Stand(folder)
    yield made
    made.crash()


def batch(work: BatchProcessor, number: int) -> Any:
    planned = work._checkpoint.folder / "offsets" / str(number)
    if not planned.exists():
        planned.write_text(f'v1\n{{}}\n{{"orders": {{"b/0": {number + 1}}}}}')
    return work.run_batch(None, number)  # type: ignore[arg-type]


def test_a_batch_is_called_by_its_pipelines_name(stand: Stand) -> None:
    """In every warning: a query's number tells nobody which pipeline it was."""
    done = stand.start().run_batch(None, 5)  # type: ignore[arg-type]
    assert str(done.batch) == "orders batch 5 (epoch 2)"


def test_the_sink_is_last_before_spark_s_note(stand: Stand) -> None:
    stand.stage.dead = rows_of(ROW)
    work = stand.start()
    done = batch(work, 3)
    n = batch_number(3)
    assert stand.steps == [f"run {n}", f"dead {n}", f"sink {n}", f"finished {n}"]
    assert (done.dead_letters, done.repeated, start_of(done.batch.epoch)) == (1, False, 2)


def test_dead_letters_have_a_ledger_of_their_own(stand: Stand) -> None:
    """In one database both sinks would share it, and the batch would count as applied before it is."""
    stand.start()
    assert stand.dead.query == f"{stand.sink.query}-dead"


def test_no_dead_letters_no_write(stand: Stand) -> None:
    stand.stage.dead = rows_of()
    batch(stand.start(), 3)
    assert stand.dead.numbers == []


def test_a_batch_that_the_sink_has_is_not_run_again(stand: Stand) -> None:
    batch(stand.start(), 5)
    stand.steps.clear()
    done = batch(stand.start(), 5)
    assert done.repeated
    assert stand.steps == [f"finished {batch_number(5)}"]
    assert batch(stand.start(), 6).repeated is False


@pytest.mark.parametrize("where", ["run", "dead", "sink"])
def test_a_crash_before_the_sink_s_commit_repeats_the_batch(stand: Stand, where: str) -> None:
    stand.stage.dead = rows_of(ROW)
    work = stand.start()

    def crash(batch: Batch) -> None:
        raise OSError("power cut")

    nothing: Callable[[Batch], None] = lambda batch: None  # noqa: E731
    if where == "run":
        stand.stage.before_run = crash
    else:
        getattr(stand, where).before_write = crash
    with pytest.raises(OSError, match="power cut"):
        batch(work, 5)
    assert stand.sink.numbers == []
    stand.stage.before_run = stand.sink.before_write = stand.dead.before_write = nothing
    assert not batch(stand.start(), 5).repeated
    assert stand.sink.numbers == stand.dead.numbers == [batch_number(5)]


def test_a_run_that_was_replaced_cannot_write(stand: Stand) -> None:
    old = stand.start()
    stand.sink.open(None, stand.sink.query, 99 << 32, stand.stage.schema, stand.stage.how)
    with pytest.raises(SinkFenced):
        batch(old, 5)
    stand.sink.opened -= 1


def test_sinks_are_closed_whatever_happens(stand: Stand) -> None:
    stand.start()
    assert (stand.sink.opened, stand.dead.opened) == (1, 1)
    stand.crash()
    assert (stand.sink.opened, stand.dead.opened) == (0, 0)


@pytest.mark.parametrize(
    ("applied", "fits"), [(batch_number(5), True), (batch_number(5, 3), True), (batch_number(6), False)]
)
def test_a_checkpoint_that_is_older_than_its_sink_is_refused(stand: Stand, applied: int, fits: bool) -> None:
    """Spark would plan batch 6 anew, perhaps with other messages, and the sink would take it for the one it has."""
    stand.sink.numbers.append(applied)
    if fits:
        stand.start()
        return
    with pytest.raises(StateLost, match="older than its sink: the sink has batch 6, the checkpoint ends with 5"):
        stand.start()


def test_passes_have_numbers_of_their_own_across_runs(stand: Stand) -> None:
    stand.stage.waiting += [Results(rows_of(ROW)), Results(rows_of(ROW))]
    first = stand.start().run_retry_pass(4)
    second = stand.start().run_retry_pass(4)
    assert first is not None
    assert second is not None
    assert [first.batch.number, second.batch.number] == [batch_number(4, 1), batch_number(4, 2)]
    assert len(stand.sink.rows) == 2


def test_a_pass_with_nothing_to_do_costs_no_number(stand: Stand) -> None:
    work = stand.start()
    assert [work.run_retry_pass(4) for _ in range(3)] == [None, None, None]
    stand.stage.waiting.append(Results(rows_of(ROW)))
    done = work.run_retry_pass(4)
    assert done is not None
    assert done.batch.number == batch_number(4, 1)


def test_when_numbers_run_out_passes_wait_for_the_next_batch(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    work = stand.start()
    (stand.folder / "lanemq" / "retry_pass").write_text(str(batch_number(5) - 1))
    stand.stage.waiting.append(Results(rows_of(ROW)))
    with caplog.at_level(logging.WARNING):
        assert (work.run_retry_pass(4), work.run_retry_pass(4)) == (None, None)
    assert len(caplog.records) == 1
    assert work.run_retry_pass(5) is not None


def test_an_interrupted_pass_is_finished_under_its_number(stand: Stand) -> None:
    stand.stage.unfinished = batch_number(4, 2)
    stand.stage.waiting.append(Results(rows_of(ROW)))
    done = stand.start().finish_retry_pass()
    assert done is not None
    assert stand.sink.numbers == [batch_number(4, 2)]
    assert stand.start().finish_retry_pass() is None


def test_an_interrupted_pass_that_the_sink_has_is_not_run_again(stand: Stand) -> None:
    """A step that answers otherwise the second time would leave a message in the table and in the dead letters."""
    stand.sink.numbers.append(batch_number(4, 2))
    stand.stage.unfinished = batch_number(4, 2)
    stand.stage.waiting.append(Results(rows_of(), rows_of(ROW)))
    done = stand.start().finish_retry_pass()
    assert done is not None
    assert done.repeated
    assert stand.steps == [f"finished {batch_number(4, 2)}"]


def test_redriven_letters_are_no_effects_out_of_order(stand: Stand, tmp_path: Path) -> None:
    """Their key went on without them, by somebody's decision; a crash before the commit makes no difference."""
    stand.history = tmp_path / "history"
    newer, late = ("t", 0, 6, "k"), frozenset({("t", 0, 5)})
    stand.stage.waiting += [Results(rows_of(newer)), Results(rows_of(ROW, ("t", 0, 7, "k")), late=late)]
    work = stand.start()
    work.run_retry_pass(4)
    stand.sink.before_write = power_cut
    with pytest.raises(OSError, match="power cut"):
        work.run_retry_pass(4)
    stand.sink.before_write, stand.stage.unfinished = lambda batch: None, batch_number(4, 2)
    assert stand.start().finish_retry_pass() is not None
    stand.crash()
    assert stand.sink.rows == [newer, ROW, ("t", 0, 7, "k")]
    found = json.loads(CliRunner().invoke(check, [str(stand.history), "--json"]).output)
    assert (found["violations"], found["coverage"]["effects"]) == ([], 2)


def power_cut(batch: Batch) -> None:
    raise OSError("power cut")


def test_effects_are_written_down_once(stand: Stand, tmp_path: Path) -> None:
    """A sink that had the batch already records nothing: the history would show the effect twice."""
    stand.history = tmp_path / "history"
    stand.stage.waiting += [Results(rows_of(ROW, ROW, ("t", 0, 6, "k")))]
    work = stand.start()
    assert work.run_retry_pass(4) is not None
    stand.stage.unfinished = batch_number(4, 1)
    stand.stage.waiting += [Results(rows_of(ROW, ("t", 0, 6, "k")))]
    done = stand.start().finish_retry_pass()
    assert done is not None
    assert done.repeated
    stand.crash()
    (file,) = stand.history.iterdir()
    assert file.read_text().count('"effect"') == 2
    verdict = CliRunner().invoke(check, [str(stand.history), "--json"])
    found = json.loads(verdict.output)
    assert (found["violations"], found["coverage"]["effects"]) == ([], 2)


def test_a_history_of_rows_without_origin_is_refused(stand: Stand, tmp_path: Path) -> None:
    stand.history = tmp_path / "history"
    stand.stage.schema = type(stand.stage.schema)([field for field in stand.stage.schema if field.name != "key"])
    with pytest.raises(InvalidOption, match="history: the outputs have no column key"):
        stand.start()


@pytest.mark.parametrize("whole", [True, False])
def test_missing_offsets_are_told_if_nobody_left_them_out(
    stand: Stand, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    stand.stage.waiting.append(Results(rows_of(), counts={"missing": 7}))
    stand.start(whole=whole).run_retry_pass(4)
    assert ("7 offsets had no message" in caplog.text) is whole


def test_what_is_due_runs_behind_the_last_batch_that_is_done(stand: Stand) -> None:
    work = stand.start()
    assert work.run_due() is None
    assert stand.steps == []
    stand.stage.waiting.append(Results(rows_of(ROW)))
    assert work.run_due() is not None
    assert stand.sink.numbers == [batch_number(4, 1)]


def test_sinks_are_told_which_runs_are_this_checkpoint_s(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, ...]] = []
    for sink in (stand.sink, stand.dead):
        monkeypatch.setattr(sink, "accept_runs", lambda runs: told.append(runs.epochs))
    stand.start()
    (one, two), (checkpoint, _) = told, stand.held[0]
    assert one == two
    assert one[-1] == checkpoint.epoch
