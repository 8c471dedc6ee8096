"""What `once` needs of a database, for connections that block and for those that are awaited.

Everything is written once, as coroutines. What a driver returns is awaited if it is awaitable (`settled`). With a
driver that blocks, a coroutine never waits for an event loop, so `run_blocking` runs it to its end in one go.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from lanemq.effects.statements import Dialect, Statement
from lanemq.model.errors import InvalidOption, UsageError

Rows: TypeAlias = Sequence[tuple[Any, ...]]
T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of work with a database that blocks."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a connection that should block was awaited")


async def settled(result: Any) -> Any:
    """What a driver's call returned, awaited if the driver is."""
    return await result if hasattr(result, "__await__") else result


class EffectDatabase(ABC):
    """One connection for one call of `once`; a subclass for each driver."""

    dialect: Dialect

    def __init__(self, handle: Any, give_back: Callable[[], Any] | None = None) -> None:
        self.handle = handle
        """What the caller's block works with."""
        self._give_back = give_back
        """Called at the end if the connection was opened, or borrowed, for this call."""

    @abstractmethod
    async def begin(self) -> bool:
        """Begins a transaction; raises `InsideTransaction` if the caller has one.

        True if it is only reading so far, and others may still write (SQLite).
        """

    @abstractmethod
    async def execute(self, statement: Statement) -> Rows: ...

    @abstractmethod
    async def check_open(self) -> None:
        """Raises if the block has ended the transaction, or PostgreSQL would not commit it. Called before `commit`."""

    async def commit(self) -> None:
        await settled(self.handle.commit())

    async def roll_back(self) -> None:
        await settled(self.handle.rollback())

    async def close(self) -> None:
        if self._give_back is not None:
            await settled(self._give_back())


SELECT_ONE = Statement("SELECT 1")
"""Fails in a transaction that PostgreSQL has aborted."""


def libraries_of(value: Any) -> list[str]:
    """The packages that define an object's class and its base classes."""
    return [kind.__module__.partition(".")[0] for kind in type(value).__mro__ if kind.__module__ != "builtins"]


def not_a_database(value: Any) -> InvalidOption:
    return InvalidOption(
        f"{type(value).__qualname__} is nothing that `once` can write with: pass a SQLAlchemy engine, session or "
        "connection, a DB-API connection, a pool of psycopg, or a function that opens one; use `async with` for those "
        "that are awaited, and `with` for the others"
    )


class InsideTransaction(UsageError):
    """The connection is inside a transaction of the caller, which stays as it is."""


def inside_transaction() -> InsideTransaction:
    return InsideTransaction(
        "the connection is inside a transaction already, and `once` must begin and commit its own: commit or roll back "
        "before, or pass another connection. That transaction is still open, with what it has written"
    )


class TransactionEnded(UsageError):
    """The block committed or rolled back itself."""


def transaction_ended() -> TransactionEnded:
    return TransactionEnded(
        "the block ended its transaction itself, so its writes and the message's place may not be stored together: "
        "leave commit and rollback to `once`"
    )


def check_status(connection: Any) -> None:
    """`check_open` for a connection of psycopg, which knows the state of its transaction."""
    match connection.info.transaction_status.name:
        case "IDLE":
            raise transaction_ended()
        case "INERROR":  # PostgreSQL answers a commit of it with a rollback, and most drivers do not notice
            raise UsageError(
                "the block caught an error of the database, after which PostgreSQL stores nothing of the transaction: "
                "let the error pass, or use a savepoint"
            )


def plain_rows(rows: Any) -> Rows:
    """Rows as tuples, whatever the connection's row factory makes of them."""
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]
