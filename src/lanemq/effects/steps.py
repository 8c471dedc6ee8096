"""What `once` does with a database, step by step, whatever the driver is (`databases`).

    begin ─ epoch ─┬─ older than the database's: roll back, `LeaseLost`
                   ├─ newer: roll back, store it in a transaction of its own, begin again
                   └─ the same: the lanes ─┬─ a repeat: roll back, `AlreadyApplied`
                                           └─ new: their places are stored; the caller's writes follow, then commit

The epoch has a transaction of its own, because the first message of a new owner would otherwise keep the row locked
for as long as its handler runs, and all other keys of the queue would wait.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex

from lanemq.client.consumer.turns.handler import AlreadyApplied
from lanemq.client.message import Message
from lanemq.core.effects import (
    LOG_BEGAN_AGAIN,
    NEW,
    REPEAT,
    EffectOwner,
    EffectVerdict,
    HourCounter,
    LaneEffects,
    LogPlace,
    PendingEffect,
    by_lane,
    judge_effect,
    judge_owner,
    leading_repeats,
)
from lanemq.effects.databases import EffectDatabase, InsideTransaction, Rows
from lanemq.effects.statements import CLEAN_ROWS, Dialect, EffectScope, EffectTables, Statement, hour_counter
from lanemq.model.errors import EffectRefused, LeaseLost
from lanemq.model.units import Millis

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
    keep_hours: int
    originals: tuple[EffectScope, ...] = ()
    """The queues of the originals, if some messages are copies that a mirror made."""


async def begin_effect(database: EffectDatabase, tables: EffectTables, batch: EffectBatch) -> None:
    """Leaves the transaction open for the caller's writes, with the places of the batch stored in it.

    Raises:
        AlreadyApplied: some or all of the messages had their effect before.
        LeaseLost: a newer owner of the queue has written to the database.
        EffectRefused: the database contradicts the message.
    """
    created = False
    first, *others = by_lane(batch.effects)
    for _ in range(MAX_ROUNDS):
        reading = await database.begin()
        try:
            if reading:
                await database.execute(tables.write_lock())
            rows = await database.execute(tables.locked_epoch(batch.scope, batch.epoch, first, batch.keep_hours))
        except Exception as error:
            await database.roll_back()
            if created:
                raise
            await _create(database, tables, error)
            created = True
            continue
        highest = rows[0][0] if rows else None
        owner = judge_owner(highest, batch.epoch)
        if owner is EffectOwner.CURRENT:
            unknown = await _unknown_queues(database, tables, batch)
            if not unknown:
                taken = len(rows[0]) > 1 and rows[0][1]
                await _take_places(database, tables, batch, others if taken else [first, *others])
                return
            await database.roll_back()
            # Epoch 0 is replaced by any owner. In a transaction of its own: all keys of the queue would wait.
            await _transact(database, [each for scope in unknown for each in tables.raise_epoch(scope, 0, there=False)])
            continue
        await database.roll_back()
        if owner is EffectOwner.STALE:
            raise _stale(batch, highest)
        await _raise_epoch(database, tables, batch, highest is not None)
    raise LeaseLost(f"{batch.messages[0]}: owners of its queue change faster than a transaction begins; try again")


async def _transact(database: EffectDatabase, statements: Sequence[Statement]) -> Rows:
    """Runs the statements in a transaction of their own; returns the rows of the last."""
    rows: Rows = ()
    try:
        await database.begin()
        for statement in statements:
            rows = await database.execute(statement)
        await database.commit()
    except InsideTransaction:
        raise
    except BaseException:
        with contextlib.suppress(Exception):  # a lost connection rolls back by itself
            await database.roll_back()
        raise
    return rows


async def _create(database: EffectDatabase, tables: EffectTables, because: Exception) -> None:
    """Creates the tables: most likely they are the reason why the first statement failed."""
    try:
        await _transact(database, tables.creation())
    except Exception as error:
        raise because from error


async def _raise_epoch(database: EffectDatabase, tables: EffectTables, batch: EffectBatch, there: bool) -> None:
    """Stores the epoch. Waits for running transactions of older owners, and ends them if their clients are silent."""
    storing = tables.raise_epoch(batch.scope, batch.epoch, there)
    try:
        await _transact(database, storing)
    except Exception as error:
        if tables.dialect is not Dialect.POSTGRESQL or sql_state(error) != "55P03":
            raise
        await _transact(database, [tables.end_older_owners(batch.scope, batch.epoch)])
        await _transact(database, storing)


async def _unknown_queues(database: EffectDatabase, tables: EffectTables, batch: EffectBatch) -> list[EffectScope]:
    """The queues of originals that have no row yet. `forget` finds the lanes of a queue by it."""
    return [scope for scope in batch.originals if not await database.execute(tables.known_queue(scope))]


async def _take_places(
    database: EffectDatabase, tables: EffectTables, batch: EffectBatch, lanes: Sequence[LaneEffects]
) -> None:
    refused: dict[tuple[int, str], LogPlace | None] = {}
    for lane in lanes:
        place = await _take_place(database, tables, batch, lane)
        if place is not None:
            refused[lane.queue, lane.lane] = place
    if refused:
        await database.roll_back()
        raise _refusal(batch, [judge_effect(refused.get((each.queue, each.lane)), each) for each in batch.effects])


async def _take_place(
    database: EffectDatabase, tables: EffectTables, batch: EffectBatch, lane: LaneEffects
) -> LogPlace | None:
    """Stores the place of a lane; returns the last applied message if the lane's first one is not new."""
    upsert = tables.take_place(lane, batch.keep_hours)
    if upsert is not None and await database.execute(upsert):
        return None
    rows = await database.execute(tables.locked_place(lane.queue, lane.lane))
    applied = LogPlace(*rows[0]) if rows else None
    if judge_effect(applied, lane.first) is not NEW:
        return applied
    await database.execute(tables.store_place(lane, batch.keep_hours, applied is not None))
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


_HOURS = HourCounter()


async def clean_tables(database: EffectDatabase, tables: EffectTables, now: Callable[[], Millis]) -> bool:
    """Deletes rows whose time is over; True if there may be more."""
    rows = await _transact(database, [tables.stored_hour()])
    if not rows:
        await _transact(database, tables.raise_epoch(hour_counter(token_hex(16)), 0, there=False))
        return False
    counter, stored = rows[0]
    hour = _HOURS.next_hour(counter, stored, now())
    if hour > stored:
        await _transact(database, tables.raise_epoch(hour_counter(counter), hour, there=True))
    return len(await _transact(database, [tables.clean(hour)])) >= CLEAN_ROWS


async def forget_effects(
    database: EffectDatabase, tables: EffectTables, group: str, topic: str, unordered: EffectScope, lane: str | None
) -> None:
    """Deletes what the tables know of one lane, or of all lanes of a topic."""
    try:
        rows = await _transact(database, [tables.queues(group, topic)])
    except Exception as error:  # noqa: BLE001 - raised again unless the tables were missing
        await _create(database, tables, error)
        return
    queues = sorted({unordered.number, *(row[0] for row in rows)})
    await _transact(
        database,
        [
            statement
            for queue in queues
            for statement in (tables.forget_queue(queue) if lane is None else tables.forget_lane(queue, lane))
        ],
    )


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
