"""A batch whose step answers differently the second time has one result, wherever the first attempt died.

The real stages and sinks, without a JVM: a crash is an error raised inside a sink's commit.
"""

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipelines.fakes import FakeSink, FakeStage, rows_of
from tests.pipelines.stages.cdc.replica_fixture import Frame, messages
from tests.pipelines.stages.transitions.pipeline_fixture import FakeFrame, FakeSpark, Sent, arrow, never

from lanemq.files import StorePath, create, write_durably
from lanemq.files.objects import ObjectPath
from lanemq.model.errors import OrderError, SinkFenced, StateLost, UsageError
from lanemq.pipelines import (
    DeadLetter,
    Event,
    ForeachSink,
    LastState,
    ParquetSink,
    SqliteSink,
    Transitions,
)
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint import run_log
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, run_log_folder, stage_folder
from lanemq.pipelines.checkpoint.run_log import RunLog, read_log
from lanemq.pipelines.checkpoint.unit_record import UNIT, unit_in
from lanemq.pipelines.checkpoint.units import Units
from lanemq.pipelines.operate.parked import show
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, Append, FileRows, Results, RowFile, SinkRun
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.pipelines.stages.transitions.operator_requests import request_redrive

NUMBER = batch_number(0)
END = {"orders": {"broker-a/0": 3}}


class PowerCut(Exception):
    """The driver died."""


class Service:
    """A service that the step calls, with a count of its calls: a decided batch makes none."""

    up = True
    calls = 0


