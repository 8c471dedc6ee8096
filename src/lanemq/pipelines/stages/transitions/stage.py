"""`Transitions`: a stage that gives every event of a key to a step, in order, once.

The driver's part: it decides what a unit of work starts from, lets Spark's tasks do the work (`worker.py`), and turns
their answers into rows for the sinks and the state after it. A unit of work is a batch or a retry pass. The state is a
manifest (`manifest.py`), which the checkpoint keeps.

In the stage's folder:

    stage.json                options that must not change while state exists
    requests/, redrives/      what operators request, see operator_requests.py
    state/<shard>/...         see shard.py
    work/<number>/...         rows for the sinks

Invariants: missing state is noticed and never replaced by older state; a request of an operator is removed when the
state after its retry pass counts, and not before. There is no next manifest unless every task did its work and exactly
one task worked on each shard.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import hash as hash_of
from pyspark.sql.functions import lit, pmod
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock, wall_ms
from lanemq.files import StorePath, read_json, remove_tree, write_json
from lanemq.model.errors import Closed, InvalidOption, LaneError, LaneFrozen, OrderError, StateLost
from lanemq.model.units import Seconds, to_millis
from lanemq.pipelines.batches import NUMBERS_PER_BATCH, Batch
from lanemq.pipelines.checkpoint.queues import check_on_queue_change
from lanemq.pipelines.declare.ddl import parse_columns
from lanemq.pipelines.ports import (
    DEAD_LETTER_SCHEMA,
    Append,
    FileRows,
    OnQueueChange,
    QueueEnds,
    Results,
    RowFile,
    Sink,
    Stage,
)
from lanemq.pipelines.stages.transitions.carried_types import carry_types
from lanemq.pipelines.stages.transitions.event_time import EventTime, IdleQueues, QueueTime, common_watermark
from lanemq.pipelines.stages.transitions.manifest import EMPTY, Manifest, ShardEntry, pack_manifest, read_manifest
from lanemq.pipelines.stages.transitions.messages import COLUMNS, SHARD, OnTimer, Step
from lanemq.pipelines.stages.transitions.operator_requests import (
    FILES_PER_PASS,
    NO_ACTIONS,
    OperatorRequest,
    RedrivenDeadLetter,
    Redrives,
    RequestedActions,
    pending_requests,
    remove_request,
)
from lanemq.pipelines.stages.transitions.rules import (
    DeadLetter,
    FrozenOptions,
    Hold,
    Number,
    OnGap,
    Park,
    Policy,
    StateLimits,
    UnfitState,
)
from lanemq.pipelines.stages.transitions.shard import START, ShardFiles
from lanemq.pipelines.stages.transitions.state_schema import (
    UpgradeState,
    check_state_schema,
    check_state_type,
    state_schema,
)
from lanemq.pipelines.stages.transitions.timers import takes_context
from lanemq.pipelines.stages.transitions.worker import (
    ANSWER,
    ShardSummary,
    StageOptions,
    TaskAnswer,
    UnitInputs,
    apply_messages,
    retry_lanes,
    unpack_answer,
    work_folder,
)

MAX_OBSERVE_EVERY: Final = 5_000
"""Milliseconds between two requests to the brokers for the ends of queues, at most, so that idle queues are noticed."""
_NEEDED = (*COLUMNS[:5], "value", "store_timestamp")
_POSITION = ("topic", "broker", "queue_id", "queue_offset")
_REFUSALS: Final = {kind.__name__: kind for kind in (InvalidOption, LaneFrozen, OrderError, StateLost, UnfitState)}


class _Opened(NamedTuple):
    """What a stage has between `open` and its end."""

    spark: SparkSession
    folder: StorePath
    cleaned: dict[str, int]
    """The snapshot of each shard up to which files were removed."""


class _Unit(NamedTuple):
    """What a unit of work starts from."""

    base: Manifest
    wall: int
    """Wall time of the unit, milliseconds."""
    watermark: int
    """How far event time has come by what all queues have read, milliseconds; 0: unknown."""
    requests: tuple[OperatorRequest, ...] = ()
    shards: tuple[str, ...] = ()
    """Of a retry pass: the shards it works on."""
    redrives: tuple[str, ...] = ()
    """Of a retry pass: files of dead letters that it gives to the step again."""
    idle: tuple[str, ...] = ()
    """Of a retry pass: idle queues, whose keys continue with this watermark."""


class Transitions(Stage):
    """Gives every event of every key to `step(state, event) -> (state, rows)`, in order.

    If the step fails, or a body cannot be decoded, only that key is affected, as `on_failure` says.
    `docs/decisions/0010-pipelines.md` explains shards.

    Args:
        step: `step(state, event) -> (state, rows)`.
        outputs: Columns of the rows, such as `"order_id string, status string"`.
        decode: "json", "text", "bytes", a type for JSON (msgspec Struct, dataclass, TypedDict, Pydantic model) or a
            function.
        state_type: The type in which the step gets its state; default: dicts, lists, numbers, texts.
        upgrade_state: `upgrade_state(old) -> new`, for stored states that `state_type` cannot read: a function of the
            state as dicts, lists, numbers and texts.
        on_failure: What happens to a key whose step failed: `Hold` (the default), `Park` or `DeadLetter`.
        sequence: The field of the value (or a function of the event) that numbers a key's events 1, 2, 3 ...;
            repeats are dropped. It cannot be changed later.
        on_gap: "report" counts missing numbers and continues, "hold" makes the key wait for them, "fail" treats
            them as a failure. The default is "report", and "hold" with `shards=<number>`, where a key's events
            may be in several queues, which are read one after the other.
        first_number: The number that a key begins with; None: any.
        shards: "queue" for rows as the source gives them; a number for rows that were shuffled, or for keys that
            are in several queues, which then need `sequence`. It cannot be changed later.
        limits: Bounds on the state.
        on_queue_change: What to do when the topic has more queues than the state was made with or, with
            `shards=<number>` and without `sequence`, when a key is found in two queues. "fail", or "continue" if
            no key has moved or a moved key may start with no state; this cannot be checked then.
        on_timer: `on_timer(state, timer, context) -> (state, rows)`, called when a timer is due that the step set
            with `context.set_timer`. The step is then `step(state, event, context)`. If it fails, `on_failure`
            applies as for an event.
        event_time: How the stage knows when events happened; the default is when the broker stored them.
        timers_every: The shortest time in seconds between two retry passes for timers of keys without new messages.
            Each pass is a Spark job: below 0.5 Spark may do little else. Long: such timers are called late.
        clock: For tests.
    """

    columns: tuple[str, ...] = COLUMNS
    on_damaged = "null"
    """A damaged body arrives as null, which is poison for every `decode`; its packed bytes would not be for all."""
    how = Append()

    def __init__(
        self,
        *,
        step: Step,
        outputs: str | StructType,
        decode: Any = "json",
        state_type: Any = None,
        upgrade_state: UpgradeState | None = None,
        on_failure: Policy | None = None,
        sequence: str | Number | None = None,
        on_gap: OnGap | None = None,
        first_number: int | None = 1,
        shards: Literal["queue"] | int = "queue",
        limits: StateLimits | None = None,
        on_queue_change: OnQueueChange = "fail",
        on_timer: OnTimer | None = None,
        event_time: EventTime | None = None,
        timers_every: Seconds = 1.0,
        clock: Clock | None = None,
    ) -> None:
        by_queue, on_change = shards == "queue", check_on_queue_change(on_queue_change)
        self.schema = _columns_of(outputs)
        self.on_queue_change = on_change if by_queue else None
        self._shards = shards
        self._clock = clock or SystemClock()
        self._options = StageOptions(
            step=step,
            outputs=self.schema,
            decode=decode,
            state_type=state_type,
            policy=on_failure if on_failure is not None else Hold(),
            sequence=sequence,
            on_gap=on_gap if on_gap is not None else "report" if by_queue else "hold",
            first_number=first_number,
            limits=limits or StateLimits(),
            by_queue=by_queue,
            one_queue_per_key=not by_queue and sequence is None and on_change == "fail",
            on_timer=on_timer,
            event_time=event_time or EventTime(),
            upgrade_state=upgrade_state,
        )
        _check(self._options, shards)
        if event_time is not None and not takes_context(step):
            raise InvalidOption("event_time has no effect: give a step of (state, event, context)")
        self._timers_every = to_millis(timers_every)
        if self._timers_every < 1:
            raise InvalidOption(f"timers_every={timers_every}: use 0.001 seconds or more")
        self._opened: _Opened | None = None
        self._manifest = EMPTY
        self._continues = False
        """Whether the stage was told from which state to continue."""
        idle_after = self._options.event_time.idle_after
        self._idle = None if idle_after is None or not takes_context(step) else IdleQueues(to_millis(idle_after))
        self._observe_every = 0 if idle_after is None else min(max(to_millis(idle_after) // 4, 100), MAX_OBSERVE_EVERY)
        self._observed: tuple[int, int] | None = None
        """When the ends of the queues were last asked for, on the monotonic clock and as wall time."""
        self._queue_ends: QueueEnds | None = None

    def accept_queue_ends(self, queue_ends: QueueEnds) -> None:
        """Called before `open`; asked between batches, if a timer in event time may depend on it."""
        self._queue_ends = queue_ends

    def accept_sink(self, sink: Sink) -> None:
        self._options = replace(self._options, text_limits=sink.text_limits())

    def open(self, spark: SparkSession, folder: StorePath) -> None:
        """Opens the stage's folder; refuses one whose state was made with other shards or numbers."""
        carry_types()
        self._opened, self._manifest = _Opened(spark, folder.absolute(), {}), EMPTY
        self._continues = False
        frozen = FrozenOptions.of(self._shards, self._options.sequence, self._options.first_number)
        schema = state_schema(self._options.state_type)
        _freeze(msgspec.structs.replace(frozen, state=schema), folder, upgrades=self._options.upgrade_state is not None)

    def continue_from(self, state: str) -> None:
        """Starts the next unit from this manifest. Other units see a unit's changes only from now on."""
        self._manifest = read_manifest(state)
        if not self._continues:
            self._continues = True
            self._refuse_unread_timers()
            self._remove_requests()  # a crash may have come between the sinks' commits and their removal

    def _refuse_unread_timers(self) -> None:
        timers = sum(entry.timers for entry in self._manifest.shards.values())
        if timers and self._options.on_timer is None:
            raise InvalidOption(
                f"on_timer is missing, and {timers} keys of the state in {self._folder} have timers: give it, and let "
                f"it return (state, []) for timers that have no meaning any more"
            )

    def process(self, messages: DataFrame, batch: Batch) -> Results:
        """Returns the rows of a batch."""
        _check_base(batch, self._manifest)
        unit = _Unit(self._manifest, self._clock.wall(), self._watermark(self._manifest))
        frame = self._arranged(messages).mapInArrow(partial(apply_messages, self._unit_inputs(batch, unit)), ANSWER)
        return self._collect(batch, unit, frame)

    def due(self, now: datetime) -> float | None:
        """Seconds until a retry pass is due; None while nothing waits."""
        if pending_requests(self._folder) or Redrives(self._folder).pending():
            return 0.0
        newest = self._manifest
        times = [entry.retry_at for entry in newest.shards.values() if entry.retry_at is not None]
        times += self._timer_times(newest)
        return max(0, min(times) - wall_ms(now)) / 1000 if times else None

    def _timer_times(self, newest: Manifest) -> Iterator[int]:
        """Wall times at which retry passes for timers are due."""
        self._observe_queues(newest)
        watermark, earliest = self._watermark(newest), newest.wall + self._timers_every
        for name, entry in newest.shards.items():
            if entry.timer_at is not None:
                yield max(entry.timer_at, earliest)
            if self._is_event_timer_due(newest, name, watermark):
                yield earliest

    def _is_event_timer_due(self, base: Manifest, name: str, watermark: int) -> bool:
        """Whether a retry pass would call a timer in event time. A queue that is not idle calls its own."""
        entry, depends = base.shards[name], self._shards != "queue" or name in self._idle_queues(base)
        return depends and _has_come(entry.event_timer_at, watermark)

    def _observe_queues(self, newest: Manifest, *, at_once: bool = False) -> None:
        """Asks which queues are read to their ends, now and then, while a timer in event time is set."""
        now, last = self._clock.now(), self._observed
        is_early = last is not None and not at_once and now - last[0] < self._observe_every
        if self._idle is None or self._queue_ends is None or is_early:
            return
        if any(entry.event_timer_at is not None for entry in newest.shards.values()):
            self._observed = now, self._clock.wall()
            self._idle.observe(self._queue_ends(), now)

    def _idle_queues(self, base: Manifest) -> frozenset[str]:
        """Queues that were idle when they were last observed and have brought nothing since."""
        if self._idle is None or self._observed is None:
            return frozenset()
        since = self._observed[1]
        moved = {name for name, time in base.times.items() if time.read_at > since}
        return self._idle.idle - moved

    def _watermark(self, base: Manifest) -> int:
        """How far event time has come by what all queues have read: the minimum over those that are not idle."""
        queues = base.times.keys() | (frozenset() if self._idle is None else self._idle.queues)
        lateness = self._options.event_time.lateness_ms
        found = common_watermark(base.times, queues, self._idle_queues(base), lateness, self._clock.wall())
        return max(base.watermark, found)

    def process_retry_pass(self, batch: Batch) -> Results | None:
        """Retries lanes whose wait is over or that an operator requested. None if there are none."""
        unit = self._planned_retry_pass()
        if unit is None:
            return None
        _check_base(batch, unit.base)
        spark = self._open_stage.spark
        shards = spark.createDataFrame([(name,) for name in unit.shards], "shard string")
        # A task costs more than most shards, so there are no more of them than can run at once.
        frame = shards.repartition(min(len(unit.shards), spark.sparkContext.defaultParallelism), "shard")
        work = partial(retry_lanes, self._unit_inputs(batch, unit))
        return self._collect(batch, unit, frame.mapInArrow(work, ANSWER))

    def finished(self, batch: Batch) -> None:
        """Removes what only the sinks needed, and files that only former states need."""
        self._remove_requests()
        remove_tree(work_folder(self._folder, batch.number))
        cleaned = self._open_stage.cleaned
        for name, entry in self._manifest.shards.items():
            if entry.snapshot > cleaned.get(name, START):
                ShardFiles(self._folder, self._manifest.query, name).remove_before(entry.snapshot)
                cleaned[name] = entry.snapshot

    def _remove_requests(self) -> None:
        """Removes what the last unit has carried out for operators: the state after it counts."""
        for request in self._manifest.requests:
            remove_request(self._folder, request)
        for ident in self._manifest.redrives:
            Redrives(self._folder).carried_out(ident)

    def _planned_retry_pass(self) -> _Unit | None:
        """What a retry pass starts from; None if nothing is due. Requests about lanes that are not held are dropped."""
        folder, base = self._folder, self._manifest
        requests, wall = pending_requests(folder), self._clock.wall()
        self._observe_queues(base, at_once=True)
        watermark = self._watermark(base)
        shards = {
            name
            for name, entry in base.shards.items()
            if (requests and entry.waiting)
            or _has_come(entry.retry_at, wall)
            or _has_come(entry.timer_at, wall)
            or self._is_event_timer_due(base, name, watermark)
        }
        redrives = tuple(Redrives(folder).pending()[:FILES_PER_PASS])  # the rest is due at once
        shards |= self._shards_of(redrives)
        if shards:
            # A queue with messages in a batch is not idle, whatever was observed before.
            idle = tuple(sorted(self._idle_queues(base))) if self._shards == "queue" else ()
            return _Unit(base, wall, watermark, tuple(requests), tuple(sorted(shards)), redrives, idle)
        for request in requests:
            remove_request(folder, request)
        return None

    def _unit_inputs(self, batch: Batch, unit: _Unit) -> UnitInputs:
        return UnitInputs(
            options=self._options,
            stage_folder=self._folder,
            query=batch.query,
            number=batch.number,
            wall=unit.wall,
            versions={name: entry.version for name, entry in unit.base.shards.items()},
            actions=RequestedActions.of(unit.requests) if unit.requests else NO_ACTIONS,
            redrives=unit.redrives,
            lane_shards=self._lane_shards(unit.redrives),
            watermark=unit.watermark,
            idle=unit.idle,
        )

    def _shards_of(self, redrives: tuple[str, ...]) -> set[str]:
        """The shards of redriven dead letters."""
        if self._shards != "queue":
            return set(self._lane_shards(redrives).values())
        return {each.queue for each in self._redriven_dead_letters(redrives)}

    def _lane_shards(self, redrives: tuple[str, ...]) -> dict[str, str]:
        """The shards of redriven dead letters by lane, if shards are not queues; calculated as in `_arranged`."""
        if self._shards == "queue" or not redrives:
            return {}
        dead_letters = self._redriven_dead_letters(redrives)
        lanes = sorted({(each.lane, each.key) for each in dead_letters}, key=lambda lane: lane[0])
        frame = self._open_stage.spark.createDataFrame(lanes, "lane string, key string")
        rows = frame.select("lane", pmod(hash_of("key"), lit(self._shards)).alias(SHARD)).collect()
        return {row.lane: f"keys-{row[SHARD]}" for row in rows}

    def _redriven_dead_letters(self, redrives: tuple[str, ...]) -> Iterator[RedrivenDeadLetter]:
        found = Redrives(self._folder)
        return (each for ident in redrives for each in found.dead_letters(ident))

    def _collect(self, batch: Batch, unit: _Unit, frame: DataFrame) -> Results:
        """Lets Spark run the tasks and collects their answers."""
        summaries = summaries_of(unpack_answer(bytes(row.answer)) for row in frame.collect())
        return results(self._folder, batch, self.schema, summaries, _manifest_after(batch, unit, summaries))

    def _arranged(self, messages: DataFrame) -> DataFrame:
        """The rows as they were read, or shuffled by key and sorted by queue and offset: a shard is in one task."""
        missing = [name for name in _NEEDED if name not in messages.columns]
        if missing:
            raise InvalidOption(f"transitions need the columns {', '.join(missing)} of the source: keep them")
        kept = messages.select(*(name for name in COLUMNS if name in messages.columns))
        if self._shards == "queue":
            return kept
        shared = kept.withColumn(SHARD, pmod(hash_of("key"), lit(self._shards)))
        return shared.repartition(self._shards, "key").sortWithinPartitions(SHARD, *_POSITION)

    @property
    def _folder(self) -> StorePath:
        return self._open_stage.folder

    @property
    def _open_stage(self) -> _Opened:
        if self._opened is None:
            raise Closed("transitions are not open: the pipeline's runner opens them")
        return self._opened


