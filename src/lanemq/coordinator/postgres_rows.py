"""The rows of groups in PostgreSQL, and the row that says who leads (`core/brokering/cluster/leadership`).

A transaction is one message to the server: its statements are gathered and sent at once. So a coordinator that is
frozen holds no lock, because the server never waits for the rest of a transaction. The first statement moves the
serial of the leader's row from the one that this process confirmed last; in the row of another leader, or of a store
that has lost commits, it finds nothing, and the whole transaction fails.

Only one thread uses the connection; `cut` may be called from any other.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lanemq.clock import Clock
from lanemq.coordinator.postgres_safety import safety_of
from lanemq.coordinator.store import NotLeading, Safety
from lanemq.core.brokering.cluster.leadership import NO_LEADER, RENEW_EVERY_MS, TERM_MS, Sight, Term, TermRow
from lanemq.log.state.group_rows import GroupRows, Statements, Sync
from lanemq.model.environment import install_extra
from lanemq.model.errors import DiskFull, StorageError, UsageError
from lanemq.model.units import Millis

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)

VERSION = 1
"""The layout of the tables. Every change needs a new number, so that no version misreads that of another."""
SCHEMA = "lanemq"
CONNECT_SECONDS = 3
SILENCE_MS = 5_000
"""How long a statement waits for a lock, and a connection may be silent. Longer than a term: a server that is slow for
a moment keeps its connections."""
STATEMENT_MS = 60_000
"""How long a statement may run. A new leader reads everything."""

_QUEUE = "grp text, topic text, broker text, queue_id bigint"
_LANE = f"{_QUEUE}, key text"
_TABLES = (
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    "CREATE TABLE IF NOT EXISTS layout (version bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS leader (one boolean PRIMARY KEY DEFAULT true CHECK (one), term bigint NOT NULL,"
    " leader text NOT NULL, serial bigint NOT NULL, address text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS groups (name text PRIMARY KEY, settings text NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS offsets ({_QUEUE}, value bigint NOT NULL, reset_pending boolean NOT NULL,"
    " gaps text NOT NULL, marks text NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id))",
    f"CREATE TABLE IF NOT EXISTS seen_stamps ({_QUEUE}, producer text, epoch bigint NOT NULL, sequence bigint NOT NULL,"
    " value bigint NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id, producer))",
    f"CREATE TABLE IF NOT EXISTS leases ({_QUEUE}, owner text NOT NULL, epoch bigint NOT NULL,"
    " lease_ms bigint NOT NULL, stock boolean NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id))",
    "CREATE TABLE IF NOT EXISTS filters (grp text, topic text, tags text NOT NULL, PRIMARY KEY (grp, topic))",
    "CREATE TABLE IF NOT EXISTS kv (name text PRIMARY KEY, value text NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS parked_lanes ({_LANE}, reason text NOT NULL, attempts bigint NOT NULL,"
    " since bigint NOT NULL, status text NOT NULL, through bigint NOT NULL, first bigint NOT NULL,"
    " overtaken boolean NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id, key))",
    f"CREATE TABLE IF NOT EXISTS parked_chunks ({_LANE}, start bigint, offsets bytea NOT NULL,"
    " PRIMARY KEY (grp, topic, broker, queue_id, key, start))",
    f"CREATE TABLE IF NOT EXISTS parked_messages ({_LANE}, value bigint, record bytea NOT NULL,"
    " PRIMARY KEY (grp, topic, broker, queue_id, key, value))",
    "CREATE OR REPLACE FUNCTION advance(wanted_term bigint, wanted_leader text, wanted_serial bigint) RETURNS void"
    " LANGUAGE plpgsql AS $$ BEGIN"
    " UPDATE lanemq.leader SET serial = serial + 1"
    " WHERE term = wanted_term AND leader = wanted_leader AND serial = wanted_serial;"
    " IF NOT FOUND THEN RAISE EXCEPTION 'another coordinator leads, or commits were lost' USING ERRCODE = 'LM001';"
    " END IF; END $$",
    "INSERT INTO leader (term, leader, serial, address) VALUES (0, '', 0, '') ON CONFLICT DO NOTHING",
    f"INSERT INTO layout SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM layout)",
)
_MAKE_LOCK = 0x4C414E454D51
"""Of the one that makes the tables."""
_SAFE = "SET synchronous_commit = on"
"""With each transaction: a pooler may give it another session, and a role may have another default."""
_SESSION = (
    _SAFE,
    f"SET search_path = {SCHEMA}",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET statement_timeout = {STATEMENT_MS}",
    f"SET lock_timeout = {SILENCE_MS}",
    f"SET idle_in_transaction_session_timeout = {SILENCE_MS}",
    "SET standard_conforming_strings = on",
)
_HOME = (
    "(SELECT system_identifier FROM pg_control_system())::text || ' '"
    " || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
)
"""Which copy of the database this is: the identifier of its `initdb`, and its timeline, new for each promotion."""
_RUN = "extract(epoch FROM pg_postmaster_start_time())::text || ' ' || pg_relation_filenode('leader')"
"""Its start, and the file of the leader's row: a dump that is restored into a running server makes a new one."""
_NOT_LEADING = "LM001"
_READ_ONLY = "25006"
_WARNING = "01000"
"""A commit that its standby did not confirm, because somebody cancelled the wait."""