def asking(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    Service.calls += 1
    if not Service.up and event.value["n"] == 1:
        raise ConnectionError("the service is away")
    return (state or 0) + 1, [{"key": event.key, "n": event.value["n"]}]


class DyingSqliteSink(SqliteSink):
    """Raises where the test wants it to."""

    dies: Callable[[], None] | None = None

    def write(self, rows: Any, batch: Batch) -> bool:
        if self.dies is not None:
            self.dies()
        return super().write(rows, batch)


class Run:
    """One checkpoint with its sinks; `start` starts a new run."""

    def __init__(self, folder: Path, checkpoint: StorePath) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.sink: Any = DyingSqliteSink(folder / "rows.db", "rows")
        self.stage: Any = None
        self.held: list[tuple[Checkpoint, BatchProcessor]] = []
        self.spark_recorded(planned=0, done=-1)

    def start(self) -> BatchProcessor:
        self.crash()
        checkpoint = Checkpoint(self.checkpoint, "orders")
        self.stage = self.make_stage()
        dead = ParquetSink(self.folder / "dead")
        processor = BatchProcessor(self.stage, self.sink, dead, checkpoint, EffectHistory(None, "orders"))
        self.held.append((checkpoint, processor))
        processor.open(FakeSpark(never))  # type: ignore[arg-type]
        return processor

    def spark_recorded(self, planned: int, done: int) -> None:
        write_durably(self.checkpoint / "metadata", b'{"id": "1"}')
        for name, last in (("offsets", planned), ("commits", done)):
            for batch in range(last + 1):
                end = f'v1\n{{}}\n{{"orders": {{"broker-a/0": {batch + 3}}}}}'
                write_durably(self.checkpoint / name / str(batch), end.encode())

    def make_stage(self) -> Any:
        return Transitions(step=asking, outputs="key string, n long", on_failure=DeadLetter(skip=True))

    def frame(self) -> Any:
        sent = [Sent(0, 0, "a", {"n": 0}), Sent(0, 1, "a", {"n": 1}), Sent(0, 2, "b", {"n": 2})]
        return FakeFrame([[arrow(sent)]], never)

    def crash(self) -> None:
        while self.held:
            checkpoint, processor = self.held.pop()
            processor.close()
            checkpoint.close()

    def rows(self) -> list[int]:
        with sqlite3.connect(self.folder / "rows.db") as database:
            found = [n for (n,) in database.execute("select n from rows order by n")]
        database.close()
        return found

    def dead_offsets(self) -> list[int]:
        import pyarrow.dataset as ds

        files = [str(path) for path in (self.folder / "dead").rglob("*.parquet")]
        return sorted(ds.dataset(files).to_table()["queue_offset"].to_pylist()) if files else []

    def decided(self) -> list[int]:
        """The number of the unit that is decided, if there is one. Its rows are there exactly as long."""
        unit = unit_in(read_log(run_log_folder(self.checkpoint)).records)
        folder = self.checkpoint / "lanemq" / "decided"
        found = [] if unit is None or unit.decided is None else [unit.number]
        assert len(list(folder.iterdir()) if folder.is_dir() else []) == len(found)
        return found

    @property
    def state(self) -> StorePath:
        return stage_folder(self.checkpoint)


ANYWHERE = pytest.mark.parametrize("run", ["local", "objects"], indirect=True)
"""The checkpoint is on a local disk, and in an object store."""


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    local = getattr(request, "param", "local") == "local"
    checkpoint: StorePath = tmp_path / "checkpoint" if local else ObjectPath("memory://", uuid.uuid4().hex)
    Checkpoint(checkpoint, "orders").close()
    Service.up, Service.calls = True, 0
    made = Run(tmp_path, checkpoint)
    yield made
    made.crash()


def cut() -> None:
    raise PowerCut


@ANYWHERE
def test_a_decided_dead_letter_stays_one_when_the_step_would_succeed_later(run: Run) -> None:
    """Otherwise the message would be in the dead letters of the first attempt and in the rows of the second."""
    Service.up, run.sink.dies = False, cut
    with pytest.raises(PowerCut):
        run.start().process_batch(run.frame(), 0)
    asked = Service.calls
    Service.up, run.sink.dies = True, None
    done = run.start().process_batch(run.frame(), 0)
    assert (run.rows(), run.dead_offsets()) == ([0, 2], [1])
    assert (Service.calls, done.outputs, done.dead_letters) == (asked, 2, 1)
    assert show(run.state, "a")[0].state == 1, "the state is the decided one"


STEPS = [
    (RunLog, "record"),
    (Transitions, "continue_from"),
    (ParquetSink, "write"),
    (SqliteSink, "write"),
    (Units, "complete"),
    (Transitions, "finished"),
]
"""The steps of a decided batch behind its computation, in order: dead letters go to the Parquet folder."""


@ANYWHERE
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[f"{owner.__name__}.{step}" for owner, step in STEPS])
def test_a_driver_that_dies_at_any_step_leaves_every_message_in_one_table_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, owner: type, step: str, when: str
) -> None:
    """The step's answers differ in the second run, so a batch that is decided twice is visible."""
    real = getattr(owner, step)

    def dies(*args: Any, **options: Any) -> Any:
        if step == "record" and args[1] != UNIT:
            return real(*args, **options)
        if when == "after":
            real(*args, **options)
        raise PowerCut

    Service.up = False
    processor = run.start()
    with monkeypatch.context() as patched:
        patched.setattr(owner, step, dies)
        with pytest.raises(PowerCut):
            processor.process_batch(run.frame(), 0)
    Service.up = True
    run.start().process_batch(run.frame(), 0)
    counts = (step, when) != ("record", "before")
    assert (run.rows(), run.dead_offsets()) == (([0, 2], [1]) if counts else ([0, 1, 2], []))
    run.spark_recorded(planned=1, done=0)
    run.start().process_batch(FakeFrame([[arrow([Sent(0, 3, "a", {"n": 3})])]], never), 1)  # type: ignore[arg-type]
    assert show(run.state, "a")[0].state == (2 if counts else 3)
    assert run.decided() == []


