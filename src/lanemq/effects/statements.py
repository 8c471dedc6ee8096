"""The tables of `lanemq.effects` and the statements about them, for each kind of database.

Two tables. `<table>_epochs` has a row for each queue of a group, with the highest epoch that has written. `<table>` has
a row for each lane, with the last message that was applied and the hour in which the row may be deleted. A copy that a
mirror made has its row under the queue of its original, and the epoch of the queue that it is in. One row more in
`<table>_epochs` has the present hour as its epoch (`core.effects.HourCounter`).

Statements have `?` for values; the drivers' adapters write them in their own style. Rows are found by numbers and short
texts in lower-case ASCII, which compare alike in every database and collation.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any, Final, NamedTuple

from lanemq.core.effects import LaneEffects
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue

LOCK_WAIT_MS: Final = 5_000
"""PostgreSQL: how long a new owner waits for transactions of the owners before, until it ends their sessions."""
HANGING_MS: Final = 60_000
"""PostgreSQL: how long the server keeps the transaction of a silent client, unless the session has a limit."""
CLEAN_ROWS: Final = 1_000
"""Rows that one cleaning deletes at most; more would hold locks for long."""
LANE_CHARACTERS: Final = 80

_SCHEMA_LOCK: Final = 0x1A9E_3D62
"""PostgreSQL: the advisory lock under which the tables are created."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_PLAIN_KEY: Final = re.compile(rf"[a-z0-9_.:/@+-]{{1,{LANE_CHARACTERS}}}")


class Dialect(Enum):
    """The kinds of databases, by how they lock."""

    SQLITE = "sqlite"
    """One writer at a time, for the whole file."""
    POSTGRESQL = "postgresql"
    OTHER = "other"
    """Anything with `SELECT … FOR UPDATE`, such as MySQL. The keys of a queue wait for each other."""


class Statement(NamedTuple):
    """One statement with `?` for its values."""

    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectScope:
    """A queue of a group, in the database."""

    group: str
    queue: MessageQueue
    number: int
    """What identifies it: a hash, so that rows of lanes stay short."""


def scope_of(group: str, queue: MessageQueue) -> EffectScope:
    name = "\0".join((group, *map(str, queue))).encode("utf-8", "surrogatepass")
    return EffectScope(group, queue, int.from_bytes(blake2b(name, digest_size=8).digest(), signed=True))


_HOUR_COUNTER: Final = 0


def hour_counter(name: str) -> EffectScope:
    """The row of the counter of hours. Its name distinguishes databases."""
    return EffectScope(name, MessageQueue("", "", -1), _HOUR_COUNTER)


def lane_name(key: str | None) -> str:
    """The lane of a key as the table has it: the key itself if it is short and plain, otherwise a hash."""
    if key is None:
        return ""
    if _PLAIN_KEY.fullmatch(key):
        return key
    return "#" + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]


