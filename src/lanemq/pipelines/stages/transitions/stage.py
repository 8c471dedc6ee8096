"""`Transitions`: a stage that runs every event of a key through a step, in order, once.

The rules guarded here: a unit starts from the ledger that its intent names and leaves a ledger; a person's decision
is taken by one pass; a unit that passes were built on is never computed again.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import hash as hash_of
from pyspark.sql.functions import lit, pmod
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import Closed, InvalidOption, StateLost
from lanemq.model.units import Millis
from lanemq.pipelines.atomic_files import sync
from lanemq.pipelines.batch import NUMBERS_PER_BATCH, Batch
from lanemq.pipelines.checkpoint.queue_set import check_choice
from lanemq.pipelines.declare.ddl import parse_columns
from lanemq.pipelines.ports import Append, OnQueueChange, Results, Stage
from lanemq.pipelines.rows import FileRows
from lanemq.pipelines.stages.transitions.arrow_runs import SHARD
from lanemq.pipelines.stages.transitions.carried_types import carry_types
from lanemq.pipelines.stages.transitions.event import COLUMNS, Step
from lanemq.pipelines.stages.transitions.frozen_options import fixed, keep_fixed
from lanemq.pipelines.stages.transitions.limits import StateLimits
from lanemq.pipelines.stages.transitions.plan import ANSWER, Plan, Spec, unpack_answer
from lanemq.pipelines.stages.transitions.policies import DeadLetter, Hold, Park, Policy
from lanemq.pipelines.stages.transitions.redrives import FILES_AT_ONCE, Letter, Redrives
from lanemq.pipelines.stages.transitions.rules import Number, OnExpire, OnGap
from lanemq.pipelines.stages.transitions.settling import agreed, forget_old, ledger_after, results
from lanemq.pipelines.stages.transitions.shard import START
from lanemq.pipelines.stages.transitions.shard_work import work_folder
from lanemq.pipelines.stages.transitions.unit_log import Books, Intent, Ledger, Request, read_ledger
from lanemq.pipelines.stages.transitions.worker import work_on_lanes, work_on_messages

_NEEDED = (*COLUMNS[:5], "value", "store_timestamp")
_PLACE = ("topic", "broker", "queue_id", "queue_offset")


class Transitions(Stage):
    """Every event of every key, through `step(state, event) -> (state, rows)`.

    A step that fails, or a body that cannot be decoded, concerns its key only: `on_failure` says how.
    """

    columns: tuple[str, ...] = COLUMNS
    on_damaged = "null"
    """No body is poison to every `decode`; bytes that are still packed would not be to `bytes` and functions."""
    how = Append()

    def __init__(
        self,
        *,
        step: Step,
        outputs: str | StructType,
        decode: Any = "json",
        state_type: Any = None,
        on_failure: Policy | None = None,
        sequence: str | Number | None = None,
        on_gap: OnGap | None = None,
        first_number: int | None = 1,
        shards: Literal["queue"] | int = "queue",
        limits: StateLimits | None = None,
        on_queue_change: OnQueueChange = "fail",
        on_expire: OnExpire | None = None,
        clock: Clock | None = None,
    ) -> None:
        """See `docs/decisions/0010-pipelines.md` for what shards are.

        - `decode`: "json", "text", "bytes", a type for JSON (msgspec Struct, dataclass, TypedDict) or a function.
        - `state_type`: the state is given to the step as this type; default: dicts, lists, numbers, texts.
        - `sequence`: the field of the value (or a function of the event) that numbers a key's events 1, 2, 3 ...;
          repeats are dropped. It cannot be changed later. `on_gap`: "report" counts what is missing and goes on,
          "hold" lets the key wait for it, "fail" treats it as a failure; the default is "report", and "hold" with
          `shards=<number>`, where a key's events may be in several queues, which are read one after the other.
          `first_number=None`: a key may begin with any number.
        - `shards`: "queue" for rows as the source gives them; a number for rows that were shuffled, or for keys
          that are in several queues, which then need `sequence`. It cannot be changed later.
        - `on_queue_change`: what is done when the topic has more queues than the state was made with, or, with
          `shards=<number>` and without `sequence`, when a key is found in two queues: "fail", or "continue" where no
          key has moved or a moved key may begin anew (then nobody tells when that is not so).
        - `on_expire(state, key) -> rows`: called for a state that `StateLimits(expire_after)` forgets; its rows
          are written with the batch that does so. If it fails, the state stays and is asked again; if it does so for
          the state that an event of the key found expired, `on_failure` decides about the event.
        """
        self.schema = _columns_of(outputs)
        self._shards = shards
        chosen = check_choice(on_queue_change)
        self.on_queue_change = chosen if shards == "queue" else None
        self._clock = clock or SystemClock()
        self._spec = Spec(
            step=step,
            outputs=self.schema,
            decode=decode,
            state_type=state_type,
            policy=Hold() if on_failure is None else on_failure,
            sequence=sequence,
            on_gap=on_gap if on_gap is not None else "report" if shards == "queue" else "hold",
            first_number=first_number,
            limits=limits or StateLimits(),
            by_queue=shards == "queue",
            one_queue_a_key=shards != "queue" and sequence is None and chosen == "fail",
            on_expire=on_expire,
        )
        self._check()
        self._spark: SparkSession | None = None
        self._books: Books | None = None
        self._cleaned: dict[str, int] = {}

    def open(self, spark: SparkSession, place: Path) -> None:
        """Refuses a place whose state was made with other shards or numbers."""
        carry_types()
        self._spark, self._books, self._cleaned = spark, Books(place.absolute()), {}
        keep_fixed(place, fixed(self._shards, self._spec.sequence, self._spec.first_number))

    def run(self, messages: DataFrame, batch: Batch) -> Results:
        """The rows of a batch; the same again when the batch is repeated."""
        books = self._opened()
        if _has_passes(batch, books.ledgers()):
            # They were built on it, so the sinks have it; only Spark has not noted it yet.
            return Results(FileRows(self.schema, []), counts={"repeated_batches": 1})
        intent = self._intent(batch)
        frame = self._arranged(messages).mapInArrow(partial(work_on_messages, self._plan(intent)), ANSWER)
        return self._settled(batch, intent, frame)

    def settle(self, batch: Batch, state: str) -> None:
        """The ledger of the attempt that counts; only from now on the unit's changes are seen by another."""
        self._opened().complete(read_ledger(state), batch.epoch)

    def due(self, wall: Millis) -> Millis | None:
        """How long until a pass is wanted; None while nothing waits, or while a batch is still on its way."""
        books = self._opened()
        if set(books.intents()) & set(books.ledgers()):
            return None
        if books.requests() or Redrives(books.place).pending():
            return Millis(0)
        times = [entry.retry_at for entry in books.newest().shards.values() if entry.retry_at is not None]
        return Millis(max(0, min(times) - wall)) if times else None

    def run_retry_pass(self, batch: Batch) -> Results | None:
        """Tries stopped lanes whose time has come or that a person decided about. None: there are none."""
        books, spark = self._opened(), self._spark
        assert spark is not None
        ledgers = books.ledgers()
        if any(number > batch.number for number in ledgers):
            if batch.number in ledgers:
                self.finished(batch)
            books.remove("intents", batch.number)
            return None
        intent = books.intent(batch.number) or self._planned_pass(batch)
        if intent is None:
            return None
        shards = spark.createDataFrame([(name,) for name in intent.shards], "shard string")
        frame = shards.repartition(len(intent.shards), "shard")
        return self._settled(batch, intent, frame.mapInArrow(partial(work_on_lanes, self._plan(intent)), ANSWER))

    def unfinished_retry_pass(self) -> int | None:
        """The number of a pass that a crash interrupted."""
        return max((number for number in self._opened().intents() if number % NUMBERS_PER_BATCH), default=None)

    def finished(self, batch: Batch) -> None:
        """The sinks have it. The intent goes last: until then the unit counts as unfinished."""
        books = self._opened()
        intent = books.intent(batch.number)
        for request in intent.requests if intent else ():
            books.answered(request)
        redrives, carried_out = Redrives(books.place), intent.redrives if intent else ()
        for ident in carried_out:
            redrives.carried_out(ident)
        shutil.rmtree(work_folder(books.place, batch.number), ignore_errors=True)
        forget_old(books, batch, self._cleaned)
        books.remove("intents", batch.number)
        if carried_out:
            sync(books.place / "intents")  # an intent that a power cut brought back would want the bodies
        for ident in carried_out:
            redrives.forget_bodies(ident)

    def _intent(
        self,
        batch: Batch,
        requests: tuple[Request, ...] = (),
        shards: tuple[str, ...] = (),
        redrives: tuple[str, ...] = (),
    ) -> Intent:
        """Written down before the unit runs; that of an earlier attempt if its state still follows from it."""
        books = self._opened()
        base = books.ledger_before(batch.number)
        _check_base(batch, base)
        found = books.intent(batch.number)
        # A pass may have come in between if the earlier attempt never got as far as a ledger.
        if found is not None and found.base == base.number:
            return found
        intent = Intent(batch.number, batch.query, base.number, self._clock.wall(), requests, shards, redrives)
        books.begin(intent)
        return intent

    def _planned_pass(self, batch: Batch) -> Intent | None:
        """What is to be tried now. Decisions about lanes that do not stand still have nothing to decide."""
        books = self._opened()
        requests, wall = books.requests(), self._clock.wall()
        entries = books.ledger_before(batch.number).shards
        shards = {
            name
            for name, entry in entries.items()
            if (requests and entry.waiting) or (entry.retry_at is not None and entry.retry_at <= wall)
        }
        redrives = tuple(Redrives(books.place).pending()[:FILES_AT_ONCE])  # others are due at once again
        shards |= self._shards_of(redrives)
        if shards:
            return self._intent(batch, tuple(requests), tuple(sorted(shards)), redrives)
        for request in requests:
            books.answered(request)
        return None

    def _plan(self, intent: Intent) -> Plan:
        books = self._opened()
        entries = books.ledger(intent.base).shards
        return Plan(
            spec=self._spec,
            place=books.place,
            query=intent.query,
            number=intent.number,
            wall=intent.wall,
            versions={name: entry.version for name, entry in entries.items()},
            orders=intent.orders(),
            redrives=intent.redrives,
            homes=self._homes(intent.redrives),
        )

    def _shards_of(self, redrives: tuple[str, ...]) -> set[str]:
        """Where the lanes of letters are."""
        if self._shards != "queue":
            return set(self._homes(redrives).values())
        return {letter.queue for letter in self._letters(redrives)}

    def _homes(self, redrives: tuple[str, ...]) -> dict[str, str]:
        """Lanes of letters with their shards, where those are shares of the keys; as `_arranged` shares them."""
        if self._shards == "queue" or not redrives:
            return {}
        assert self._spark is not None
        lanes = sorted({(letter.lane, letter.key) for letter in self._letters(redrives)}, key=lambda each: each[0])
        frame = self._spark.createDataFrame(lanes, "lane string, key string")
        rows = frame.select("lane", pmod(hash_of("key"), lit(self._shards)).alias(SHARD)).collect()
        return {row.lane: f"keys-{row[SHARD]}" for row in rows}

    def _letters(self, redrives: tuple[str, ...]) -> Iterator[Letter]:
        found = Redrives(self._opened().place)
        return (letter for ident in redrives for letter in found.letters(ident))

    def _settled(self, batch: Batch, intent: Intent, frame: DataFrame) -> Results:
        books = self._opened()
        summaries = agreed(unpack_answer(bytes(row.answer)) for row in frame.collect())
        after = ledger_after(books.ledger(intent.base), batch, summaries)
        return results(books.place, batch, self.schema, summaries, after)

    def _arranged(self, messages: DataFrame) -> DataFrame:
        missing = [name for name in _NEEDED if name not in messages.columns]
        if missing:
            raise InvalidOption(f"transitions need the columns {', '.join(missing)} of the source: do not drop them")
        kept = messages.select(*(name for name in COLUMNS if name in messages.columns))
        if self._shards == "queue":
            return kept
        shared = kept.withColumn(SHARD, pmod(hash_of("key"), lit(self._shards)))
        return shared.repartition(self._shards, "key").sortWithinPartitions(SHARD, *_PLACE)

    def _opened(self) -> Books:
        if self._books is None:
            raise Closed("transitions were not opened: a pipeline's runner does that")
        return self._books

    def _check(self) -> None:
        if not callable(self._spec.step):
            raise InvalidOption(f"step={self._spec.step!r} cannot be called: give a function of (state, event)")
        if not isinstance(self._spec.policy, Hold | Park | DeadLetter):
            raise InvalidOption(f"on_failure={self._spec.policy!r}: use Hold(...), Park() or DeadLetter(skip=True)")
        if self._spec.on_gap not in ("report", "hold", "fail"):
            raise InvalidOption(f"on_gap={self._spec.on_gap!r}: use 'report', 'hold' or 'fail'")
        if self._shards != "queue" and (type(self._shards) is not int or self._shards < 1):
            raise InvalidOption(f"shards={self._shards!r}: use 'queue', or a number of 1 or more")
        if self._spec.on_expire is not None and not callable(self._spec.on_expire):
            raise InvalidOption(f"on_expire={self._spec.on_expire!r} cannot be called: give a function of (state, key)")
        if self._spec.on_expire is not None and self._spec.limits.expire_after is None:
            raise InvalidOption("on_expire is never called without limits=StateLimits(expire_after=...): say both")
        self._spec.rules()


