"""`Transitions`: a stage that runs every event of a key through a step, in order, once.

The rules guarded here: a unit starts from the ledger that its intent names and leaves a ledger; a person's decision
is taken by one pass; a unit that passes were built on is never computed again.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import hash as hash_of
from pyspark.sql.functions import lit, pmod
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import Closed, InvalidOption, StateLost
from lanemq.model.units import Millis
from lanemq.pipelines.batch import PASSES, Batch
from lanemq.pipelines.ddl import parse_columns
from lanemq.pipelines.durable import read_json, write_json
from lanemq.pipelines.ports import Append, Results
from lanemq.pipelines.queue_set import OnQueueChange, check_choice
from lanemq.pipelines.rows import FileRows
from lanemq.pipelines.transitions.arrow_runs import SHARD
from lanemq.pipelines.transitions.books import Books, Intent, Ledger, Request, read_ledger
from lanemq.pipelines.transitions.carried_types import carry_types
from lanemq.pipelines.transitions.event import COLUMNS, Step
from lanemq.pipelines.transitions.limits import StateLimits
from lanemq.pipelines.transitions.plan import ANSWER, Plan, Spec, unpack_answer
from lanemq.pipelines.transitions.policies import DeadLetter, Hold, Park, Policy
from lanemq.pipelines.transitions.rules import Number, OnGap
from lanemq.pipelines.transitions.settling import agreed, forget_old, ledger_after, results
from lanemq.pipelines.transitions.shard import START
from lanemq.pipelines.transitions.shard_work import work_folder
from lanemq.pipelines.transitions.worker import work_on_lanes, work_on_messages

_NEEDED = (*COLUMNS[:5], "value", "store_timestamp")
_PLACE = ("topic", "broker", "queue_id", "queue_offset")


class _Fixed(msgspec.Struct, frozen=True):
    """What must stay as it is for as long as the state lives."""

    shards: Literal["queue"] | int


class Transitions:
    """Every event of every key, through `step(state, event) -> (state, rows)`.

    A step that fails, or a body that cannot be decoded, concerns its key only: `on_failure` says how.
    """

    columns: tuple[str, ...] = COLUMNS
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
        on_gap: OnGap = "report",
        first_number: int | None = 1,
        shards: Literal["queue"] | int = "queue",
        limits: StateLimits | None = None,
        on_queue_change: OnQueueChange = "fail",
        clock: Clock | None = None,
    ) -> None:
        """See `docs/decisions/0010-pipelines.md` for what shards are.

        - `decode`: "json", "text", "bytes", a type for JSON (msgspec Struct, dataclass, TypedDict) or a function.
        - `state_type`: the state is given to the step as this type; default: dicts, lists, numbers, texts.
        - `sequence`: the field of the value (or a function of the event) that numbers a key's events 1, 2, 3 ...;
          repeats are dropped. `on_gap`: "report" counts what is missing, "hold" lets the key wait for it, "fail"
          treats it as a failure. `first_number=None`: a key may begin with any number.
        - `shards`: "queue" for rows as the source gives them; a number for rows that were shuffled, or for keys
          that are in several queues, which then need `sequence`. It cannot be changed later.
        - `on_queue_change`: what is done when the topic has more queues than the state was made with, or, with
          `shards=<number>` and without `sequence`, when a key is found in two queues: "fail", or "continue" where no
          key has moved or a moved key may begin anew (then nobody tells when that is not so).
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
            on_gap=on_gap,
            first_number=first_number,
            limits=limits or StateLimits(),
            by_queue=shards == "queue",
            one_queue_a_key=shards != "queue" and sequence is None and chosen == "fail",
        )
        self._check()
        self._spark: SparkSession | None = None
        self._books: Books | None = None
        self._cleaned: dict[str, int] = {}

    def open(self, spark: SparkSession, place: Path) -> None:
        """Refuses a place whose state was made with other shards."""
        carry_types()
        self._spark, self._books, self._cleaned = spark, Books(place.absolute()), {}
        path, wanted = place / "stage.json", _Fixed(self._shards)
        if not path.exists():
            write_json(path, wanted)
        found = read_json(path, _Fixed)
        if found != wanted:
            raise InvalidOption(
                f"shards={self._shards!r}, but the state in {place} was made with {found}: keys would lose their "
                f"state. Keep the number, or start anew with an empty checkpoint"
            )

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
        if books.requests():
            return Millis(0)
        times = [entry.retry_at for entry in books.newest().shards.values() if entry.retry_at is not None]
        return Millis(max(0, min(times) - wall)) if times else None

    def run_pass(self, batch: Batch) -> Results | None:
        """Tries stopped lanes whose time has come or that a person decided about. None: there are none."""
        books, spark = self._opened(), self._spark
        assert spark is not None
        if any(number > batch.number for number in books.ledgers()):
            books.remove("intents", batch.number)
            return None
        intent = books.intent(batch.number) or self._planned_pass(batch)
        if intent is None:
            return None
        shards = spark.createDataFrame([(name,) for name in intent.shards], "shard string")
        frame = shards.repartition(len(intent.shards), "shard")
        return self._settled(batch, intent, frame.mapInArrow(partial(work_on_lanes, self._plan(intent)), ANSWER))

    def unfinished_pass(self) -> int | None:
        """The number of a pass that a crash interrupted."""
        return max((number for number in self._opened().intents() if number % PASSES), default=None)

    def finished(self, batch: Batch) -> None:
        """The sinks have it. The intent goes last: until then the unit counts as unfinished."""
        books = self._opened()
        intent = books.intent(batch.number)
        for request in intent.requests if intent else ():
            books.answered(request)
        shutil.rmtree(work_folder(books.place, batch.number), ignore_errors=True)
        forget_old(books, batch, self._cleaned)
        books.remove("intents", batch.number)

    def _intent(self, batch: Batch, requests: tuple[Request, ...] = (), shards: tuple[str, ...] = ()) -> Intent:
        """Written down before the unit runs; that of an earlier attempt if its state still follows from it."""
        books = self._opened()
        base = books.ledger_before(batch.number)
        _check_base(batch, base)
        found = books.intent(batch.number)
        # A pass may have come in between if the earlier attempt never got as far as a ledger.
        if found is not None and found.base == base.number:
            return found
        intent = Intent(batch.number, batch.query, base.number, self._clock.wall(), requests, shards)
        books.begin(intent)
        return intent

    def _planned_pass(self, batch: Batch) -> Intent | None:
        """What is to be tried now. Decisions about lanes that do not stand still have nothing to decide."""
        books = self._opened()
        requests, wall = books.requests(), self._clock.wall()
        entries = books.ledger_before(batch.number).shards
        shards = [
            name
            for name, entry in sorted(entries.items())
            if (requests and entry.waiting) or (entry.retry_at is not None and entry.retry_at <= wall)
        ]
        if shards:
            return self._intent(batch, tuple(requests), tuple(shards))
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
        )

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
        self._spec.rules()


