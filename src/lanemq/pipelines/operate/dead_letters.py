"""Dead letters of a pipeline, for Python programs; `lanemq pipeline dead-letters` does the same.

    letters = dead_letters("/data/checkpoints/orders")
    for each in letters.records():
        print(each.id, each.key, each.reason)
    letters.redrive("orders/broker-a/0/17")

Works on the Delta table that has them, whether or not the pipeline runs, without Spark and without the broker.

Invariants: nothing here changes state, a redrive is written to the checkpoint and carried out by a retry pass; a dead
letter is redriven once; a message that still waits in its key is never redriven from here, or it would be applied
twice; a discarded or doubtful one is redriven only if it is named; only part of the requested bodies is in memory.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from msgspec.structs import replace

from lanemq.clock import wall_ms
from lanemq.files import StorePath
from lanemq.model.errors import StorageError, UsageError
from lanemq.pipelines.checkpoint.checkpoint import dead_letters_folder, need_identity, stage_folder
from lanemq.pipelines.operate.parked import checkpoint_of, list_parked
from lanemq.pipelines.sinks.delta_files import delta_options
from lanemq.pipelines.stages.transitions.messages import WaitingMessage
from lanemq.pipelines.stages.transitions.operator_requests import (
    DEAD_LETTERS_PER_FILE,
    Identity,
    RedrivenDeadLetter,
    Redrives,
)
from lanemq.pipelines.stages.transitions.rules import DISCARDED, LATE_OR_AGAIN

if TYPE_CHECKING:  # they need PySpark
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.ports import Sink

Place: TypeAlias = tuple[str, str, int, int]
"""Topic, broker, queue and offset of a message."""
_UNREADABLE: Final = "cannot be decoded"
_DOUBTFUL: Final = re.compile(rf"number -?\d+ {LATE_OR_AGAIN}:")


class DeadLetterState(StrEnum):
    """What became of a dead letter."""

    OPEN = "open"
    """The message was given up; it can be redriven."""
    DISCARDED = "discarded"
    """An operator gave it up: redriven only by its id or its key."""
    DOUBTFUL = "doubtful"
    """Either late or a repeat: redriven only by its id, and then perhaps applied twice."""
    NOTICE = "notice"
    """The message cannot be decoded and still waits in its key; see `parked`."""
    SETTLED = "settled"
    """A notice whose message does not wait any more: it was applied, or has a dead letter of its own."""
    TIMER = "timer"
    """A timer that failed and was given up. It cannot be redriven."""
    ASKED = "asked"
    """A redrive was requested; no retry pass has finished it."""
    REDRIVEN = "redriven"


FINISHED: Final = frozenset({DeadLetterState.REDRIVEN, DeadLetterState.SETTLED})
"""States of dead letters with which nothing is left to do."""
UNDECIDED: Final = frozenset({DeadLetterState.OPEN, DeadLetterState.DOUBTFUL, DeadLetterState.TIMER})
"""States of dead letters about which no person has decided."""
_AMONG_ALL: Final = frozenset({DeadLetterState.OPEN})
_BY_KEY: Final = _AMONG_ALL | {DeadLetterState.DISCARDED}
_BY_ID: Final = _BY_KEY | {DeadLetterState.DOUBTFUL}


class DeadLetterRecord(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"id": "dead_letter", "queue_id": "queue", "message_id": "id"},
):
    """A dead letter: the message, and why it was given up."""

    id: str
    """The id that commands take. A message that is given up again keeps it."""
    topic: str
    broker: str
    queue_id: int
    offset: int
    key: str | None
    message_id: str | None
    tags: str | None
    stored_at: datetime | None
    """When the broker stored it; None if it is unknown."""
    state: DeadLetterState
    reason: str
    attempts: int
    batch: int
    """The number of the batch or retry pass that gave it up."""
    value: bytes | None = None
    """The body; None unless it was requested."""

    @property
    def is_undecided(self) -> bool:
        """Whether no person has decided about it."""
        return self.state in UNDECIDED

    @property
    def identity(self) -> Identity:
        return self.topic, self.broker, self.queue_id, self.offset, self.batch


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The number of dead letters in the checkpoint; None: they go to a sink of their own."""

    count: int | None = None
    settled: int = 0
    """Those of them that are notices of messages which do not wait any more."""
    folder: str | None = None


