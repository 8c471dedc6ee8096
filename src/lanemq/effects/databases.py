"""What `once` needs of a driver, blocking or awaited, and the loops that perform steps with it."""

from collections.abc import Mapping
from typing import Any, Protocol

from lanemq.effects.statements import Dialect, Statement
from lanemq.effects.steps import BeginTransaction, Commit, Execute, RollBack, Rows, Step, Steps, T
from lanemq.model.errors import InvalidOption, UsageError

READING: Rows = [(1,)]
"""The answer to `BeginTransaction` for a transaction that is only reading so far."""


class EffectDatabase(Protocol):
    """One connection for one call of `once`."""

    dialect: Dialect
    handle: Any
    """What the caller's block works with."""

    def begin(self) -> Rows: ...
    def execute(self, statement: Statement) -> Rows: ...
    def check_open(self) -> None:
        """Raises if the block has ended the transaction, or PostgreSQL would not commit it. Called before `commit`."""

    def commit(self) -> None: ...
    def roll_back(self) -> None: ...
    def close(self) -> None:
        """Gives back what this object has opened, and nothing else."""


def perform(steps: Steps[T], database: EffectDatabase) -> T:
    """Does what the steps say, and returns their result."""
    answer: Rows = ()
    error: Exception | None = None
    step = next(steps, None)
    assert step is not None
    while True:
        try:
            answer, error = _perform_step(step, database), None
        except Exception as raised:  # noqa: BLE001 - the steps decide
            error = raised
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result


def _perform_step(step: Step, database: EffectDatabase) -> Rows:
    match step:
        case BeginTransaction():
            return database.begin()
        case Execute(statement):
            return database.execute(statement)
        case Commit():
            database.commit()
        case RollBack():
            database.roll_back()
    return ()


class AsyncEffectDatabase(Protocol):
    """One connection for one call of `once` with `async with`."""

    dialect: Dialect
    handle: Any
    """What the caller's block works with."""

    async def begin(self) -> Rows: ...
    async def execute(self, statement: Statement) -> Rows: ...
    async def check_open(self) -> None:
        """Raises if the block has ended the transaction, or PostgreSQL would not commit it. Called before `commit`."""

    async def commit(self) -> None: ...
    async def roll_back(self) -> None: ...
    async def close(self) -> None:
        """Gives back what this object has opened, and nothing else."""


async def perform_async(steps: Steps[T], database: AsyncEffectDatabase) -> T:
    """`perform`, for event loops."""
    answer: Rows = ()
    error: Exception | None = None
    step = next(steps, None)
    assert step is not None
    while True:
        try:
            answer, error = await _perform_step_async(step, database), None
        except Exception as raised:  # noqa: BLE001 - the steps decide
            error = raised
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result


async def _perform_step_async(step: Step, database: AsyncEffectDatabase) -> Rows:
    match step:
        case BeginTransaction():
            return await database.begin()
        case Execute(statement):
            return await database.execute(statement)
        case Commit():
            await database.commit()
        case RollBack():
            await database.roll_back()
    return ()


SET_SAVEPOINT, RELEASE_SAVEPOINT = "SAVEPOINT lanemq_once", "RELEASE lanemq_once"
"""A savepoint of SQLite, set at the beginning, which ends with its transaction. So a block is noticed that commits and
then writes, which begins another transaction by itself (`with connection:` and `executescript` commit)."""

SELECT_ONE = Statement("SELECT 1")
"""Fails in a transaction that PostgreSQL has aborted."""


def libraries_of(given: Any) -> list[str]:
    """The packages that define an object's class and its base classes."""
    return [kind.__module__.partition(".")[0] for kind in type(given).__mro__ if kind.__module__ != "builtins"]


def not_a_database(given: Any) -> InvalidOption:
    return InvalidOption(
        f"{type(given).__qualname__} is nothing that `once` can write with: pass a SQLAlchemy engine, session or "
        "connection, a DB-API connection, a pool of psycopg, or a function that opens one; use `async with` for those "
        "that are awaited, and `with` for the others"
    )


def inside_transaction() -> UsageError:
    return UsageError(
        "the connection is inside a transaction already, and `once` must begin and commit its own: commit or roll back "
        "before, or pass another connection"
    )


class TransactionEnded(UsageError):
    """The block committed or rolled back itself."""


def transaction_ended() -> TransactionEnded:
    return TransactionEnded(
        "the block ended its transaction itself, so its writes and the message's place may not be stored together: "
        "leave commit and rollback to `once`"
    )


def transaction_aborted() -> UsageError:
    """PostgreSQL answers a commit of such a transaction with a rollback, and most drivers do not notice."""
    return UsageError(
        "the block caught an error of the database, after which PostgreSQL stores nothing of the transaction: let the "
        "error pass, or use a savepoint"
    )


def check_status(connection: Any) -> None:
    """`check_open` for a connection of psycopg, which knows the state of its transaction."""
    match connection.info.transaction_status.name:
        case "IDLE":
            raise transaction_ended()
        case "INERROR":
            raise transaction_aborted()


def plain_rows(found: Any) -> Rows:
    """Rows as tuples, whatever the connection's row factory makes of them."""
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in found]
