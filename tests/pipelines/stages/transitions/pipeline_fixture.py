"""Runs `Transitions` without a JVM, with fake frames, a manual clock and a sink in memory.

Tests raise crashes through `Pipeline.lose`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import cloudpickle

from lanemq.model.units import Millis
from lanemq.pipelines import Event, Transitions
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import run_log_of_stage
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.checkpoint.unit_record import UNIT, UnitRecord, pack_unit, state_after_last_unit
from lanemq.pipelines.checkpoint.units import Units
from lanemq.pipelines.ports import Results
from lanemq.pipelines.stages.transitions.messages import COLUMNS
from lanemq.spark.columns import arrow_schema, select_columns

SCHEMA = arrow_schema(select_columns(COLUMNS))
QUERY = "query-1"
OUTPUTS = "key string, n long, seen long"


class Sent(NamedTuple):
    """A message of a test."""

    queue: int
    offset: int
    key: str | None
    value: object
    stamp: tuple[str, int, int] | None = None
    stored: int = 1_700_000_000_000


class Crash(Exception):
    """A crash of the driver, or the last failure of a task."""


class FakeClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.time = 1_000_000

    def now(self) -> Millis:
        return Millis(self.time)

    def wall(self) -> Millis:
        return Millis(self.time)


def body(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def arrow(messages: Sequence[Sent]) -> pa.RecordBatch:
    rows = [
        {
            "topic": "orders",
            "broker": "broker-a",
            "queue_id": each.queue,
            "queue_offset": each.offset,
            "key": each.key,
            "value": body(each.value),
            "message_id": f"id-{each.queue}-{each.offset}",
            "store_timestamp": datetime.fromtimestamp(each.stored / 1_000, UTC),
            "stamp": None
            if each.stamp is None
            else dict(zip(("producer", "epoch", "sequence"), each.stamp, strict=True)),
        }
        for each in messages
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


class FakeFrame:
    """Partitions of Arrow batches. `lose` is called before every partition, and with None after the last."""

    def __init__(self, partitions: Sequence[Sequence[pa.RecordBatch]], lose: Callable[[int | None], None]) -> None:
        self._partitions = partitions
        self._lose = lose
        self.columns = list(COLUMNS)

    def select(self, *_: str) -> "FakeFrame":
        return self

    def repartition(self, tasks: int, *_: object) -> "FakeFrame":
        """Every partition with all batches of its share, as tasks are given rows after a shuffle."""
        shares = [self._partitions[first::tasks] for first in range(tasks)]
        return FakeFrame([[batch for part in share for batch in part] for share in shares], self._lose)

    def mapInArrow(self, work: Any, _: str) -> "FakeFrame":
        self._work = cloudpickle.loads(cloudpickle.dumps(work))
        return self

    def collect(self) -> list[Any]:
        rows: list[Any] = []
        for number, partition in enumerate(self._partitions):
            self._lose(number)
            made: Iterator[pa.RecordBatch] = self._work(iter(partition))
            rows += [SimpleNamespace(**row) for batch in made for row in batch.to_pylist()]
        self._lose(None)
        return rows


class FakeSpark:
    """As much of a session as a retry pass uses."""

    def __init__(self, lose: Callable[[int | None], None]) -> None:
        self.lose = lose
        self.sparkContext = SimpleNamespace(defaultParallelism=2)

    def createDataFrame(self, rows: list[tuple[str]], _: str) -> FakeFrame:
        partitions = [[pa.RecordBatch.from_pylist([{"shard": name}])] for (name,) in rows]
        return FakeFrame(partitions, self.lose)


class Sink:
    """A sink in memory. It does not apply a batch number twice."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.dead: dict[int, list[dict[str, Any]]] = {}

    def write(self, results: Results, batch: Batch) -> None:
        if batch.number not in self.batches:
            assert not self.batches or batch.number > max(self.batches)
            self.batches[batch.number] = results.outputs.table().to_pylist()
            self.dead[batch.number] = [] if results.dead_letters is None else results.dead_letters.table().to_pylist()

    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def dead_rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.dead) for row in self.dead[number]]


def never(_: int | None) -> None:
    """Default for `lose`: no crash."""


