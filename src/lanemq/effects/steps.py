"""What `once` does with a database, step by step, without doing it: a generator of steps, for any driver.

A driver performs each step and sends back the rows, or throws the error in. So threads and event loops share one
sequence, and tests run it without a database.

    begin ─ epoch ─┬─ older than the database's: roll back, `LeaseLost`
                   ├─ newer: roll back, store it in a transaction of its own, begin again
                   └─ the same: the lanes ─┬─ a repeat: roll back, `AlreadyApplied`
                                           └─ new: their places are stored; the caller's writes follow, then commit

The epoch has a transaction of its own, because the first message of a new owner would otherwise keep the row locked
for as long as its handler runs, and all other keys of the queue would wait.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from lanemq.client.consumer.turns.handler import AlreadyApplied
from lanemq.client.message import Message
from lanemq.core.effects import (
    LOG_BEGAN_AGAIN,
    NEW,
    REPEAT,
    EffectOwner,
    EffectVerdict,
    LaneEffects,
    LogPlace,
    PendingEffect,
    by_lane,
    judge_effect,
    judge_owner,
    leading_repeats,
)
from lanemq.effects.statements import CLEAN_ROWS, Dialect, EffectScope, EffectTables, Statement
from lanemq.model.errors import EffectRefused, LeaseLost


@dataclass(frozen=True, slots=True)
class BeginTransaction:
    """Begins a transaction. A row comes back if it is only reading so far, and others may still write (SQLite)."""


@dataclass(frozen=True, slots=True)
class Execute:
    """Runs a statement; its rows are sent back."""

    statement: Statement


@dataclass(frozen=True, slots=True)
class Commit:
    """Commits the transaction."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """Ends the transaction without its changes."""


Rows: TypeAlias = Sequence[tuple[Any, ...]]
T = TypeVar("T")
Step: TypeAlias = BeginTransaction | Execute | Commit | RollBack
Steps: TypeAlias = Generator[Step, Rows, T]

MAX_ROUNDS = 6
"""How often `begin_effect` begins: the tables may be missing, and other owners may store epochs at the same time."""


@dataclass(frozen=True, slots=True)
class EffectBatch:
    """The messages of one call of `once`."""

    scope: EffectScope
    epoch: int
    effects: tuple[PendingEffect, ...]
    messages: tuple[Message, ...]
    """The message of each effect, for errors and verdicts."""
    expiry_hour: int
    originals: tuple[EffectScope, ...] = ()
    """The queues of the originals, if some messages are copies that a mirror made."""


def begin_effect(tables: EffectTables, batch: EffectBatch) -> Steps[None]:
    """Leaves the transaction open for the caller's writes, with the places of the batch stored in it.

    Raises:
        AlreadyApplied: some or all of the messages had their effect before.
        LeaseLost: a newer owner of the queue has written to the database.
        EffectRefused: the database contradicts the message.
    """
    created = False
    first, *others = by_lane(batch.effects)
    for _ in range(MAX_ROUNDS):
        reading = yield BeginTransaction()
        try:
            if reading:
                yield Execute(tables.write_lock())
            found = yield Execute(tables.locked_epoch(batch.scope, batch.epoch, first, batch.expiry_hour))
        except Exception as error:
            yield RollBack()
            if created:
                raise
            yield from _create(tables, error)
            created = True
            continue
        highest = found[0][0] if found else None
        owner = judge_owner(highest, batch.epoch)
        if owner is EffectOwner.CURRENT:
            unknown = yield from _unknown_queues(tables, batch)
            if unknown:
                yield RollBack()
                yield from _add_queues(tables, unknown)
                continue
            taken = len(found[0]) > 1 and found[0][1]
            yield from _take_places(tables, batch, others if taken else [first, *others])
            return
        yield RollBack()
        if owner is EffectOwner.STALE:
            raise _stale(batch, highest)
        yield from _raise_epoch(tables, batch, highest is not None)
    raise LeaseLost(f"{batch.messages[0]}: owners of its queue change faster than a transaction begins; try again")


def _create(tables: EffectTables, because: Exception) -> Steps[None]:
    """Creates the tables: most likely they are the reason why the first statement failed."""
    try:
        yield BeginTransaction()
        for statement in tables.creation():
            yield Execute(statement)
        yield Commit()
    except Exception as error:
        yield RollBack()
        raise because from error


def _raise_epoch(tables: EffectTables, batch: EffectBatch, there: bool) -> Steps[None]:
    """Stores the epoch. Waits for running transactions of older owners, and ends them if their clients are silent."""
    may_end = tables.dialect is Dialect.POSTGRESQL
    while True:
        yield BeginTransaction()
        try:
            for statement in tables.raise_epoch(batch.scope, batch.epoch, there):
                yield Execute(statement)
            yield Commit()
            return
        except Exception as error:
            yield RollBack()
            if not may_end or sql_state(error) != "55P03":
                raise
        may_end = False
        yield BeginTransaction()
        yield Execute(tables.end_older_owners(batch.scope, batch.epoch))
        yield Commit()


def _unknown_queues(tables: EffectTables, batch: EffectBatch) -> Steps[list[EffectScope]]:
    """The queues of originals that have no row yet. `forget` finds the lanes of a queue by it."""
    unknown = []
    for scope in batch.originals:
        if not (yield Execute(tables.known_queue(scope))):
            unknown.append(scope)
    return unknown


def _add_queues(tables: EffectTables, scopes: Sequence[EffectScope]) -> Steps[None]:
    """Stores epoch 0, which any owner replaces, in a transaction of its own: all keys of the queue would wait."""
    yield BeginTransaction()
    try:
        for scope in scopes:
            for statement in tables.raise_epoch(scope, 0, there=False):
                yield Execute(statement)
        yield Commit()
    except Exception:
        yield RollBack()
        raise


def _take_places(tables: EffectTables, batch: EffectBatch, lanes: Sequence[LaneEffects]) -> Steps[None]:
    refused: dict[tuple[int, str], LogPlace | None] = {}
    for lane in lanes:
        place = yield from _take_place(tables, batch, lane)
        if place is not None:
            refused[lane.queue, lane.lane] = place
    if refused:
        yield RollBack()
        raise _refusal(batch, [judge_effect(refused.get((each.queue, each.lane)), each) for each in batch.effects])


def _take_place(tables: EffectTables, batch: EffectBatch, lane: LaneEffects) -> Steps[LogPlace | None]:
    """Stores the place of a lane; returns the last applied message if the lane's first one is not new."""
    upsert = tables.take_place(lane, batch.expiry_hour)
    if upsert is not None and (yield Execute(upsert)):
        return None
    found = yield Execute(tables.locked_place(lane.queue, lane.lane))
    applied = LogPlace(*found[0]) if found else None
    if judge_effect(applied, lane.first) is not NEW:
        return applied
    yield Execute(tables.store_place(lane, batch.expiry_hour, applied is not None))
    return None