def _columns_of(outputs: str | StructType) -> StructType:
    schema = parse_columns(outputs) if isinstance(outputs, str) and outputs.strip() else outputs
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidOption(f"outputs={outputs!r} names no columns: write them like 'order_id string, status string'")
    return schema


def _has_passes(batch: Batch, ledgers: list[int]) -> bool:
    """Whether passes ran behind the batch. Spark repeats the last batch only: much newer state is not this one's."""
    newest = max(ledgers, default=START)
    if newest // NUMBERS_PER_BATCH > batch.spark_batch + 1:
        raise StateLost(
            f"{batch} comes again, but the state is already that of batch {newest // NUMBERS_PER_BATCH}: Spark's part "
            f"of the checkpoint was deleted or restored. Restore all of it as it was, or start anew with an empty one"
        )
    return any(batch.number < number < batch.number + NUMBERS_PER_BATCH for number in ledgers)


def _check_base(batch: Batch, base: Ledger) -> None:
    """State is continued only where it was left."""
    if base.number >= 0 and base.query != batch.query:
        raise StateLost(
            f"{batch} was to start from state of query {base.query}: give every pipeline a checkpoint of its own"
        )
    least = (batch.spark_batch - (0 if batch.is_retry_pass else 1)) * NUMBERS_PER_BATCH
    if base.number < least:
        raise StateLost(
            f"{batch} has no state to start from: that of the batch before it is not in the checkpoint. "
            f"Restore the checkpoint's folder as it was, or start anew with an empty one"
        )