class DeadLetters:
    """The dead letters of one pipeline; returned by `dead_letters`."""

    def __init__(self, checkpoint: StorePath, table: str, storage_options: Mapping[str, str]) -> None:
        self.checkpoint = checkpoint
        self._table = table
        self._storage = dict(storage_options)
        self._stage = stage_folder(checkpoint)
        self._redrives = Redrives(self._stage)

    def records(self, *, redriven: bool = False) -> list[DeadLetterRecord]:
        """All dead letters, oldest first, without bodies; `redriven`: also redriven ones and settled notices."""
        found = self._found(bodies=False)
        return [each for each in found if redriven or each.state not in FINISHED]

    def show(self, id: str) -> list[DeadLetterRecord]:
        """One message with its body; one record for each time it was given up, the last one last."""
        offset = id.rpartition("/")[2]
        place = f"queue_offset = {int(offset)}" if offset.isdecimal() else "queue_offset < 0"
        found = [each for each in self._found(place, bodies=True) if each.id == id]
        if not found:
            raise UsageError(f"there is no dead letter {id!r}: see `lanemq pipeline dead-letters list` or records()")
        return found

    def redrive(
        self, id: str | None = None, *, key: str | None = None, everything: bool = False
    ) -> list[DeadLetterRecord]:
        """Request that messages are given to the step again, after everything that their keys have seen so far.

        Returns the chosen ones, without bodies.
        """
        chosen = self.chosen(id, key=key, everything=everything)
        taken = self._redrives.ask(self._with_bodies(sorted(each.identity for each in chosen)))
        return [each for each in chosen if each.identity in taken]

    def chosen(
        self, id: str | None = None, *, key: str | None = None, everything: bool = False
    ) -> list[DeadLetterRecord]:
        """The dead letters that a redrive would be about: one, those of a key, or all that are open.

        Discarded ones are chosen only by id or key, doubtful ones only by id.
        """
        if (id is not None) + (key is not None) + everything != 1:
            raise UsageError("give one id, or key=..., or everything=True")
        self._need_step()
        found = self.records(redriven=True)
        if not everything:
            found = [each for each in found if (each.id == id if key is None else each.key == key)]
        states = _BY_ID if id is not None else _BY_KEY if key is not None else _AMONG_ALL
        chosen = [each for each in found if each.state in states]
        if not chosen and not everything:
            raise UsageError(_refusal(id or f"of key {key!r}", found))
        return chosen

    def counts(self) -> dict[str, int]:
        """The number of dead letters by state."""
        found = [each.state for each in self._found(bodies=False)]
        return {state.value: found.count(state) for state in DeadLetterState if state in found}

    def settled(self) -> int:
        """The number of settled notices, without reading the other dead letters."""
        rows = list(self._rows("waits", bodies=False))
        waiting = self._waiting_places() if rows else frozenset()
        return sum(_place(row) not in waiting for row in rows)

    def requested(self) -> int:
        """The number of dead letters that wait to be redriven."""
        return len(self._redrives.pending_dead_letters() - self._redrives.done_dead_letters())

    def _need_step(self) -> None:
        if not (self._stage / "stage.json").exists():
            raise UsageError(
                f"the pipeline of {self.checkpoint} has no step: only dead letters of Transitions can be redriven; "
                f"send the messages again, corrected"
            )

    def _with_bodies(self, identities: list[Identity]) -> Iterator[RedrivenDeadLetter]:
        """The dead letters in the given order."""
        for begin in range(0, len(identities), DEAD_LETTERS_PER_FILE):
            part = identities[begin : begin + DEAD_LETTERS_PER_FILE]
            wanted, units = set(part), sorted({identity[-1] for identity in part})
            of_units = f"batch in ({', '.join(map(str, units))})"
            found = (each for each in self._found(of_units, bodies=True) if each.identity in wanted)
            yield from sorted(map(_redriven, found), key=lambda each: each.identity)

    def _found(self, condition: str = "true", *, bodies: bool) -> Iterator[DeadLetterRecord]:
        asked = self._redrives.pending_dead_letters()
        done = self._redrives.done_dead_letters()
        waiting: frozenset[Place] | None = None
        for row in self._rows(condition, bodies=bodies):
            found = _message(row, asked, done)
            if found.state is DeadLetterState.NOTICE:
                waiting = self._waiting_places() if waiting is None else waiting
                found = found if _place(row) in waiting else replace(found, state=DeadLetterState.SETTLED)
            yield found

    def _waiting_places(self) -> frozenset[Place]:
        """Where the messages that wait in keys were read.

        Read after the table: a message waits before its notice is written, so a notice of
        a running pipeline is not taken for a settled one.
        """
        return frozenset(
            (each.topic, each.broker, each.queue_id, each.offset)
            for lane in list_parked(self._stage)
            for each in lane.messages
        )

    def _rows(self, condition: str, *, bodies: bool) -> Iterator[dict[str, Any]]:
        """The rows that fulfil an SQL condition, oldest first."""
        with _readable(self._table):
            table = DeltaTable(self._table, storage_options=self._storage or None)
            names = [field.name for field in table.schema().fields if bodies or field.name != "value"]
            chosen = f"SELECT {', '.join(names)} FROM letters WHERE {condition}"
            order = "ORDER BY batch, topic, broker, queue_id, queue_offset, key"
            for part in QueryBuilder().register("letters", table).execute(f"{chosen} {order}"):
                yield from pa.table(part).to_pylist()


