"""Sessions of the PostgreSQL sink, on the driver and in tasks, and what errors of the database mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from lanemq.model.environment import install_extra
from lanemq.model.errors import ConnectFailed, ConnectionLost, InvalidOption, LaneError, RequestTimedOut, StorageError

LOCK_MS = 5_000
"""How long the server waits for a lock, before the sink logs a warning and tries again."""
HANGING_MS = 60_000
"""How long the server keeps a transaction of a silent client, if no newer run ends it."""
CONNECT_SECONDS = 5

_RETRIABLE_STATES = frozenset({"40001", "40P01", "55P03", "57014", "53300", "53400"})
"""Serialization, deadlock, lock timeout, cancelled, too many connections, limits: a later attempt may succeed."""
_RETRIABLE_REFUSALS = ("starting up", "shutting down", "recovery", "too many", "reserved", "terminating")
"""Parts of the refusal of a server that will take connections again later."""


@dataclass(frozen=True, slots=True)
class PostgresSession:
    """How to open a session, and how its errors are read. It can be sent to tasks."""

    dsn: str = field(repr=False)
    """May contain a password."""
    table: str
    """How messages name the table."""
    name: str
    """What the server calls the session, so that a newer run can end it."""
    trusts: bool = False
    """Whether some columns were promised to take all texts."""

    def connect(self) -> Any:
        """An open connection; a retriable error if the server may take it later."""
        psycopg = driver()
        try:
            connection = psycopg.connect(self.dsn, autocommit=True, connect_timeout=CONNECT_SECONDS)
        except psycopg.OperationalError as error:
            raise _connect_error(str(error)) from error
        with self.errors(connection):
            connection.execute(
                f"SET lock_timeout = {LOCK_MS}; SET idle_in_transaction_session_timeout = {HANGING_MS}; "
                f"SET client_encoding = 'UTF8'; SET TimeZone = 'UTC'; SET application_name = '{self.name}'"
            )
        return connection

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        """Turn errors of the database into LaneErrors, retriable if they may pass."""
        try:
            yield
        except driver().Error as error:
            if connection.broken or connection.closed:
                raise ConnectionLost(f"PostgreSQL, table {self.table}: {first_line(error)}") from error
            raise self._lane_error(error) from error

    def _lane_error(self, error: Any) -> LaneError:
        text = f"table {self.table}: {first_line(error)}"
        if error.sqlstate in _RETRIABLE_STATES:
            return RequestTimedOut(text)
        if self.trusts and str(error.sqlstate).startswith(("22", "23514")):
            lines = (error.diag.context or "").splitlines()
            where = next((f" ({line})" for line in lines if line.startswith("COPY")), "")
            text += f"{where}. trust_columns promises that all texts fit: leave such rows out before the sink"
        return InvalidOption(text) if error.sqlstate == "42P10" else StorageError(text)


def driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidOption(f"the PostgreSQL sink needs psycopg: {install_extra('postgres')}") from error
    found: ModuleType = psycopg
    return found


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _connect_error(text: str) -> LaneError:
    """A retriable error, or `InvalidOption` if the server refuses for good, for example because of a wrong password."""
    line = next(iter(text.strip().splitlines()), "no reason given")
    if "FATAL" in text and not any(passing in text for passing in _RETRIABLE_REFUSALS):
        return InvalidOption(f"dsn: PostgreSQL refuses the connection: {line}")
    return ConnectFailed(f"PostgreSQL: {line}")
