"""`once`: one transaction for the caller's writes, the message's place and the owner's epoch.

    with once(message, engine) as session:
        session.execute(...)

Entering the block begins the transaction and judges the message; leaving it commits. A repeat ends the handler with
`AlreadyApplied`, which the consumer counts as done: Python cannot leave out the body of a `with` statement in any other
way, and code behind the block does not run either.
"""

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

from lanemq.client.consumer.turns.handler import HandlerVerdict
from lanemq.client.copies import original_place
from lanemq.client.message import Message
from lanemq.clock import Clock, SystemClock
from lanemq.core.effects import LogPlace, PendingEffect
from lanemq.effects.databases import EffectDatabase, InsideTransaction, TransactionEnded, run_blocking
from lanemq.effects.drivers import open_database
from lanemq.effects.statements import Dialect, EffectScope, lane_name, scope_of, tables_for
from lanemq.effects.steps import EffectBatch, begin_effect, clean_tables, forget_effects
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.keys import Key, key_text
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, Seconds, to_seconds

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

TABLE: Final = "lanemq_effects"
KEEP: Final = timedelta(days=7)
CLEAN_EVERY_MS: Final = 600_000

Messages: TypeAlias = Message | Sequence[Message]


class OnceOptions(TypedDict, total=False):
    """The options of `once`."""

    table: str
    """`name` or `schema.name` of the table that remembers what was applied; `name_epochs` is its second one. Both are
    created if they do not exist. Default: `lanemq_effects`."""
    keep: Seconds
    """How long a key is remembered after its last message; 7 days, in whole hours in which a process used the table.
    Choose more than the broker's retention: what the broker can still deliver is then always recognised. Less saves
    rows, and a later repeat is applied again."""
    clock: Clock | None
    """For tests."""