def begin(stage: Transitions, spark: Any, folder: Path) -> None:
    """Opens a stage with the state that was recorded last."""
    stage.open(spark, folder)
    stage.continue_from(state_after_last_unit(run_log_of_stage(folder)))


def recorded(stage: Transitions, folder: Path, batch: Batch, results: Results) -> Results:
    """Records the state after a unit, as a pipeline does before a sink has it."""
    unit = UnitRecord(batch.number, batch.epoch, "", results.state, whole=True)
    RunLog(run_log_of_stage(folder), lambda runs: runs.newest + 1).record(UNIT, pack_unit(unit))
    stage.continue_from(results.state)
    return results


class Pipeline:
    """One stage, one sink, one clock. `restart` makes a new stage in the same folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options = {"step": counting, "outputs": OUTPUTS} | options
        self.clock = FakeClock()
        self.sink = Sink()
        self.batch = -1
        self.passes = 0
        self.lose: Callable[[int | None], None] = never
        self.restart()

    def restart(self, **options: Any) -> None:
        self.options |= options
        self.log = RunLog(run_log_of_stage(self.folder), lambda runs: runs.newest + 1)
        self.stage = Transitions(**self.options, clock=self.clock)
        self.stage.open(FakeSpark(lambda at: self.lose(at)), self.folder)  # type: ignore[arg-type]
        self._continue()

    def _continue(self) -> None:
        """As a start does: from the state after the last unit, if the sink has it, else from the one before."""
        self.units = Units(self.log, self.folder.parent / "decided")
        self.units.open(lambda unit: unit.number in self.sink.batches)
        self.stage.continue_from(self.units.state)

    def process(self, *messages: Sent, again: bool = False, settle: bool = True) -> dict[str, int]:
        """Runs the next batch, or the last one again, with a partition per queue. Returns the counts."""
        if not again:
            self.batch, self.passes = self.batch + 1, 0
        batch = Batch(QUERY, batch_number(self.batch), 1)
        if again:
            self._continue()
            if self.units.last is not None and self.units.last >= batch.number:
                self.stage.finished(batch)
                return {"repeated_batches": 1}
        queues = sorted({each.queue for each in messages})
        partitions = [[arrow([each for each in messages if each.queue == queue])] for queue in queues]
        return self._settle(self.stage.process(self.frame(partitions), batch), batch, settle=settle)

    def frame(self, partitions: Sequence[Sequence[pa.RecordBatch]]) -> Any:
        return FakeFrame(partitions, lambda at: self.lose(at))

    def process_retry_pass(self) -> dict[str, int] | None:
        """Runs the next retry pass. None if nothing was due."""
        at = self.passes + 1
        batch = Batch(QUERY, batch_number(self.batch, at), 1)
        results = self.stage.process_retry_pass(batch)
        if results is None:
            return None
        self.passes = at
        return self._settle(results, batch)

    def _settle(self, results: Results, batch: Batch, *, settle: bool = True) -> dict[str, int]:
        rows = results.outputs.count() + (0 if results.dead_letters is None else results.dead_letters.count())
        whole = batch.is_retry_pass and not rows
        self.units.record(batch, results, {}, decide=False, whole=whole)
        if results.state:
            self.stage.continue_from(results.state)
        if settle:
            if not whole:
                self.sink.write(results, batch)
            self.stage.finished(batch)
        return dict(results.counts)

    def outputs(self, key: str) -> list[int]:
        return [row["n"] for row in self.sink.rows() if row["key"] == key]


def counting(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    """A step that counts events. A value with "fails" fails that many times, after the step has changed the state."""
    state = {"seen": 0} if state is None else state
    state["seen"] += 1
    value = event.value if isinstance(event.value, dict) else {"n": event.value}
    if event.attempt <= value.get("fails", 0):
        raise ValueError(f"attempt {event.attempt} failed")
    if value.get("end"):
        return None, []
    return state, [{"key": event.key, "n": value["n"], "seen": state["seen"]}]


def messages(count: int, *, first: int = 0, keys: int = 3, queue: int = 0) -> list[Sent]:
    return [Sent(queue, at, f"key-{queue}-{at % keys}", at) for at in range(first, first + count)]
