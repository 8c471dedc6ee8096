"""What runs in Spark's tasks: rows in, one answer out.

A task streams its rows; it keeps only the state of its shards and the rows of one row group in memory. If it has many
shards, it finishes those whose rows have passed as soon as their states exceed what a worker may keep. Errors that
would be the same at every attempt are answers, not failures of the task.

Invariants: rows and change are complete before the task answers. Rows go to a file of the attempt's own, and the answer
names it: of two attempts of a task, only the one that Spark took counts. A row that does not fit its columns fails its
event, not the batch.
"""

import gc
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from lanemq.files import Output, StorePath
from lanemq.model.errors import LaneError, UsageError
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA
from lanemq.pipelines.stages.transitions.event_time import EventTime
from lanemq.pipelines.stages.transitions.machine import ShardMachine
from lanemq.pipelines.stages.transitions.messages import (
    OnTimer,
    QueueSlice,
    Step,
    decoder,
    empty_decoder,
    queue_slices,
)
from lanemq.pipelines.stages.transitions.operator_requests import (
    NO_ACTIONS,
    RedrivenDeadLetter,
    Redrives,
    RequestedActions,
)
from lanemq.pipelines.stages.transitions.output_values import UNCHANGED, check_value
from lanemq.pipelines.stages.transitions.rules import (
    Number,
    OnGap,
    Policy,
    Rules,
    StateLimits,
    error_text,
    numbering,
)
from lanemq.pipelines.stages.transitions.shard import CACHE, PARKED_AT, LaneCodec, ShardFiles, Version, exceed
from lanemq.pipelines.stages.transitions.state_schema import UpgradeState
from lanemq.pipelines.stages.transitions.timers import takes_context
from lanemq.pipelines.text_limits import TextLimit
from lanemq.spark.versions import to_arrow_schema

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
    on_timer: OnTimer | None = None
    event_time: EventTime = field(default_factory=EventTime)
    upgrade_state: UpgradeState | None = None
    text_limits: tuple[TextLimit, ...] = ()

    def rules(self) -> Rules:
        """The rules for the machine. Raises `InvalidOption` for options that have no meaning."""
        return Rules(
            step=self.step,
            decode=decoder(self.decode),
            shape=RowShape(to_arrow_schema(self.outputs), self.text_limits),
            policy=self.policy,
            limits=self.limits,
            codec=LaneCodec(self.state_type, self.upgrade_state),
            number=numbering(self.sequence),
            on_gap=self.on_gap,
            first_number=self.first_number,
            by_queue=self.by_queue,
            one_queue_per_key=self.one_queue_per_key,
            decode_empty=empty_decoder(self.decode),
            on_timer=self.on_timer,
            event_time=self.event_time,
            timed=takes_context(self.step),
        )


@dataclass(frozen=True, slots=True)
class UnitInputs:
    """What every task of a unit of work is sent."""

    options: StageOptions
    stage_folder: StorePath
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
    watermark: int = 0
    """How far event time has come by what all queues have read; 0: unknown."""
    idle: tuple[str, ...] = ()
    """Idle queues, whose keys continue with this watermark. Keys in several queues always do."""

    def watermark_of(self, shard: str) -> int:
        """What other queues say about event time in a shard; 0 if nothing."""
        return self.watermark if not self.options.by_queue or shard in self.idle else 0

    def redriven_dead_letters(self, shard: str) -> Iterator[RedrivenDeadLetter]:
        """The dead letters of one shard."""
        redrives = Redrives(self.stage_folder)
        for ident in self.redrives:
            yield from (each for each in redrives.dead_letters(ident) if self._shard_of(each) == shard)

    def _shard_of(self, dead_letter: RedrivenDeadLetter) -> str:
        return dead_letter.queue if self.options.by_queue else self.lane_shards[dead_letter.lane]