class BlockingHandle(Protocol):
    """What blocks: a DB-API connection, or a session or connection of SQLAlchemy."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class AwaitedHandle(Protocol):
    """What is awaited: a connection of psycopg or aiosqlite, or a session or connection of SQLAlchemy."""

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


B = TypeVar("B", bound=BlockingHandle)
A = TypeVar("A", bound=AwaitedHandle)
B_co = TypeVar("B_co", bound=BlockingHandle, covariant=True)
A_co = TypeVar("A_co", bound=AwaitedHandle, covariant=True)


class BlockingPool(Protocol[B_co]):
    """psycopg_pool.ConnectionPool."""

    def connection(self) -> AbstractContextManager[B_co]: ...


class AwaitedPool(Protocol[A_co]):
    """psycopg_pool.AsyncConnectionPool."""

    def connection(self) -> AbstractAsyncContextManager[A_co]: ...


@overload
def once(message: Messages, engine: A, **options: Unpack[OnceOptions]) -> AbstractAsyncContextManager[A]: ...
@overload
def once(message: Messages, engine: B, **options: Unpack[OnceOptions]) -> AbstractContextManager[B]: ...
@overload
def once(
    message: Messages, engine: Callable[[], A | Awaitable[A]], **options: Unpack[OnceOptions]
) -> AbstractAsyncContextManager[A]: ...
@overload
def once(message: Messages, engine: Callable[[], B], **options: Unpack[OnceOptions]) -> AbstractContextManager[B]: ...
@overload
def once(
    message: Messages, engine: AwaitedPool[A], **options: Unpack[OnceOptions]
) -> AbstractAsyncContextManager[A]: ...
@overload
def once(message: Messages, engine: BlockingPool[B], **options: Unpack[OnceOptions]) -> AbstractContextManager[B]: ...
@overload
def once(
    message: Messages, engine: "AsyncEngine", **options: Unpack[OnceOptions]
) -> "AbstractAsyncContextManager[AsyncSession]": ...
@overload
def once(message: Messages, engine: "Engine", **options: Unpack[OnceOptions]) -> "AbstractContextManager[Session]": ...
def once(message: Messages, engine: Any, **options: Unpack[OnceOptions]) -> Any:
    """A transaction in which the message has its effect once, whatever is delivered again.

    Args:
        message: The message, or all messages of a batch.
        engine: What reaches the database. A SQLAlchemy engine, sessionmaker, session or connection; a connection of
            sqlite3, psycopg or any other DB-API driver; a pool of psycopg or asyncpg; or a function that opens a
            connection, which is closed after the block. Those that are awaited need `async with`.
        options: `OnceOptions`.

    Raises:
        AlreadyApplied: on entering, for a repeat; the consumer takes the message as done.
        LeaseLost: on entering, if a newer owner of the queue has written to the database.
        EffectRefused: on entering, if the database contradicts the message.
    """
    clock = options.get("clock") or _CLOCK
    return Once(message, engine, options.get("table", TABLE), options.get("keep", KEEP), clock)


_CLOCK = SystemClock()


class Once:
    """The block of one call of `once`."""

    def __init__(self, message: Messages, engine: Any, table: str, keep: Seconds, clock: Clock) -> None:
        self._engine = engine
        self._table = table
        self._clock = clock
        messages = (message,) if isinstance(message, Message) else tuple(message)
        self._batch = effect_batch(messages, _keep_hours(keep))
        self._database: EffectDatabase | None = None

    def __enter__(self) -> Any:
        return run_blocking(self._enter(awaited=False))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_blocking(self._exit(error))

    async def __aenter__(self) -> Any:
        return await self._enter(awaited=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit(error)

    async def _enter(self, *, awaited: bool) -> Any:
        if self._database is not None:
            raise UsageError("this `once` is entered already: call once(...) for each block")
        database = self._database = await open_database(self._engine, awaited=awaited)
        try:
            await begin_effect(database, tables_for(database.dialect, self._table), self._batch)
        except InsideTransaction:
            self._database = None
            await database.close()
            raise
        except BaseException:
            await self._give_up(database)
            raise
        return database.handle

    async def _exit(self, error: BaseException | None) -> None:
        database = self._database
        assert database is not None
        if error is not None:
            try:
                with contextlib.suppress(Exception):
                    await self._notice_ending(database)
            finally:
                await self._give_up(database)
            if isinstance(error, HandlerVerdict):  # the messages before the one that it names are not done either
                error.rolled_back = (*error.rolled_back, *self._batch.messages)
            return
        try:
            await database.check_open()
            await database.commit()
        except BaseException:
            await self._give_up(database)
            raise
        try:
            await self._clean(database)
        finally:
            self._database = None
            await database.close()

    async def _notice_ending(self, database: EffectDatabase) -> None:
        """Logs that a block has ended its transaction before it raised: a retry may find the message applied."""
        try:
            await database.check_open()
        except TransactionEnded:
            log.error(
                "%s: the block of `once` ended its transaction itself and then failed. If it committed, the message "
                "counts as applied and the rest of the block is never written: leave commit and rollback to `once`",
                self._batch.messages[0],
            )

    async def _give_up(self, database: EffectDatabase) -> None:
        """Rolls back and gives the connection back, also if a time-out of the program cancels it meanwhile."""
        self._database = None
        try:
            with contextlib.suppress(Exception):  # a lost connection rolls back by itself
                await database.roll_back()
        finally:
            with contextlib.suppress(Exception):
                await database.close()

    async def _clean(self, database: EffectDatabase) -> None:
        now = self._clock.now()
        if not CLEANING.is_due(database.dialect, self._table, now):
            return
        try:
            more = await clean_tables(database, tables_for(database.dialect, self._table), self._clock.now)
        except Exception as error:  # noqa: BLE001 - the effect is committed; the next cleaning tries again
            log.warning(
                "table %s: rows whose time is over could not be deleted, trying again later: %s", self._table, error
            )
        else:
            CLEANING.done(database.dialect, self._table, now, more=more)


def effect_batch(messages: tuple[Message, ...], keep_hours: int) -> EffectBatch:
    """The messages as the rule sees them.

    Messages that the handler gets in order share the lane of their key. Any other message is a lane by itself: its id
    is remembered, and is the same if it is sent back and comes again through a retry topic.
    """
    if not messages:
        raise UsageError("once() needs a message, and this batch is empty: call it only with messages")
    source = messages[0].source
    if not source.group:
        raise UsageError(
            f"{messages[0]} was not delivered by a consumer, so `once` cannot know what was applied before it: call it "
            f"in a handler, with the message that the handler gets"
        )
    if any(message.source.queue != source.queue or message.source.epoch != source.epoch for message in messages):
        raise UsageError("the messages of once() must be those of one batch: they come from several queues")
    if not source.in_order or source.is_retry:
        scope = unordered_scope(source.group, messages[0].topic)
        effects = tuple(PendingEffect(scope.number, lane_name(each.message_id), LogPlace(0, 0)) for each in messages)
        return EffectBatch(scope, 0, effects, messages, keep_hours)
    scope = scope_of(source.group, source.queue)
    places = [_place_of(each) for each in messages]
    scopes = {queue: scope_of(source.group, queue) for queue in {queue for queue, _ in places}}
    effects = tuple(
        PendingEffect(scopes[queue].number, lane_name(each.key), place, source.overtaken)
        for each, (queue, place) in zip(messages, places, strict=True)
    )
    originals = tuple(original for queue, original in sorted(scopes.items()) if queue != source.queue)
    return EffectBatch(scope, source.epoch, effects, messages, keep_hours, originals)


def _place_of(message: Message) -> tuple[MessageQueue, LogPlace]:
    """Where the message is; where its original is, if it is a copy that a mirror made.

    What a group applied before a move to another broker is then a repeat after it. If both brokers have one name, the
    queues cannot be told apart, and places of both logs would be mixed in one row.
    """
    original = original_place(message.properties_text, message.queue.topic)
    if original is None or original.queue == message.queue:
        return message.queue, LogPlace(message.record.position, message.record.store_timestamp)
    return original.queue, LogPlace(original.position, original.stored_ms)


def unordered_scope(group: str, topic: str) -> EffectScope:
    return scope_of(group, MessageQueue(topic, "", -1))


def _keep_hours(keep: Seconds) -> int:
    seconds = to_seconds(keep)
    if not 0 <= seconds <= 3e10:
        raise InvalidOption(f"keep={keep!r}: write seconds, at least 0, or a timedelta")
    return int(seconds // 3600) + 1


class _Cleaning:
    """When this process cleans which table next."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._due: dict[tuple[Dialect, str], Millis] = {}

    def is_due(self, dialect: Dialect, table: str, now: Millis) -> bool:
        """True for one caller; the next one has to wait, or for `done` to say that there is more."""
        with self._mutex:
            if now < self._due.get((dialect, table), now):
                return False
            self._due[(dialect, table)] = Millis(now + CLEAN_EVERY_MS)
            return True

    def done(self, dialect: Dialect, table: str, now: Millis, *, more: bool) -> None:
        if more:
            with self._mutex:
                self._due[(dialect, table)] = now