def _has_come(at: int | None, time: int) -> bool:
    return at is not None and at <= time


def _check(options: StageOptions, shards: object) -> None:
    """`InvalidOption` for options that are wrong or do not fit together."""
    if not callable(options.step):
        raise InvalidOption(f"step={options.step!r} cannot be called: give a function of (state, event)")
    if not isinstance(options.policy, Hold | Park | DeadLetter):
        raise InvalidOption(f"on_failure={options.policy!r}: use Hold, Park or DeadLetter of lanemq.pipelines")
    if options.on_gap not in ("report", "hold", "fail"):
        raise InvalidOption(f"on_gap={options.on_gap!r}: use 'report', 'hold' or 'fail'")
    if shards != "queue" and (type(shards) is not int or shards < 1):
        raise InvalidOption(f"shards={shards!r}: use 'queue', or a number of 1 or more")
    check_state_type(options.state_type)
    if options.upgrade_state is not None and (not callable(options.upgrade_state) or options.state_type is None):
        raise InvalidOption("upgrade_state is a function of the old state, and needs state_type: give both")
    if options.on_timer is not None and not callable(options.on_timer):
        raise InvalidOption(
            f"on_timer={options.on_timer!r} cannot be called: give a function of (state, timer, context)"
        )
    if options.on_timer is not None and not takes_context(options.step):
        raise InvalidOption("on_timer is never called: give a step of (state, event, context), which sets timers")
    options.rules()