def dead_letters(pipeline: "Pipeline | StorePath | str") -> DeadLetters:
    """The dead letters of a pipeline, given the pipeline, or its checkpoint's folder if they are in there."""
    checkpoint = checkpoint_of(pipeline)
    need_identity(checkpoint)
    sink: Sink | None = getattr(pipeline, "dead_letters", None)
    table = _in_checkpoint(checkpoint) if sink is None else _in_sink(sink, getattr(pipeline, "spark", {}))
    return DeadLetters(checkpoint, *table)


def _in_sink(sink: "Sink", settings: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """The path of the table that a pipeline declares for dead letters, and how its store is reached."""
    from lanemq.pipelines.sinks.delta import DeltaSink  # it needs PySpark, as does the declaration

    if isinstance(sink, DeltaSink):
        return sink.place(settings)
    raise UsageError(
        f"dead letters go to the sink that the pipeline declares for them ({type(sink).__name__}): query that; "
        f"only dead letters in a Delta table can be listed and redriven here"
    )


def _in_checkpoint(checkpoint: StorePath) -> tuple[str, Mapping[str, str]]:
    """The same of the table in the checkpoint."""
    folder = dead_letters_folder(checkpoint)
    if not _is_table(folder):
        raise UsageError(
            f"{checkpoint} has no dead letters: the pipeline declares a sink for them; give the file that declares it"
        )
    return str(folder), delta_options(folder)


def _is_table(folder: StorePath) -> bool:
    return DeltaTable.is_deltatable(str(folder), delta_options(folder) or None)


@contextmanager
def _readable(table: str) -> Iterator[None]:
    """Raises `StorageError` where a table of dead letters is damaged."""
    try:
        yield
    except Exception as error:
        # deltalake raises the plain class if a file of rows is missing.
        if not isinstance(error, DeltaError) and type(error) is not Exception:
            raise
        raise StorageError(
            f"the dead letters in {table} cannot be read: {error}. Restore the folder from a copy of the checkpoint"
        ) from error


def count_dead_letters(checkpoint: StorePath) -> DeadLetterCount:
    """The number of dead letters in a checkpoint."""
    folder = dead_letters_folder(checkpoint)
    if not _is_table(folder):
        return DeadLetterCount()
    with _readable(str(folder)):
        table = DeltaTable(str(folder), storage_options=delta_options(folder) or None)
        (part,) = QueryBuilder().register("letters", table).execute("SELECT count(*) AS n FROM letters")
        count = int(pa.table(part)["n"][0].as_py())
    return DeadLetterCount(count, dead_letters(checkpoint).settled() if count else 0, str(folder))


def _message(row: dict[str, Any], asked: set[Identity], done: set[Identity]) -> DeadLetterRecord:
    found = DeadLetterRecord(
        id=_id(row),
        topic=row["topic"],
        broker=row["broker"],
        queue_id=row["queue_id"],
        offset=row["queue_offset"],
        key=row["key"],
        message_id=row["message_id"],
        tags=row.get("tags"),
        stored_at=row["store_timestamp"],
        state=_state(row),
        reason=row["reason"],
        attempts=row["attempts"],
        batch=row["batch"],
        value=row.get("value"),
    )
    if found.identity in done:
        return replace(found, state=DeadLetterState.REDRIVEN)
    return replace(found, state=DeadLetterState.ASKED) if found.identity in asked else found


def _id(row: dict[str, Any]) -> str:
    if row["queue_offset"] < 0:
        return f"{row['key']}/{row['message_id']}"
    return f"{row['topic']}/{row['broker']}/{row['queue_id']}/{row['queue_offset']}"


def _state(row: dict[str, Any]) -> DeadLetterState:
    """The state of a dead letter without a request."""
    if row["queue_offset"] < 0:
        return DeadLetterState.TIMER
    if _waits_in_key(row):
        return DeadLetterState.NOTICE
    if row["reason"] == DISCARDED:
        return DeadLetterState.DISCARDED
    return DeadLetterState.DOUBTFUL if _DOUBTFUL.match(row["reason"]) else DeadLetterState.OPEN


def _place(row: dict[str, Any]) -> Place:
    return row["topic"], row["broker"], row["queue_id"], row["queue_offset"]


def _waits_in_key(row: dict[str, Any]) -> bool:
    """Whether the message still waits in its key. Older rows do not say; then undecodable messages do."""
    waits = row.get("waits")
    return row["reason"].startswith(_UNREADABLE) if waits is None else bool(waits)


def _redriven(each: DeadLetterRecord) -> RedrivenDeadLetter:
    position = (each.topic, each.broker, each.queue_id, each.offset)
    stored = 0 if each.stored_at is None else wall_ms(each.stored_at)
    return RedrivenDeadLetter(
        each.key, each.batch, WaitingMessage(*position, each.tags, stored, each.message_id, each.value)
    )


def _refusal(what: str, found: list[DeadLetterRecord]) -> str:
    """The error text for a redrive that matches no message."""
    if not found:
        return f"there is no dead letter {what}: see `lanemq pipeline dead-letters list` or records()"
    last = found[-1]
    if last.state is DeadLetterState.NOTICE:
        return (
            f"dead letter {what} is only a notice: its message still waits in its key {last.key!r}; redrive the key, "
            f"with `lanemq pipeline parked redrive`, or parked()"
        )
    if last.state is DeadLetterState.SETTLED:
        return (
            f"dead letter {what} was only a notice, and its message does not wait in its key {last.key!r} any more: it "
            f"was applied, or has a dead letter of its own"
        )
    if last.state is DeadLetterState.TIMER:
        return f"dead letter {what} is a timer that failed: send its key {last.key!r} an event that sets it again"
    perhaps = next((each for each in found if each.state is DeadLetterState.DOUBTFUL), None)
    if perhaps is not None:
        return (
            f"dead letter {what} may be a repeat of an applied message ({perhaps.reason}): to redrive it nevertheless, "
            f"give its id, {perhaps.id}"
        )
    return f"dead letter {what} was redriven already, or will be; nothing was requested"
