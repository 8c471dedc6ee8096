"""What runs in Spark's tasks: rows in, one answer out.

A task streams its rows; it keeps only the state of its shards and the rows of one row group in memory. Errors that
would be the same at every attempt are answers, not failures of the task.

Invariant: rows and change are complete before the task answers. Rows go to a file of the attempt's own, and the answer
names it: of two attempts of a task, only the one that Spark took counts.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lanemq.model.errors import LaneError
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA
from lanemq.pipelines.stages.transitions.error_text import error_text
from lanemq.pipelines.stages.transitions.machine import ShardMachine
from lanemq.pipelines.stages.transitions.messages import QueueSlice, Step, decoder, empty_decoder, queue_slices
from lanemq.pipelines.stages.transitions.operator_requests import NO_ACTIONS, RequestedActions
from lanemq.pipelines.stages.transitions.redrives import RedrivenDeadLetter, Redrives
from lanemq.pipelines.stages.transitions.row_shape import RowShape
from lanemq.pipelines.stages.transitions.rules import Number, OnExpire, OnGap, Policy, Rules, StateLimits, numbering
from lanemq.pipelines.stages.transitions.shard import PARKED_AT, LaneCodec, Version
from lanemq.pipelines.stages.transitions.state_files import CACHE, ShardFiles

_ROWS_AT_ONCE: Final = 50_000
"""Rows that are gathered before they are written as a row group."""

ANSWER = "answer binary"
"""The schema of what a task returns."""


@dataclass(frozen=True, slots=True)
class StageOptions:
    """A stage's options as the user gave them. Unlike `Rules` they can be pickled."""

    step: Step
    outputs: StructType
    decode: Any
    state_type: Any
    policy: Policy
    sequence: str | Number | None
    on_gap: OnGap
    first_number: int | None
    limits: StateLimits
    by_queue: bool = True
    """Whether shards are queues."""
    one_queue_per_key: bool = False
    on_expire: OnExpire | None = None

    def rules(self) -> Rules:
        """The rules for the machine. Raises `InvalidOption` for options that have no meaning."""
        return Rules(
            step=self.step,
            decode=decoder(self.decode),
            shape=RowShape(to_arrow_schema(self.outputs, timezone="UTC")),
            policy=self.policy,
            limits=self.limits,
            codec=LaneCodec(self.state_type),
            number=numbering(self.sequence),
            on_gap=self.on_gap,
            first_number=self.first_number,
            by_queue=self.by_queue,
            one_queue_per_key=self.one_queue_per_key,
            on_expire=self.on_expire,
            decode_empty=empty_decoder(self.decode),
        )


@dataclass(frozen=True, slots=True)
class UnitInputs:
    """What every task of a unit of work is sent."""

    options: StageOptions
    stage_folder: Path
    query: str
    number: int
    wall: int
    """Wall time of the unit, milliseconds."""
    versions: dict[str, Version]
    """The version that each shard starts from; a shard that is not named starts empty."""
    actions: RequestedActions = NO_ACTIONS
    redrives: tuple[str, ...] = ()
    """Files of dead letters that a retry pass gives to the step again."""
    lane_shards: Mapping[str, str] = field(default_factory=dict)
    """The shards of those dead letters' lanes, if shards are not queues."""

    def redriven_dead_letters(self, shard: str) -> Iterator[RedrivenDeadLetter]:
        """The dead letters of one shard."""
        redrives = Redrives(self.stage_folder)
        for ident in self.redrives:
            yield from (each for each in redrives.dead_letters(ident) if self._shard_of(each) == shard)

    def _shard_of(self, dead_letter: RedrivenDeadLetter) -> str:
        return dead_letter.queue if self.options.by_queue else self.lane_shards[dead_letter.lane]


class ShardSummary(msgspec.Struct):
    """What a task reports about one shard."""

    shard: str
    version: Version
    snapshot: bool
    """Whether a snapshot was written."""
    keys: int
    waiting: int
    parked: int
    retry_at: int | None
    outputs: tuple[str, int]
    """The name of the file of outputs, and its rows; there is no file if there are no rows."""
    dead: tuple[str, int]
    """The same for dead letters."""
    counts: dict[str, int]
    late: list[tuple[str, int, int]] = []
    """Topic, queue and offset of redriven dead letters that were applied."""


class TaskRefusal(msgspec.Struct):
    """An error that is the same at every attempt, so that Spark need not repeat the task."""

    kind: str
    text: str


class TaskAnswer(msgspec.Struct):
    """The one row that a task returns."""

    shards: list[ShardSummary]
    refusal: TaskRefusal | None = None


pack_answer: Callable[[TaskAnswer], bytes] = msgspec.msgpack.Encoder().encode
unpack_answer: Callable[[bytes], TaskAnswer] = msgspec.msgpack.Decoder(TaskAnswer).decode