def _columns_of(outputs: str | StructType) -> StructType:
    schema = parse_columns(outputs) if isinstance(outputs, str) and outputs.strip() else outputs
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidOption(f"outputs={outputs!r} names no columns: write them like 'order_id string, status string'")
    return schema


def _freeze(options: FrozenOptions, folder: StorePath, *, upgrades: bool) -> None:
    """Records the options at the first start; refuses different ones at a later start.

    `upgrades`: the stage converts states that its type cannot read.
    """
    path = folder / "stage.json"
    if not path.exists():
        write_json(path, options)
    found = read_json(path, FrozenOptions)
    options.check_against(found, folder)
    if not upgrades and found.state is not msgspec.UNSET and options.state is not msgspec.UNSET:
        check_state_schema(found.state, options.state, folder)
    if found.sequence is msgspec.UNSET or found.state != options.state:
        # Written by a version that did not record it, or the type of the states has changed.
        write_json(path, msgspec.structs.replace(found, sequence=options.sequence, state=options.state))


def _check_base(batch: Batch, base: Manifest) -> None:
    """Refuses to continue from state of another query, or from state that is too old."""
    if base.number >= 0 and base.query != batch.query:
        raise StateLost(
            f"{batch} would start from state of query {base.query}: give every pipeline a checkpoint of its own"
        )
    least = (batch.spark_batch - (0 if batch.is_retry_pass else 1)) * NUMBERS_PER_BATCH
    if base.number < least:
        raise StateLost(
            f"{batch} has no state to start from: that of the batch before it is not in the checkpoint. "
            f"Restore the checkpoint's folder as it was, or start with an empty one"
        )


