"""The order of the steps of a batch, and what a repetition does. Without Spark."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.pipelines.checkpoint.test_checkpoint import used_by_spark
from tests.pipelines.fakes import FakeSink, FakeStage, rows_of

from lanemq.checker.command import check
from lanemq.model.errors import InvalidOption, SinkFenced, StateLost
from lanemq.pipelines.batches import Batch, batch_number, start_of
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.units import Units
from lanemq.pipelines.ports import Results, SinkRun
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.effect_history import EffectHistory

ROW = ("t", 0, 5, "k")


class ProcessorFixture:
    """One checkpoint, stage and sinks; `start` starts a new run."""

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
        processor = BatchProcessor(
            self.stage, self.sink, self.dead, checkpoint, EffectHistory(self.history, "orders"), whole=whole
        )
        self.held.append((checkpoint, processor))
        processor.open(None)  # type: ignore[arg-type]
        return processor

    def crash(self) -> None:
        """The process ends, and its lock with it."""
        while self.held:
            checkpoint, processor = self.held.pop()
            processor.close()
            checkpoint.close()


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[ProcessorFixture]:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    Checkpoint(folder, "orders").close()
    used_by_spark(folder, planned=5, done=4)
    made = ProcessorFixture(folder)
    yield made
    made.crash()


def batch(processor: BatchProcessor, number: int) -> Any:
    planned = processor._checkpoint.folder / "offsets" / str(number)
    if not planned.exists():
        planned.write_text(f'v1\n{{}}\n{{"orders": {{"b/0": {number + 1}}}}}')
    return processor.process_batch(None, number)  # type: ignore[arg-type]


def test_a_batch_is_named_after_its_pipeline(fixture: ProcessorFixture) -> None:
    """Warnings must show which pipeline they are about; a query id does not."""
    done = fixture.start().process_batch(None, 5)  # type: ignore[arg-type]
    assert str(done.batch) == "orders batch 5 (epoch 2)"


def test_the_sink_is_the_last_step_before_spark_records_the_batch(fixture: ProcessorFixture) -> None:
    fixture.stage.dead = rows_of(ROW)
    processor = fixture.start()
    done = batch(processor, 3)
    n = batch_number(3)
    assert fixture.steps == [f"run {n}", f"dead {n}", f"sink {n}", f"finished {n}"]
    assert (done.dead_letters, done.repeated, start_of(done.batch.epoch)) == (1, False, 2)


def test_dead_letters_have_their_own_ledger_entry(fixture: ProcessorFixture) -> None:
    """In one database the sinks share the ledger table, and the batch would count as applied too early."""
    fixture.start()
    assert fixture.dead.query == f"{fixture.sink.query}-dead"


def test_the_dead_letter_sink_is_not_written_without_dead_letters(fixture: ProcessorFixture) -> None:
    fixture.stage.dead = rows_of()
    batch(fixture.start(), 3)
    assert fixture.dead.numbers == []


def test_a_batch_that_the_sink_has_is_not_run_again(fixture: ProcessorFixture) -> None:
    batch(fixture.start(), 5)
    fixture.steps.clear()
    done = batch(fixture.start(), 5)
    assert done.repeated
    assert fixture.steps == [f"finished {batch_number(5)}"]
    assert batch(fixture.start(), 6).repeated is False


@pytest.mark.parametrize("where", ["run", "dead", "sink"])
def test_a_crash_before_the_sinks_commit_repeats_the_batch(fixture: ProcessorFixture, where: str) -> None:
    fixture.stage.dead = rows_of(ROW)
    processor = fixture.start()

    def crash(batch: Batch) -> None:
        raise OSError("power cut")

    if where == "run":
        fixture.stage.before_run = crash
    else:
        getattr(fixture, where).before_write = crash
    with pytest.raises(OSError, match="power cut"):
        batch(processor, 5)
    assert fixture.sink.numbers == []
    fixture.stage.before_run = fixture.sink.before_write = fixture.dead.before_write = nothing
    assert not batch(fixture.start(), 5).repeated
    assert fixture.sink.numbers == fixture.dead.numbers == [batch_number(5)]


def test_a_run_that_was_replaced_cannot_write(fixture: ProcessorFixture) -> None:
    old = fixture.start()
    fixture.sink.open(SinkRun(None, fixture.sink.query, 99 << 32, fixture.stage.schema, fixture.stage.how))
    with pytest.raises(SinkFenced):
        batch(old, 5)
    fixture.sink.opened -= 1


def test_sinks_are_closed_after_an_error(fixture: ProcessorFixture) -> None:
    fixture.start()
    assert (fixture.sink.opened, fixture.dead.opened) == (1, 1)
    fixture.crash()
    assert (fixture.sink.opened, fixture.dead.opened) == (0, 0)


@pytest.mark.parametrize(
    ("applied", "fits"), [(batch_number(5), True), (batch_number(5, 3), True), (batch_number(6), False)]
)
def test_a_checkpoint_that_is_older_than_its_sink_is_refused(
    fixture: ProcessorFixture, applied: int, fits: bool
) -> None:
    """Spark would plan batch 6 again, perhaps with other messages, and the sink would take it for the one it has."""
    fixture.sink.numbers.append(applied)
    if fits:
        fixture.start()
        return
    with pytest.raises(StateLost, match=r"older than its sink: .* has batch 6, the checkpoint ends with 5"):
        fixture.start()


def test_retry_passes_have_unique_numbers_across_runs(fixture: ProcessorFixture) -> None:
    fixture.stage.waiting += [Results(rows_of(ROW)), Results(rows_of(ROW))]
    first = fixture.start().process_retry_pass(4)
    second = fixture.start().process_retry_pass(4)
    assert first is not None
    assert second is not None
    assert [first.batch.number, second.batch.number] == [batch_number(4, 1), batch_number(4, 2)]
    assert len(fixture.sink.rows) == 2


def test_the_number_of_a_retry_pass_is_given_to_no_other(fixture: ProcessorFixture) -> None:
    """The dead-letter sink has the first pass, and the sink neither: it would take the third for a repetition."""
    fixture.sink.all_at_once = True
    fixture.sink.numbers.append(batch_number(4))
    first, third = (Results(rows_of(), rows_of(("t", 0, at, "k")), state=str(at)) for at in (5, 7))
    fixture.stage.waiting += [first, Results(rows_of(ROW), state="6"), third]
    processor = fixture.start()
    processor.process_retry_pass(4)
    fixture.sink.before_write = power_cut
    with pytest.raises(OSError, match="power cut"):
        processor.process_retry_pass(4)
    fixture.sink.before_write = nothing
    fixture.start().process_retry_pass(4)
    assert fixture.dead.numbers == [batch_number(4, 1), batch_number(4, 2)]
    assert [5 in row or 7 in row for row in fixture.dead.rows] == [True, True]


def test_a_retry_pass_with_nothing_to_do_uses_no_number(fixture: ProcessorFixture) -> None:
    processor = fixture.start()
    assert [processor.process_retry_pass(4) for _ in range(3)] == [None, None, None]
    fixture.stage.waiting.append(Results(rows_of(ROW)))
    done = processor.process_retry_pass(4)
    assert done is not None
    assert done.batch.number == batch_number(4, 1)


def test_without_numbers_retry_passes_wait_for_the_next_batch(
    fixture: ProcessorFixture, caplog: pytest.LogCaptureFixture
) -> None:
    processor = fixture.start()
    fixture.sink.numbers.append(batch_number(5) - 1)
    processor = fixture.start()
    fixture.stage.waiting.append(Results(rows_of(ROW)))
    with caplog.at_level(logging.WARNING):
        assert (processor.process_retry_pass(4), processor.process_retry_pass(4)) == (None, None)
    assert len(caplog.records) == 1
    assert processor.process_retry_pass(5) is not None


def test_an_interrupted_retry_pass_is_completed_under_its_number(fixture: ProcessorFixture) -> None:
    """A step that answers differently the second time would leave a message in the table and in the dead letters."""
    fixture.stage.waiting += [Results(rows_of(ROW)), Results(rows_of(("t", 0, 6, "k")))]
    fixture.sink.before_write = power_cut
    with pytest.raises(OSError, match="power cut"):
        fixture.start().process_retry_pass(4)
    fixture.sink.before_write = nothing
    done = fixture.start().finish_retry_pass()
    assert done is not None
    assert (fixture.sink.numbers, fixture.sink.rows) == ([batch_number(4, 1)], [ROW])
    assert fixture.start().finish_retry_pass() is None


def test_an_interrupted_retry_pass_that_the_sink_has_is_not_applied_again(fixture: ProcessorFixture) -> None:
    fixture.stage.waiting += [Results(rows_of(ROW))]
    fixture.sink.after_write = power_cut
    with pytest.raises(OSError, match="power cut"):
        fixture.start().process_retry_pass(4)
    fixture.sink.after_write = nothing
    processor = fixture.start()
    assert (processor.finish_retry_pass(), fixture.sink.numbers) == (None, [batch_number(4, 1)])
    assert list((fixture.folder / "lanemq" / "decided").iterdir()) == []


def test_no_retry_pass_is_due_while_a_decided_batch_is_not_complete(fixture: ProcessorFixture) -> None:
    fixture.stage.waiting.append(Results(rows_of(ROW)))
    fixture.sink.before_write = power_cut
    with pytest.raises(OSError, match="power cut"):
        batch(fixture.start(), 5)
    processor = fixture.start()
    assert (processor.due(), processor.process_due()) == (None, None)
    fixture.sink.before_write = nothing
    batch(processor, 5)
    assert processor.due() == 0


def test_a_batch_that_retry_passes_followed_is_not_run_again(fixture: ProcessorFixture) -> None:
    """The driver died before Spark recorded the batch, but the sinks had its rows and a retry pass followed."""
    fixture.sink.numbers_known = False
    fixture.stage.waiting.append(Results(rows_of(ROW)))
    processor = fixture.start()
    batch(processor, 5)
    assert processor.process_retry_pass(5) is not None
    processor = fixture.start()
    fixture.steps.clear()
    assert batch(processor, 5).repeated
    assert fixture.steps == [f"finished {batch_number(5)}"]


def test_state_that_is_far_ahead_of_the_batch_is_refused(fixture: ProcessorFixture) -> None:
    """Spark's part of the checkpoint was deleted: treating its first batch as a repeat would lose messages."""
    fixture.sink.numbers_known = False
    batch(fixture.start(), 5)
    with pytest.raises(StateLost, match="already that of batch 5"):
        batch(fixture.start(), 3)