@ANYWHERE
def test_a_decided_row_is_not_lost_when_the_second_attempt_would_fail(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reverse: the dead letters of the batch are committed, and the second attempt has one more."""

    def fails_differently(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        if event.value["n"] == (0 if Service.up else 2):
            raise ConnectionError("the service is away")
        return state, [{"key": event.key, "n": event.value["n"]}]

    stage = lambda: Transitions(  # noqa: E731
        step=fails_differently, outputs="key string, n long", on_failure=DeadLetter(skip=True)
    )
    monkeypatch.setattr(run, "make_stage", stage)
    run.sink.dies = cut
    with pytest.raises(PowerCut):
        run.start().process_batch(run.frame(), 0)
    Service.up, run.sink.dies = False, None
    run.start().process_batch(run.frame(), 0)
    assert sorted([*run.rows(), *run.dead_offsets()]) == [0, 1, 2], "every message once, in one of the two"


@ANYWHERE
def test_the_state_of_a_decided_batch_counts_before_any_retry_pass(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a retry pass would work on state from before the decision."""

    def dies(stage: Transitions, state: str) -> None:
        raise PowerCut

    Service.up = False
    with monkeypatch.context() as patched:
        processor = run.start()
        patched.setattr(Transitions, "continue_from", dies)
        with pytest.raises(PowerCut):
            processor.process_batch(run.frame(), 0)
    place = run.state
    request_redrive(place, everything=True)
    processor = run.start()
    assert show(place, "a")[0].state == 1
    assert processor.due() is None
    processor.process_batch(run.frame(), 0)
    assert (run.rows(), run.dead_offsets()) == ([0, 2], [1])


def test_a_batch_without_dead_letters_needs_no_decision(run: Run) -> None:
    """Rows and number are one commit of the sink, so no partial result is possible."""
    made: list[int] = []
    run.sink.dies = lambda: made.extend(run.decided())
    run.start().process_batch(run.frame(), 0)
    assert (made, run.rows()) == ([], [0, 1, 2])


@ANYWHERE
def test_a_sink_that_may_have_part_of_a_batch_gets_the_same_rows_again(run: Run) -> None:
    seen: list[list[int]] = []

    def take(rows: pa.Table, batch: Batch) -> None:
        seen.append(rows["n"].to_pylist())
        if len(seen) == 1:
            raise PowerCut

    run.sink = ForeachSink(take)
    with pytest.raises(PowerCut):
        run.start().process_batch(run.frame(), 0)
    Service.up = False
    run.start().process_batch(run.frame(), 0)
    assert seen == [[0, 1, 2], [0, 1, 2]]
    assert run.dead_offsets() == []
    assert run.decided() == []
    assert run.start().process_batch(run.frame(), 0).repeated, "Spark has not recorded the batch, so it may come again"
    assert len(seen) == 2


@ANYWHERE
def test_the_rows_of_a_decided_batch_are_there_until_the_sinks_have_it(run: Run) -> None:
    Service.up, made = False, []
    run.sink.dies = lambda: made.extend(run.decided())
    run.start().process_batch(run.frame(), 0)
    assert (made, run.decided()) == ([NUMBER], [])


@ANYWHERE
def test_a_batch_that_no_sink_has_is_computed_again_from_the_state_before_it(run: Run) -> None:
    """One commit follows, so nothing of it has happened; an operator's view has the state already."""
    run.start().process_batch(run.frame(), 0)
    run.spark_recorded(planned=1, done=0)
    more: Any = FakeFrame([[arrow([Sent(0, 3, "a", {"n": 3})])]], never)
    run.sink.dies = cut
    with pytest.raises(PowerCut):
        run.start().process_batch(more, 1)
    assert show(run.state, "a")[0].state == 3
    run.sink.dies = None
    assert not run.start().process_batch(more, 1).repeated
    assert (run.rows(), show(run.state, "a")[0].state) == ([0, 1, 2, 3], 3)


@ANYWHERE
def test_a_batch_that_the_sink_has_is_not_computed_again_and_its_state_counts(run: Run) -> None:
    run.start().process_batch(run.frame(), 0)
    asked = Service.calls
    again = run.start()
    assert again.process_batch(run.frame(), 0).repeated
    run.spark_recorded(planned=1, done=0)
    again.process_batch(FakeFrame([[arrow([Sent(0, 3, "a", {"n": 3})])]], never), 1)  # type: ignore[arg-type]
    assert (run.rows(), show(run.state, "a")[0].state, Service.calls) == ([0, 1, 2, 3], 3, asked + 1)


@ANYWHERE
def test_batches_of_last_state_are_decided_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "make_stage", lambda: LastState("id bigint, n bigint", ["id"]))
    frame: Any = Frame(messages([(None, {"id": 1, "n": 5}), (None, b"poison")]))
    run.sink.dies = cut
    with pytest.raises(PowerCut):
        run.start().process_batch(frame, 0)
    assert run.decided() == [NUMBER]
    run.sink.dies = None
    run.start().process_batch(Frame(messages([])), 0)  # type: ignore[arg-type]
    assert (run.rows(), run.dead_offsets()) == ([5], [1])


def test_a_replaced_run_decides_nothing(run: Run) -> None:
    """On a shared disk whose locks do not hold, the older driver may be processing the same batch."""
    old = run.start()
    RunLog(run_log_folder(run.checkpoint), lambda runs: 99 << 32)
    Service.up = False
    with pytest.raises(SinkFenced, match="replaced by run 99"):
        old.process_batch(run.frame(), 0)
    assert run.decided() == []
    assert show(run.state, "a") == [], "nor does its state count"