# After the tasks of a unit.


def summaries_of(answers: Iterable[TaskAnswer]) -> list[ShardSummary]:
    """One summary per shard, sorted by name. Raises what a task refused."""
    found: dict[str, ShardSummary] = {}
    for answer in answers:
        if answer.refusal is not None:
            raise _REFUSALS.get(answer.refusal.kind, LaneError)(answer.refusal.text)
        for summary in answer.shards:
            if summary.shard in found:
                raise OrderError(
                    f"messages of {summary.shard} were in two tasks at once, so their order is lost: the rows were "
                    f"shuffled between source and transitions. Leave the source's partitions as they are "
                    f"(ordered=true), or use shards=<number>"
                )
            found[summary.shard] = summary
    return [found[name] for name in sorted(found)]


def _manifest_after(batch: Batch, unit: _Unit, summaries: Iterable[ShardSummary]) -> Manifest:
    """The manifest after the unit."""
    shards, times = dict(unit.base.shards), dict(unit.base.times)
    for each in summaries:
        before, timers = shards.get(each.shard), each.timers
        snapshot = batch.number if each.snapshot else (before.snapshot if before else START)
        shards[each.shard] = ShardEntry(
            each.version,
            snapshot,
            each.keys,
            each.waiting,
            each.parked,
            each.retry_at,
            timers.keys,
            timers.processing,
            timers.event,
        )
        for queue, newest in timers.newest.items():
            # The shards of a unit have the same wall time, and each has read a part of the queue.
            highest = max(newest, times[queue].newest if queue in times else 0)
            times[queue] = QueueTime(highest, unit.wall)
    return Manifest(batch.number, batch.query, shards, unit.wall, times, unit.watermark, unit.requests, unit.redrives)


def results(
    stage_folder: StorePath, batch: Batch, schema: StructType, summaries: list[ShardSummary], after: Manifest
) -> Results:
    """The row files for the sinks, and the counts."""
    folder = work_folder(stage_folder, batch.number)
    outputs = _files(folder, [(each.shard, *each.outputs) for each in summaries])
    dead = _files(folder, [(each.shard, *each.dead) for each in summaries])
    counts: Counter[str] = Counter()
    for each in summaries:
        counts.update(each.counts)
    counts["keys"] = sum(entry.keys for entry in after.shards.values())
    counts["lanes_held"] = sum(entry.waiting for entry in after.shards.values())
    counts["lanes_parked"] = sum(entry.parked for entry in after.shards.values())
    return Results(
        outputs=FileRows(schema, outputs),
        dead_letters=FileRows(DEAD_LETTER_SCHEMA, dead) if dead else None,
        counts=dict(counts),
        state=pack_manifest(after),
        late=frozenset(message for each in summaries for message in each.late),
    )


def _files(folder: StorePath, found: list[tuple[str, str, int]]) -> list[RowFile]:
    return [RowFile(shard, folder / name, rows) for shard, name, rows in found if rows]