class EffectTables:
    """All statements for one pair of tables."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        if not _NAME.fullmatch(table):
            raise InvalidOption(f"table {table!r}: write a name, or schema.name, of letters, digits and underscores")
        self.dialect = dialect
        self._lanes = table
        self._epochs = f"{table}_epochs"
        self._index = f"{table.rpartition('.')[2]}_expiry"
        self._hour = f"COALESCE((SELECT epoch FROM {self._epochs} WHERE queue = {_HOUR_COUNTER}), 0)"

    # creating them

    def creation(self) -> list[Statement]:
        statements = [] if self.dialect is not Dialect.POSTGRESQL else [f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"]
        return [*map(Statement, statements), *map(Statement, self.definition())]

    def definition(self) -> list[str]:
        """What creates both tables, if they do not exist."""
        options = {Dialect.SQLITE: " WITHOUT ROWID", Dialect.POSTGRESQL: " WITH (fillfactor = 70)"}
        lanes = (
            f"CREATE TABLE IF NOT EXISTS {self._lanes} (queue BIGINT NOT NULL, "
            f"lane VARCHAR({LANE_CHARACTERS}) NOT NULL, log_position BIGINT NOT NULL, stored_ms BIGINT NOT NULL, "
            f"expiry_hour INTEGER NOT NULL, PRIMARY KEY (queue, lane)"
        )
        index = f"INDEX {self._index} ON {self._lanes} (expiry_hour)"
        epochs = (
            f"CREATE TABLE IF NOT EXISTS {self._epochs} (queue BIGINT NOT NULL PRIMARY KEY, "
            "consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL, broker VARCHAR(255) NOT NULL, "
            "queue_id INTEGER NOT NULL, epoch BIGINT NOT NULL)"
        )
        if self.dialect is Dialect.OTHER:  # MySQL has no IF NOT EXISTS for an index
            return [f"{lanes}, {index.partition(' ON ')[0]} (expiry_hour))", epochs]
        return [f"{lanes}){options[self.dialect]}", f"CREATE {index.replace('INDEX', 'INDEX IF NOT EXISTS')}", epochs]

    # the owner

    def write_lock(self) -> Statement:
        """SQLite: takes the lock of a writer in a transaction that began without it, and changes nothing."""
        return Statement(f"DELETE FROM {self._epochs} WHERE queue IS NULL")

    def locked_epoch(self, scope: EffectScope, epoch: int, effects: LaneEffects, keep_hours: int) -> Statement:
        """The highest epoch of the queue, which cannot change until the transaction ends.

        PostgreSQL stores the place of one lane in the same statement, as `take_place` does, and returns whether it
        did. Owners of the same epoch share the lock. An advisory lock, which excludes nothing, shows a newer owner
        which sessions are in its way. The server ends a transaction whose client stays silent.
        """
        where = f"FROM {self._epochs} WHERE queue = ?"
        if self.dialect is Dialect.SQLITE:
            return Statement(f"SELECT epoch {where}", (scope.number,))
        if self.dialect is Dialect.OTHER:
            return Statement(f"SELECT epoch {where} FOR UPDATE", (scope.number,))
        limit = "current_setting('idle_in_transaction_session_timeout')"
        owner = (
            f"SELECT epoch, pg_try_advisory_xact_lock_shared(?, ?), set_config('idle_in_transaction_session_timeout', "
            f"CASE {limit} WHEN '0' THEN '{HANGING_MS}' ELSE {limit} END, true) {where} FOR SHARE"
        )
        big = "CAST(? AS bigint)"
        expiry = f"CAST(CAST(? AS integer) + {self._hour} AS integer)"
        row = f"SELECT {big}, CAST(? AS text), {big}, {big}, {expiry} FROM owner WHERE epoch = {big}"
        return Statement(
            f"WITH owner AS MATERIALIZED ({owner}), taken AS ({self._upsert(row)}) "
            "SELECT (SELECT epoch FROM owner), (SELECT count(*) FROM taken)",
            (
                *(_lock_class(scope), _lock_number(epoch), scope.number),
                *(effects.queue, effects.lane, *effects.last.place, keep_hours, epoch, effects.first.place.position),
            ),
        )

    def raise_epoch(self, scope: EffectScope, epoch: int, there: bool) -> list[Statement]:
        """What stores the epoch, unless the database has a higher one. `there`: whether the queue has a row."""
        row = (scope.number, scope.group, *scope.queue, epoch)
        names = "(queue, consumer_group, topic, broker, queue_id, epoch)"
        insertion = f"INSERT INTO {self._epochs} {names} VALUES (?, ?, ?, ?, ?, ?)"
        if self.dialect is Dialect.OTHER and there:
            return [
                Statement(
                    f"UPDATE {self._epochs} SET epoch = ? WHERE queue = ? AND epoch < ?", (epoch, scope.number, epoch)
                )
            ]
        if self.dialect is Dialect.OTHER:
            return [Statement(insertion, row)]
        upsert = Statement(
            f"{insertion.replace(' (', ' AS held (', 1)} ON CONFLICT (queue) DO UPDATE SET epoch = excluded.epoch "
            "WHERE held.epoch < excluded.epoch",
            row,
        )
        if self.dialect is Dialect.SQLITE:
            return [upsert]
        return [Statement(f"SELECT set_config('lock_timeout', '{LOCK_WAIT_MS}', true)"), upsert]

    def known_queue(self, scope: EffectScope) -> Statement:
        """A row if the queue has one."""
        return Statement(f"SELECT 1 FROM {self._epochs} WHERE queue = ?", (scope.number,))

    def end_older_owners(self, scope: EffectScope, epoch: int) -> Statement:
        """PostgreSQL: ends sessions that are in a transaction of an older epoch while their client is silent."""
        return Statement(
            "SELECT pg_terminate_backend(held.pid) FROM pg_locks held JOIN pg_stat_activity session "
            "ON session.pid = held.pid AND session.datname = current_database() "
            "WHERE held.locktype = 'advisory' AND held.objsubid = 2 AND held.classid::bigint = ? "
            "AND held.objid::bigint < ? AND session.state LIKE 'idle in transaction%' "
            "AND held.pid <> pg_backend_pid()",
            (_lock_class(scope), _lock_number(epoch)),
        )

    # the lanes

    def take_place(self, effects: LaneEffects, keep_hours: int) -> Statement | None:
        """Stores the place of the last message if the first one is new; returns a row if it did.

        None where a database has no such statement.
        """
        if self.dialect is Dialect.OTHER:
            return None
        return Statement(
            self._upsert(f"VALUES (?, ?, ?, ?, ? + {self._hour})"),
            (effects.queue, effects.lane, *effects.last.place, keep_hours, effects.first.place.position),
        )

    def _upsert(self, row: str) -> str:
        return (
            f"INSERT INTO {self._lanes} AS held (queue, lane, log_position, stored_ms, expiry_hour) {row} "
            "ON CONFLICT (queue, lane) DO UPDATE SET log_position = excluded.log_position, "
            "stored_ms = excluded.stored_ms, expiry_hour = excluded.expiry_hour WHERE held.log_position < ? "
            "RETURNING 1"
        )

    def locked_place(self, queue: int, lane: str) -> Statement:
        lock = "" if self.dialect is Dialect.SQLITE else " FOR UPDATE"
        return Statement(
            f"SELECT log_position, stored_ms FROM {self._lanes} WHERE queue = ? AND lane = ?{lock}",
            (queue, lane),
        )

    def store_place(self, effects: LaneEffects, keep_hours: int, there: bool) -> Statement:
        """Stores the place of the last message, after `locked_place`. `there`: whether the lane has a row."""
        place = effects.last.place
        if there:
            return Statement(
                f"UPDATE {self._lanes} SET log_position = ?, stored_ms = ?, expiry_hour = ? + {self._hour} "
                "WHERE queue = ? AND lane = ?",
                (*place, keep_hours, effects.queue, effects.lane),
            )
        return Statement(
            f"INSERT INTO {self._lanes} (log_position, stored_ms, expiry_hour, queue, lane) "
            f"VALUES (?, ?, ? + {self._hour}, ?, ?)",
            (*place, keep_hours, effects.queue, effects.lane),
        )

    # deleting rows

    def stored_hour(self) -> Statement:
        """Name and hour of the counter of hours."""
        return Statement(f"SELECT consumer_group, epoch FROM {self._epochs} WHERE queue = {_HOUR_COUNTER}")

    def clean(self, hour: int) -> Statement:
        """Deletes rows whose time is over."""
        expired = "WHERE expiry_hour < ?"
        if self.dialect is Dialect.OTHER:
            return Statement(f"DELETE FROM {self._lanes} {expired}", (hour,))
        skip = " FOR UPDATE SKIP LOCKED" if self.dialect is Dialect.POSTGRESQL else ""
        chosen = f"SELECT queue, lane FROM {self._lanes} {expired} LIMIT {CLEAN_ROWS}{skip}"
        return Statement(f"DELETE FROM {self._lanes} WHERE (queue, lane) IN ({chosen}) RETURNING 1", (hour,))

    def queues(self, group: str, topic: str) -> Statement:
        """The numbers of the queues that the group has written for."""
        return Statement(f"SELECT queue FROM {self._epochs} WHERE consumer_group = ? AND topic = ?", (group, topic))

    def forget_lane(self, queue: int, lane: str) -> list[Statement]:
        return [Statement(f"DELETE FROM {self._lanes} WHERE queue = ? AND lane = ?", (queue, lane))]

    def forget_queue(self, queue: int) -> list[Statement]:
        return [Statement(f"DELETE FROM {table} WHERE queue = ?", (queue,)) for table in (self._lanes, self._epochs)]


tables_for = lru_cache(maxsize=64)(EffectTables)


def _lock_class(scope: EffectScope) -> int:
    return scope.number & 0x7FFF_FFFF


def _lock_number(epoch: int) -> int:
    return epoch & 0x7FFF_FFFF


class Placeholders(Enum):
    """How a driver marks values (DB-API: paramstyle)."""

    QMARK = "qmark"
    FORMAT = "format"
    NUMERIC = "numeric"
    NAMED = "named"
    DOLLAR = "dollar"


_MARKS: Final = {
    Placeholders.FORMAT: "%s",
    Placeholders.NUMERIC: ":{}",
    Placeholders.NAMED: ":p{}",
    Placeholders.DOLLAR: "${}",
}


@lru_cache(maxsize=512)
def written_for(style: Placeholders, sql: str) -> str:
    """The statement with its values marked in the driver's style."""
    if style is Placeholders.QMARK:
        return sql
    first, *rest = sql.split("?")
    if style is Placeholders.FORMAT and rest:
        first, rest = first.replace("%", "%%"), [part.replace("%", "%%") for part in rest]
    return first + "".join(_MARKS[style].format(at) + part for at, part in enumerate(rest, 1))


def named_values(values: Sequence[Any]) -> dict[str, Any]:
    return {f"p{at}": value for at, value in enumerate(values, 1)}