def apply_messages(unit: UnitInputs, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task of a batch: applies new messages, each in its shard."""
    try:
        yield _answer(TaskAnswer(_apply_all(unit, batches)))
    except LaneError as error:
        yield _answer(TaskAnswer([], TaskRefusal(type(error).__name__, error_text(error))))


def retry_lanes(unit: UnitInputs, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task of a retry pass: retries the held lanes of the shards that its rows name."""
    try:
        names = [name for batch in batches for name in batch.column("shard").to_pylist()]
        yield _answer(TaskAnswer([_retry(unit, name) for name in names]))
    except LaneError as error:
        yield _answer(TaskAnswer([], TaskRefusal(type(error).__name__, error_text(error))))


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Makes garbage collections rare: a unit's many objects live to its end, and tracing them took a quarter of it."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_rare_collection()
def _apply_all(unit: UnitInputs, batches: Iterator[pa.RecordBatch]) -> list[ShardSummary]:
    CACHE.drop_stale(unit.stage_folder, unit.query, unit.number, unit.versions)
    rules = unit.options.rules()
    open_shards: dict[str, ShardUpdate] = {}
    with ExitStack() as stack:
        for batch in batches:
            for name, messages in queue_slices(batch):
                shard = open_shards.get(name)
                if shard is None:
                    shard = open_shards[name] = stack.enter_context(ShardUpdate(unit, rules, name))
                shard.take(messages)
        return [shard.finish() for shard in open_shards.values()]


def _retry(unit: UnitInputs, name: str) -> ShardSummary:
    with ShardUpdate(unit, unit.options.rules(), name) as shard:
        shard.machine.retry(unit.actions)
        shard.machine.redrive(unit.redriven_dead_letters(name))
        return shard.finish()


def _answer(answer: TaskAnswer) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"answer": pa.array([pack_answer(answer)], pa.binary())})


class ShardUpdate:
    """One shard's part of a unit of work: its machine, its row files, its change.

    A context manager: after an error it leaves no file and nothing in memory.
    """

    def __init__(self, unit: UnitInputs, rules: Rules, shard: str) -> None:
        self._unit = unit
        self._name = shard
        self._files = ShardFiles(unit.stage_folder, unit.query, shard)
        self._base = unit.versions.get(shard, Version())
        self._shard = CACHE.take(self._files, self._base)
        self.machine = ShardMachine(self._shard, rules, unit.wall)
        assert isinstance(rules.shape, RowShape)
        dead_shape = RowShape(to_arrow_schema(DEAD_LETTER_SCHEMA, timezone="UTC"))
        folder = work_folder(unit.stage_folder, unit.number)
        self._outputs = RowWriter(folder, shard, rules.shape)
        self._dead = RowWriter(folder, f"{shard}.dead", dead_shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for writer in (self._outputs, self._dead):
            writer.close(keep=kind is None)

    def take(self, messages: QueueSlice) -> None:
        """Applies new messages of one queue."""
        self.machine.take(messages)
        if len(self.machine.table.outputs) + len(self.machine.held.dead) >= _ROWS_AT_ONCE:
            self._flush()

    def finish(self) -> ShardSummary:
        """Writes rows and change to disk and puts the shard into the cache."""
        change = self.machine.finish()
        self._flush()
        shard, meta, limits = self._shard, self._shard.meta, self._unit.options.limits
        # Changes with more keys than the shard has take longer to read than a snapshot; a few of them are cheap anyway.
        snapshot = meta.chain >= limits.snapshot_every or (meta.chain > 4 and meta.chained_keys > 2 * len(shard.lanes))
        if snapshot:
            meta.chain = meta.chained_keys = 0
        shard.version = self._files.write_change(self._unit.number, self._base, change)
        if snapshot:
            self._files.write_snapshot(shard)
        CACHE.put(self._files, shard, limits.max_cache_keys_per_worker, limits.max_cache_bytes_per_worker)
        return self._summary(snapshot=snapshot)

    def _flush(self) -> None:
        table, number = self.machine.table, self._unit.number
        self._outputs.write(table.outputs)
        table.outputs = []
        rows = [
            (
                message.topic,
                message.broker,
                message.queue_id,
                message.offset,
                key,
                message.value,
                message.message_id,
                message.stored * 1_000,
                reason,
                attempts,
                number,
                message.tags,
                waits,
            )
            for message, key, reason, attempts, waits in self.machine.held.dead
        ]
        self._dead.write(rows)
        self.machine.held.dead = []

    def _summary(self, *, snapshot: bool) -> ShardSummary:
        shard, meta = self._shard, self._shard.meta
        return ShardSummary(
            shard=self._name,
            version=shard.version,
            snapshot=snapshot,
            keys=len(shard.lanes),
            waiting=len(meta.waiting),
            parked=sum(at == PARKED_AT for at in meta.waiting.values()),
            retry_at=meta.retry_at(),
            outputs=(self._outputs.name, self._outputs.rows),
            dead=(self._dead.name, self._dead.rows),
            counts=dict(self.machine.counts),
            late=self.machine.table.late,
        )


def work_folder(stage_folder: Path, number: int) -> Path:
    """Where the rows of a unit wait for the sinks."""
    return stage_folder / "work" / str(number)


class RowWriter:
    """A Parquet file that is created with its first row."""

    def __init__(self, folder: Path, name: str, shape: RowShape) -> None:
        self._path = folder / f"{quote(name, safe='')}.{os.getpid()}-{os.urandom(4).hex()}.parquet"
        self._shape = shape
        self._file: pq.ParquetWriter | None = None
        self.rows = 0

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return self._path.name

    def write(self, rows: list[tuple[Any, ...]]) -> None:
        """Adds a row group."""
        if not rows:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._path, self._shape.schema, compression="snappy")
        self._file.write_table(self._shape.columns(rows))
        self.rows += len(rows)

    def close(self, *, keep: bool) -> None:
        """Closes the file, and removes it unless `keep`."""
        if self._file is None:
            return
        self._file.close()
        if not keep:
            self._path.unlink(missing_ok=True)