CLEANING = _Cleaning()


def forget(engine: Any, *, group: str, topic: str, key: Key | None = None, table: str = TABLE) -> None:
    """Forgets what a group applied of a topic, so that it is applied again when it is delivered again.

    Without `key`, everything of the topic, epochs included: stop the group's consumers before. A topic that the group
    consumes concurrently can only be forgotten as a whole.
    """
    run_blocking(_forget(engine, group, topic, key, table, awaited=False))


async def forget_async(engine: Any, *, group: str, topic: str, key: Key | None = None, table: str = TABLE) -> None:
    """`forget`, for connections that are awaited."""
    await _forget(engine, group, topic, key, table, awaited=True)


async def _forget(engine: Any, group: str, topic: str, key: Key | None, table: str, *, awaited: bool) -> None:
    database = await open_database(engine, awaited=awaited)
    try:
        lane = None if key is None else lane_name(key_text(key))
        tables = tables_for(database.dialect, table)
        await forget_effects(database, tables, group, topic, unordered_scope(group, topic), lane)
    finally:
        await database.close()


def table_definition(dialect: str, table: str = TABLE) -> str:
    """The SQL that creates the tables, for programs whose database user may not: "postgresql", "sqlite" or "other"."""
    try:
        kind = Dialect(dialect)
    except ValueError:
        known = ", ".join(each.value for each in Dialect)
        raise InvalidOption(f"dialect {dialect!r}: write one of {known}") from None
    return "".join(f"{statement};\n" for statement in tables_for(kind, table).definition())