class _Gathered:
    """The statements of a transaction."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, Sequence[Any]]] = []

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> None:
        self.statements.append((statement, values))

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        self.statements += [(statement, row) for row in rows]


class PostgresRows(GroupRows):
    """The rows of one cluster's groups: a `StateStore`. Begin with `connect`, again after each failure."""

    shared = True
    former: Sight | None = None

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self.shown = shown_url(url)
        self._clock = clock
        self._lock = threading.RLock()
        self._db: psycopg.Connection[Any] | None = None
        self._gathered: _Gathered | None = None
        self._warned = False
        self._home = _HOME
        self.term: Term | None = None
        """The term of this process; nothing can be written without one."""
        self.last_write_ms = 0
        """How long the last transaction took."""

    # the connection

    def connect(self) -> None:
        """Connect, and make the tables in an empty database; raises `UsageError` for one of another version."""
        with self._lock:
            self.close()
            psycopg = _psycopg()
            try:
                self._db = psycopg.connect(
                    self.url,
                    autocommit=True,
                    connect_timeout=CONNECT_SECONDS,
                    application_name="lanemq-coordinator",
                    keepalives_idle=2,
                    keepalives_interval=1,
                    keepalives_count=3,
                    tcp_user_timeout=SILENCE_MS,
                    cursor_factory=psycopg.ClientCursor,
                    **({} if "target_session_attrs" in self.url else {"target_session_attrs": "read-write"}),
                )
                self._db.add_notice_handler(self._noticed)
                self._db.execute(";".join(_SESSION))
                self._prepare(self._db)
            except psycopg.Error as error:
                self.close()
                raise StorageError(f"{self.shown} cannot be used: {_text(error)}") from error
            except StorageError:
                self.close()
                raise

    def _prepare(self, db: "psycopg.Connection[Any]") -> None:
        psycopg = _psycopg()
        if db.execute(f"SELECT to_regclass('{SCHEMA}.layout')").fetchone() == (None,):
            db.execute(";".join((f"SELECT pg_advisory_xact_lock({_MAKE_LOCK})", *_TABLES)))
        row = db.execute("SELECT version FROM layout").fetchone()
        if row is None or row[0] != VERSION:
            raise UsageError(
                f"{self.shown} has tables of layout {'none' if row is None else row[0]}, and this version of LaneMQ "
                f"knows only layout {VERSION}: start the version that made them. Nothing was changed"
            )
        try:
            db.execute(f"SELECT {_HOME}")
        except psycopg.Error as error:  # a managed service may not allow it
            log.warning("%s does not say which copy of the database it is: %s", self.shown, _text(error))
            self._home = "''"

    def _noticed(self, notice: Any) -> None:
        self._warned = self._warned or notice.sqlstate == _WARNING

    def cut(self) -> None:
        """Break the connection, so that a statement that waits for a silent server ends with an error."""
        db = self._db
        if db is not None and not db.closed:
            with contextlib.suppress(OSError, _psycopg().Error), socket.socket(fileno=os.dup(db.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    # who leads

    def look(self) -> Sight:
        """The leader's row, and the run of the server."""
        query = f"SELECT term, leader, serial, address, {self._home}, {_RUN} FROM leader"
        *row, home, run = self.rows(query)[0]
        return Sight(TermRow(*row), f"{home} {run}")

    def home(self) -> str:
        """Which copy of the database this is; empty if it does not say so."""
        return str(self.rows(f"SELECT {self._home}")[0][0])

    def claim(self, seen: Sight, row: TermRow) -> bool:
        """Replace the row that was seen, if it is still the same in the same run; whether that was so.

        After an error it may have been replaced or not.
        """
        sent_at = self._clock.now()
        where = " AND ".join(f"{name} = ?" for name in TermRow._fields)
        statement = (
            f"UPDATE leader SET term = ?, leader = ?, serial = ?, address = ? WHERE {where}"
            f" AND {self._home} || ' ' || {_RUN} = ? RETURNING term"
        )
        with self._lock:
            result = self._send([(_SAFE, ()), (statement, (*row, *seen.row, seen.run))])
            replaced = result is not None and result.rowcount == 1
            self.term = Term(row, sent_at=sent_at) if replaced else None
        return replaced

    def renew(self) -> None:
        """Keep the term, without any other change."""
        with self.transaction(Sync.FULL):
            pass

    def hand_over(self) -> None:
        """End the term, so that another coordinator leads at once. The caller answers nothing any more."""
        with self.transaction(Sync.FULL) as db:
            db.execute("UPDATE leader SET leader = ?", (NO_LEADER,))
        if self.term is not None:
            self.term.end("handed over")

    def safety(self) -> Safety:
        """Whether a fail-over of the database can lose changes."""
        return safety_of(self.rows)

    # rows

    @property
    def group_rows(self) -> GroupRows:
        return self

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock:
            self._renew_between()
            result = self._send([(query, values)])
            return [tuple(map(_read, row)) for row in result.fetchall()]

    def _renew_between(self) -> None:
        """A new leader reads everything, which may take longer than a term; its renewals wait for the connection."""
        term, now = self.term, self._clock.now()
        is_due = term is not None and not term.answers(now=Millis(now + TERM_MS - RENEW_EVERY_MS))
        if term is not None and is_due and self._gathered is None and term.answers(now=now):
            self.renew()

    @contextlib.contextmanager
    def transaction(self, sync: Sync) -> Iterator[Statements]:
        with self._lock:
            if self._gathered is not None:
                yield self._gathered
                return
            gathered = _Gathered()
            yield gathered
            self._commit(gathered.statements)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._lock, self.transaction(Sync.FULL) as gathered:
            assert isinstance(gathered, _Gathered)
            self._gathered = gathered
            try:
                yield
            finally:
                self._gathered = None

    def _commit(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        term, sent_at = self.term, self._clock.now()
        if term is None or not term.check(now=sent_at):
            raise NotLeading(f"this coordinator does not lead: {term.ended if term else 'another one does'}")
        advance = ("SELECT advance(?, ?, ?)", (term.number, term.leader, term.serial))
        self._send([(_SAFE, ()), advance, *statements])
        now = self._clock.now()
        self.last_write_ms = now - sent_at
        term.confirmed(sent_at=sent_at, now=now)
        if term.ended:
            raise NotLeading(f"this coordinator does not lead any more: {term.ended}")

    def _send(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> Any:
        """Send statements in one message, which the server takes as one transaction; the result of the last one."""
        psycopg, db = _psycopg(), self._db
        if db is None or db.closed:
            raise self._lost("the connection is closed")
        self._warned = False
        try:
            cursor = psycopg.ClientCursor(db)
            text = ";".join(cursor.mogrify(each.replace("?", "%s"), _written(values)) for each, values in statements)
            cursor.execute(text)
            while cursor.nextset():
                pass
        except psycopg.Error as error:
            raise self._failed(db, error) from error
        if self._warned:
            raise self._lost("a commit was not confirmed by the standby")
        return cursor

    def _failed(self, db: "psycopg.Connection[Any]", error: "psycopg.Error") -> StorageError:
        """The error of a failed transaction. If the server has answered, it has kept nothing of it."""
        if error.sqlstate == _NOT_LEADING:
            return self._lost("another coordinator leads, or the database has lost commits")
        if db.closed or error.sqlstate is None or error.sqlstate == _READ_ONLY:
            return self._lost(_text(error))
        if error.sqlstate.startswith("53"):
            return DiskFull(f"{self.shown} has no space or memory left: {_text(error)}")
        return StorageError(f"{self.shown} refused a change: {_text(error)}")

    def _lost(self, reason: str) -> NotLeading:
        if self.term is not None:
            self.term.end(reason)
        return NotLeading(f"{self.shown}: {reason}")


def shown_url(url: str) -> str:
    """The address of a database without its password."""
    parts = _psycopg().conninfo.conninfo_to_dict(url)
    return f"PostgreSQL {parts.get('host', 'localhost')} database {parts.get('dbname', parts.get('user', ''))}"


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(f"state in PostgreSQL needs psycopg: {install_extra('postgres')}") from error
    return psycopg


def _text(error: Exception) -> str:
    return " ".join(str(error).split())


# PostgreSQL's text has no character 0, which a key may have.
_ESCAPE, _ZERO, _ESCAPED_ESCAPE = "\uf8ff", "\uf8ff0", "\uf8ff1"


def _written(values: Sequence[Any]) -> list[Any]:
    return [_escaped(each) if isinstance(each, str) else each for each in values]


def _escaped(text: str) -> str:
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace("\0", _ZERO)


def _read(value: Any) -> Any:
    if not isinstance(value, str) or _ESCAPE not in value:
        return value
    return value.replace(_ZERO, "\0").replace(_ESCAPED_ESCAPE, _ESCAPE)