class TimerSummary(msgspec.Struct, frozen=True):
    """The timers of a shard and its event time."""

    keys: int = 0
    """Keys with timers that do not wait."""
    event: int | None = None
    """When the first timer is due in event time, milliseconds."""
    processing: int | None = None
    """When the first timer is due in processing time, milliseconds."""
    newest: dict[str, int] = {}
    """By queue: the highest event time that this unit has read, milliseconds."""


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
    late: list[tuple[str, str, int, int]] = []
    """Topic, queue and offset of redriven dead letters that were applied."""
    timers: TimerSummary = TimerSummary()


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
    rules, limits = unit.options.rules(), unit.options.limits
    open_shards: dict[str, ShardUpdate] = {}
    finished: dict[str, ShardSummary] = {}
    with ExitStack() as stack:
        for batch in batches:
            for name, messages in queue_slices(batch):
                shard = open_shards.get(name)
                if shard is None:
                    _refuse_mixed(name, finished)
                    while open_shards and _exceed(open_shards.values(), limits):
                        first = next(iter(open_shards))
                        finished[first] = open_shards.pop(first).finish()
                    shard = open_shards[name] = stack.enter_context(ShardUpdate(unit, rules, name))
                shard.take(messages)
        return [*finished.values(), *(shard.finish() for shard in open_shards.values())]


def _exceed(shards: Collection["ShardUpdate"], limits: StateLimits) -> bool:
    states = [each.shard for each in shards]
    return exceed(states, limits.max_cache_keys_per_worker, limits.max_cache_bytes_per_worker)


def _refuse_mixed(name: str, finished: Collection[str]) -> None:
    if name in finished:
        raise UsageError(
            f"rows of {name} come again after those of other queues. Its state is not in memory any more, because the "
            f"states of a task's queues exceed max_cache_keys_per_worker or max_cache_bytes_per_worker: let prepare "
            f"keep the rows of a queue together, or raise the limit"
        )


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
        self.shard = CACHE.take(self._files, unit.versions.get(shard, Version()))
        self.machine = ShardMachine(self.shard, rules, unit.wall, unit.watermark_of(shard))
        assert isinstance(rules.shape, RowShape)
        dead_shape = RowShape(to_arrow_schema(DEAD_LETTER_SCHEMA))
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
        """Calls timers that are due, writes rows and change to disk and puts the shard into the cache.

        Nothing else refers to the state afterwards, so it is in memory only as long as the cache keeps it.
        """
        while self.machine.call_due_timers(_ROWS_AT_ONCE):
            self._flush()
        change = self.machine.finish()
        self._flush()
        limits = self._unit.options.limits
        snapshot = self._files.save(self.shard, self._unit.number, change, limits.snapshot_every)
        CACHE.put(self._files, self.shard, limits.max_cache_keys_per_worker, limits.max_cache_bytes_per_worker)
        summary = self._summary(snapshot=snapshot)
        del self.shard, self.machine
        return summary

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
                message.stored * 1_000 or None,
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
        shard, meta = self.shard, self.shard.meta
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
            timers=self._timers(),
        )

    def _timers(self) -> TimerSummary:
        index = self.shard.timers
        return TimerSummary(len(index), index.next_due("event"), index.next_due("processing"), self.machine.event_times)


def work_folder(stage_folder: StorePath, number: int) -> StorePath:
    """Where the rows of a unit wait for the sinks."""
    return stage_folder / "work" / str(number)


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    text: str
    """The type's name, which Arrow puts together on each request."""