def _refusal(batch: EffectBatch, verdicts: list[EffectVerdict]) -> Exception:
    for message, verdict in zip(batch.messages, verdicts, strict=True):
        if verdict not in (NEW, REPEAT):
            remedy = (
                "the broker's data was deleted, or its clock was set back: if you know that it was not applied"
                if verdict is LOG_BEGAN_AGAIN
                else "if it has to be applied all the same"
            )
            return EffectRefused(
                f"{message}: {verdict.value}; {remedy}, call lanemq.effects.forget for its key, otherwise discard it"
            )
    repeats = leading_repeats(verdicts)
    if repeats is None:
        return AlreadyApplied("a part of the batch was applied before")
    return AlreadyApplied("it was applied before", message=batch.messages[repeats - 1])


def _stale(batch: EffectBatch, highest: int | None) -> LeaseLost:
    return LeaseLost(
        f"{batch.messages[0]} was read under epoch {batch.epoch}, and epoch {highest} of its queue has written to the "
        "database: another member owns the queue now and applies it. If instead the broker lost its data and counts "
        "epochs anew, call lanemq.effects.forget for the topic"
    )


def clean_tables(tables: EffectTables, hour: int) -> Steps[bool]:
    """Deletes rows whose time is over; True if there may be more."""
    yield BeginTransaction()
    deleted = yield Execute(tables.clean(hour))
    yield Commit()
    return len(deleted) >= CLEAN_ROWS


def forget_effects(
    tables: EffectTables, group: str, topic: str, unordered: EffectScope, lane: str | None
) -> Steps[None]:
    """Deletes what the tables know of one lane, or of all lanes of a topic."""
    yield BeginTransaction()
    try:
        found = yield Execute(tables.queues(group, topic))
    except Exception as error:  # noqa: BLE001 - raised again unless the tables were missing
        yield RollBack()
        yield from _create(tables, error)
        return
    for queue in sorted({unordered.number, *(row[0] for row in found)}):
        for statement in tables.forget_queue(queue) if lane is None else tables.forget_lane(queue, lane):
            yield Execute(statement)
    yield Commit()


def sql_state(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also if SQLAlchemy wraps it."""
    driver = getattr(error, "orig", None)
    for each in (error, driver, getattr(driver, "__cause__", None)):
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state:
            return str(state)
        fields = next(iter(getattr(each, "args", ())), None)
        if isinstance(fields, dict) and "C" in fields:  # pg8000
            return str(fields["C"])
    return None