def test_redriven_dead_letters_are_not_in_the_history(fixture: ProcessorFixture, tmp_path: Path) -> None:
    """Their key continued without them, at an operator's request. A crash before the commit makes no difference."""
    fixture.history = tmp_path / "history"
    newer, late = ("t", 0, 6, "k"), frozenset({("t", "broker-a", 0, 5)})
    fixture.stage.waiting += [Results(rows_of(newer)), Results(rows_of(ROW, ("t", 0, 7, "k")), late=late)]
    processor = fixture.start()
    processor.process_retry_pass(4)
    fixture.sink.before_write = power_cut
    with pytest.raises(OSError, match="power cut"):
        processor.process_retry_pass(4)
    fixture.sink.before_write = nothing
    assert fixture.start().finish_retry_pass() is not None
    fixture.crash()
    assert fixture.sink.rows == [newer, ROW, ("t", 0, 7, "k")]
    found = json.loads(CliRunner().invoke(check, [str(fixture.history), "--json"]).output)
    assert (found["violations"], found["coverage"]["effects"]) == ([], 2)


def power_cut(batch: Batch) -> None:
    raise OSError("power cut")


def nothing(batch: Batch) -> None:
    """The power is back."""


def test_the_history_has_each_effect_once(
    fixture: ProcessorFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the sink already had the batch, nothing is recorded: the history would show the effect twice."""
    fixture.history = tmp_path / "history"
    fixture.stage.waiting += [Results(rows_of(ROW, ROW, ("t", 0, 6, "k")))]
    fixture.sink.numbers_known = False
    processor = fixture.start()
    with monkeypatch.context() as patched:
        patched.setattr(Units, "complete", power_cut)
        with pytest.raises(OSError, match="power cut"):
            processor.process_retry_pass(4)
    done = fixture.start().finish_retry_pass()
    assert done is not None
    assert done.repeated
    fixture.crash()
    (file,) = fixture.history.iterdir()
    assert file.read_text().count('"effect"') == 2
    verdict = CliRunner().invoke(check, [str(fixture.history), "--json"])
    found = json.loads(verdict.output)
    assert (found["violations"], found["coverage"]["effects"]) == ([], 2)


def test_a_history_of_rows_without_coordinates_is_refused(fixture: ProcessorFixture, tmp_path: Path) -> None:
    fixture.history = tmp_path / "history"
    fixture.stage.schema = type(fixture.stage.schema)([field for field in fixture.stage.schema if field.name != "key"])
    with pytest.raises(InvalidOption, match="history: the outputs have no column key"):
        fixture.start()


@pytest.mark.parametrize("whole", [True, False])
def test_missing_offsets_are_logged_only_if_the_stage_sees_every_message(
    fixture: ProcessorFixture, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    fixture.stage.waiting.append(Results(rows_of(), counts={"missing": 7}))
    fixture.start(whole=whole).process_retry_pass(4)
    assert ("7 offsets had no message" in caplog.text) is whole


def test_a_due_retry_pass_follows_the_last_batch_that_is_done(fixture: ProcessorFixture) -> None:
    processor = fixture.start()
    assert processor.process_due() is None
    assert fixture.steps == []
    fixture.stage.waiting.append(Results(rows_of(ROW)))
    assert processor.process_due() is not None
    assert fixture.sink.numbers == [batch_number(4, 1)]


def test_sinks_are_given_the_runs_of_the_checkpoint(fixture: ProcessorFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, ...]] = []
    for sink in (fixture.sink, fixture.dead):
        monkeypatch.setattr(sink, "open", lambda run: given.append(run.runs.epochs))
    fixture.start()
    (one, two), (checkpoint, _) = given, fixture.held[0]
    assert one == two
    assert one[-1] == checkpoint.epoch