class RowShape:
    """Checks the rows that a step returns, one by one, against the columns of the outputs.

    Arrow columns are built from many rows at once, when the state of all their events has already changed: too late
    to find a value that does not fit. Combinations of value types that are known to fit are remembered.

    Invariant: a row is as it was when its event ended. A list in it may be part of the state, to which the step adds
    with the next event; so values that can change are copied.
    """

    def __init__(self, schema: pa.Schema, text_limits: Sequence[TextLimit] = ()) -> None:
        self.schema = schema
        self._limits = [(limit, [schema.names.index(name) for name in limit.columns]) for limit in text_limits]
        self._names = frozenset(schema.names)
        self._width = len(schema.names)
        self._columns = [_Column(each.name, each.type, str(each.type)) for each in schema]
        pick = itemgetter(*schema.names)
        self._get: Callable[[Mapping[str, object]], Any] = pick if self._width > 1 else lambda row: (pick(row),)
        # Types of rows that fit, with the columns whose integers and texts still have to be checked.
        self._known: dict[tuple[type, ...], tuple[list[tuple[int, int]], list[int]]] = {}

    def __call__(self, row: Mapping[str, object]) -> tuple[Any, ...]:
        """Returns the row's values in column order. Raises an error that says what is wrong with it."""
        if len(row) != self._width:
            row = self._filled(row)
        try:
            values: tuple[Any, ...] = self._get(row)
        except KeyError:
            raise self._unknown(row) from None
        known = self._known.get(tuple(map(type, values)))
        if known is None:
            values, known = self._try(values)
        bounds, texts = known
        for at, bound in bounds:
            if not -bound <= values[at] < bound:
                raise ValueError(f"output {self.schema.names[at]!r}: {values[at]} is too large for its column")
        for at in texts:
            if not values[at].isascii():
                self._check_text(at, values[at])
        for limit, places in self._limits:
            if not limit.admits(*(values[at] for at in places)):
                raise ValueError(f"output: {limit.why}")
        return values

    def _check_text(self, at: int, text: str) -> None:
        """Refuses lone surrogates, which JSON may contain and UTF-8 may not."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"output {self.schema.names[at]!r}: {text!r:.100} is not valid UTF-8 ({error})") from error

    def columns(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        """Converts checked rows to an Arrow table."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, column.type) for values, column in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _try(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[list[tuple[int, int]], list[int]]]:
        """Checks a row with a new combination of types, and remembers it if types alone decide whether a row fits.

        Returns the row with copies of the values that Arrow converts, and what still has to be checked.
        """
        bounds, texts, known, held = [], [], True, list(values)
        for at, (value, column) in enumerate(zip(values, self._columns, strict=True)):
            kind = type(value)
            if kind is type(None):
                continue
            if (kind, column.text) not in UNCHANGED:
                held[at] = self._check_value(value, column)
                known = False
            elif kind is int:
                bounds.append((at, 1 << (column.type.bit_width - 1)))
            elif kind is str:
                texts.append(at)
        if known:
            self._known[tuple(map(type, values))] = bounds, texts
        return tuple(held), (bounds, texts)

    def _check_value(self, value: object, column: _Column) -> object:
        try:
            return check_value(value, column.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"output {column.name!r}: {value!r} is not a {column.text} ({error})") from error

    def _filled(self, row: Mapping[str, object]) -> Mapping[str, object]:
        """The row with null for the columns that it leaves out."""
        filled = dict.fromkeys(self.schema.names) | dict(row)
        if len(filled) != self._width:
            raise self._unknown(row)
        return filled

    def _unknown(self, row: Mapping[str, object]) -> ValueError:
        extra = sorted(set(row) - self._names)
        return ValueError(f"output has columns {extra} that outputs= does not name; it names {self.schema.names}")


class RowWriter:
    """A Parquet file that is created with its first row."""

    def __init__(self, folder: StorePath, name: str, shape: RowShape) -> None:
        self._path = folder / f"{quote(name, safe='')}.{os.getpid()}-{os.urandom(4).hex()}.parquet"
        self._shape = shape
        self._file: pq.ParquetWriter | None = None
        self._output: Output | None = None
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
            self._output = Output(self._path)
            self._file = pq.ParquetWriter(self._output.target, self._shape.schema, compression="snappy")
        self._file.write_table(self._shape.columns(rows))
        self.rows += len(rows)

    def close(self, *, keep: bool) -> None:
        """Closes the file, and removes it unless `keep`."""
        if self._file is None or self._output is None:
            return
        self._file.close()
        self._output.close(keep=keep)