def _columns_of(outputs: str | StructType) -> StructType:
    schema = parse_columns(outputs) if isinstance(outputs, str) and outputs.strip() else outputs
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidOption(f"outputs={outputs!r} names no columns: write them like 'order_id string, status string'")
    return schema


def _has_passes(batch: Batch, ledgers: list[int]) -> bool:
    """Whether passes ran behind the batch. Spark repeats the last batch only: much newer state is not this one's."""
    newest = max(ledgers, default=START)
    if newest // PASSES > batch.spark_batch + 1:
        raise StateLost(
            f"{batch} comes again, but the state is already that of batch {newest // PASSES}: Spark's part of the "
            f"checkpoint was deleted or restored. Restore all of it as it was, or start anew with an empty one"
        )
    return any(batch.number < number < batch.number + PASSES for number in ledgers)


def _check_base(batch: Batch, base: Ledger) -> None:
    """State is continued only where it was left."""
    if base.number >= 0 and base.query != batch.query:
        raise StateLost(
            f"{batch} was to start from state of query {base.query}: give every pipeline a checkpoint of its own"
        )
    least = (batch.spark_batch - (0 if batch.is_pass else 1)) * PASSES
    if base.number < least:
        raise StateLost(
            f"{batch} has no state to start from: that of the batch before it is not in the checkpoint. "
            f"Restore the checkpoint's folder as it was, or start anew with an empty one"
        )