def test_a_run_replaced_after_its_check_changes_no_state(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check and the write are two steps; a newer run may start between them."""
    processor, folder = run.start(), run.folder / "checkpoint"

    def replaced(log: RunLog) -> None:
        monkeypatch.setattr("lanemq.pipelines.checkpoint.checkpoint._try_lock", lambda fd: True)
        Checkpoint(folder, "orders").close()

    monkeypatch.setattr(RunLog, "refuse_if_replaced", replaced)
    with pytest.raises(SinkFenced, match=r"run 2 of the pipeline .* was replaced"):
        processor.process_batch(run.frame(), 0)
    assert (run.rows(), show(folder / "lanemq" / "stage", "a")) == ([], [])


def test_new_queues_are_refused_before_the_step_runs(run: Run) -> None:
    run.start().process_batch(run.frame(), 0)
    asked = Service.calls
    run.spark_recorded(planned=1, done=0)
    planned = run.folder / "checkpoint" / "offsets" / "1"
    planned.write_text(planned.read_text().replace('"broker-a/0": 4', '"broker-a/0": 4, "broker-a/1": 0'))
    with pytest.raises(OrderError, match="topic orders had 1 queues and now has broker-a/1 too"):
        run.start().process_batch(run.frame(), 1)
    assert Service.calls == asked


def results(path: Path, n: int, state: str = "") -> Results:
    import pyarrow.parquet as pq

    schema = StructType([StructField("n", StringType())])
    pq.write_table(pa.table({"n": [str(n)]}), path)
    return Results(FileRows(schema, [RowFile("q", path, 1)]), counts={"events": n}, state=state)


def units(folder: Path, epoch: int = 3) -> Units:
    """The last unit as a new run finds it."""
    made = Units(RunLog(folder / "log", lambda runs: epoch << 32), folder / "decided")
    made.open(lambda unit: False)
    return made


def decide(folder: Path, results: Results, batch: Batch) -> Results:
    return units(folder).record(batch, results, END, decide=True, whole=False)


def test_of_two_runs_only_the_newest_decides(tmp_path: Path) -> None:
    older, newer = units(tmp_path, 3), units(tmp_path, 4)
    with pytest.raises(SinkFenced):
        older.record(Batch("q", 7, 3 << 32), results(tmp_path / "a", 1, "one"), END, decide=True, whole=False)
    mine = newer.record(Batch("q", 7, 4 << 32), results(tmp_path / "b", 2, "two"), END, decide=True, whole=False)
    assert (mine.state, mine.outputs.table()["n"].to_pylist()) == ("two", ["2"])
    assert units(tmp_path, 5).last == 7
    assert len(list((tmp_path / "decided").iterdir())) == 1, "a start removes what the older run had written"


def test_a_run_that_opens_late_removes_no_rows_of_the_run_that_replaced_it(tmp_path: Path) -> None:
    """On a remote store a start may hang while another one decides a batch, whose rows nothing else has."""
    batch = Batch("q", 7, 4 << 32)
    late = Units(RunLog(tmp_path / "log", lambda runs: 3 << 32), tmp_path / "decided")
    newer = units(tmp_path, 4)
    newer.record(batch, results(tmp_path / "a", 1), END, decide=True, whole=False)
    with pytest.raises(SinkFenced, match="replaced by run 4"):
        late.open(lambda unit: False)
    found = newer.decided(batch, StructType([StructField("n", StringType())]), END)
    assert found.outputs.table()["n"].to_pylist() == ["1"]


def test_a_decision_whose_answer_is_lost_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run takes it for a refusal, because the next one has removed the entry before it could be read again."""
    batch, made, older = Batch("q", 7, 3 << 32), results(tmp_path / "a", 1), units(tmp_path, 3)
    with monkeypatch.context() as lost:
        lost.setattr(run_log, "create", lambda path, content: create(path, content) and False)
        with pytest.raises(SinkFenced):
            older.record(batch, made, END, decide=True, whole=False)
    found = units(tmp_path, 4).decided(batch, made.outputs.schema, END)
    assert found.outputs.table()["n"].to_pylist() == ["1"]


def test_a_decided_unit_keeps_its_own_files_and_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    batch, made = Batch("q", 7, 3 << 32), results(tmp_path / "a", 1)
    decide(tmp_path, made, batch)
    (tmp_path / "a").unlink()
    (tmp_path / "decided" / "8-3-x").mkdir()
    after = units(tmp_path)
    assert len(list((tmp_path / "decided").iterdir())) == 1
    assert after.decided(batch, made.outputs.schema, END).outputs.table()["n"].to_pylist() == ["1"]
    after.complete()
    assert list((tmp_path / "decided").iterdir()) == []
    assert (after.pending, after.last, units(tmp_path).pending, units(tmp_path).last) == (None, 7, None, 7)


def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def refuse(source: Path, target: Path) -> None:
        if target.suffix == ".parquet":
            raise OSError("no links here")
        link(source, target)

    monkeypatch.setattr("os.link", refuse)
    made = decide(tmp_path, results(tmp_path / "a", 1), Batch("q", 7, 3 << 32))
    assert made.outputs.table()["n"].to_pylist() == ["1"]


def test_dead_letters_decided_by_an_older_version_can_be_written(tmp_path: Path) -> None:
    """It had two columns less, so without a conversion the batch could never be completed."""
    before = StructType([field for field in DEAD_LETTER_SCHEMA if field.name not in ("tags", "waits")])
    letter = {"topic": "orders", "queue_offset": 7, "reason": "x", "attempts": 1, "batch": 0}
    path = tmp_path / "dead.parquet"
    pq.write_table(pa.Table.from_pylist([letter], schema=to_arrow_schema(before, timezone="UTC")), path)
    made = Results(results(tmp_path / "a", 1).outputs, FileRows(before, [RowFile("a", path, 1)]))
    found = decide(tmp_path, made, Batch("orders", NUMBER, 1 << 32))
    assert found.dead_letters is not None
    sink = ParquetSink(tmp_path / "dead")
    sink.open(SinkRun(None, "orders-dead", 1, DEAD_LETTER_SCHEMA, Append()))  # type: ignore[arg-type]
    assert sink.write(found.dead_letters, Batch("orders-dead", NUMBER, 1))
    (written,) = (tmp_path / "dead").rglob("*.parquet")
    (row,) = pq.ParquetFile(written).read().to_pylist()
    assert (row["queue_offset"], row["tags"], row["waits"]) == (7, None, None)


def test_a_decided_unit_with_other_columns_is_refused(tmp_path: Path) -> None:
    batch = Batch("q", 7, 3 << 32)
    decide(tmp_path, results(tmp_path / "a", 1), batch)
    with pytest.raises(UsageError, match="decided by run 3 with other columns"):
        units(tmp_path).decided(batch, StructType([StructField("m", StringType())]), END)


def test_a_retry_pass_without_rows_writes_nothing(run: Run) -> None:
    """Otherwise a key that is retried every second would cause a commit every second."""
    run.sink, stage = FakeSink(), FakeStage()
    run.make_stage = lambda: stage  # type: ignore[method-assign]
    run.spark_recorded(planned=0, done=0)
    processor = run.start()
    stage.waiting += [Results(rows_of(), counts={"held": 1}), Results(rows_of(("t", 0, 1, "k")))]
    assert processor.process_retry_pass(0) is not None
    assert (run.sink.numbers, run.decided()) == ([], [])
    assert processor.process_retry_pass(0) is not None
    assert run.sink.numbers == [batch_number(0, 2)]
    assert stage.steps[1] == f"finished {batch_number(0, 1)}"


def test_stale_rows_are_counted_in_the_progress(run: Run) -> None:
    run.sink = FakeSink()
    run.sink.last_stale = 3
    run.make_stage = lambda: FakeStage()  # type: ignore[method-assign]
    done = run.start().process_batch(None, 0)  # type: ignore[arg-type]
    assert done.counts["stale"] == 3


def test_a_decision_about_other_messages_is_refused(run: Run) -> None:
    """A power cut removed Spark's plan of the batch but not the decision: the new plan holds more messages."""
    Service.up, run.sink.dies = False, cut
    with pytest.raises(PowerCut):
        run.start().process_batch(run.frame(), 0)
    run.sink.dies = None
    planned = run.folder / "checkpoint" / "offsets" / "0"
    processor = run.start()
    planned.write_text(planned.read_text().replace(": 3", ": 6"))
    with pytest.raises(StateLost, match=r"up to .*'broker-a/0': 3.*planned it up to .*'broker-a/0': 6"):
        processor.process_batch(run.frame(), 0)
    assert run.rows() == []
    planned.unlink()
    with pytest.raises(StateLost, match=r"decided by run 2 for messages up to"):
        run.start()


def test_what_spark_planned_is_on_the_disk_before_the_first_commit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not wait for the disk, but the sink does, so it could have a batch that Spark's log has lost."""
    synced: list[str] = []
    monkeypatch.setattr("lanemq.pipelines.checkpoint.checkpoint.sync", lambda path: synced.append(path.name))
    before: list[list[str]] = []
    run.sink.dies = lambda: before.append(list(synced))
    run.start().process_batch(run.frame(), 0)
    assert before == [["0", "offsets"]]
