"""Batches in a PostgreSQL table, by COPY: rows and ledger row in one transaction of the server.

The rules guarded here: the ledger row is locked FOR UPDATE before a batch is judged, so a second run waits for the
first one's end. A run that hangs inside its transaction must not hold up its successor for ever: a newer run that
waited `LOCK_MS` in vain has the server end the older one's session, which leaves nothing of the batch behind.
Sequences that are text compare byte by byte (collation "C"), as they were made to.

Maps, arrays and structs are stored as jsonb, times as timestamptz. PostgreSQL has no NUL: `nul.py`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import md5
from io import BytesIO
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv

from lanemq.clock import Clock
from lanemq.model.errors import ConnectFailed, ConnectionLost, InvalidOption, LaneError, RequestTimedOut, StorageError
from lanemq.model.units import Millis
from lanemq.pipelines.ports import SEQUENCE, Merge
from lanemq.pipelines.sinks.columns import is_nested, json_column
from lanemq.pipelines.sinks.ledger import Terms
from lanemq.pipelines.sinks.nul import may_have_nul, newest_of_each, without_nul
from lanemq.pipelines.sinks.postgres_types import declared, refuses, takes
from lanemq.pipelines.sinks.sql import Column, SqlSink, names_of
from lanemq.spark.options import WAIT

log = logging.getLogger(__name__)

LOCK_MS = 5_000
"""How long the server lets us wait for a lock; then it is a line in the log, and tried again."""
HANGING_MS = 60_000
"""How long the server keeps a transaction whose client says nothing, if no newer run comes."""
CONNECT_SECONDS = 5
SETTLING = 0x1A9E_3D61
"""The advisory lock under which tables are created."""

_PASSING_STATES = frozenset({"40001", "40P01", "55P03", "57014", "53300", "53400"})
"""Serialization, deadlock, lock timeout, cancelled, too many connections, limits: the same may succeed later."""
_PASSING_REFUSALS = ("starting up", "shutting down", "recovery", "too many", "reserved", "terminating")
"""Parts of what a server says that will take connections again."""


class PostgresSink(SqlSink):
    """Appends or merges batches into a table of a PostgreSQL database.

    Args:
        dsn: As libpq has it: `host=db dbname=shop user=...` or `postgresql://...`.
        table: `orders` or `sales.orders`; the ledger `lanemq_ledger` is kept in the same schema.
        wait: Milliseconds to wait for a server that is away or a lock that is held. Short fails at every fail-over.
        evolve: Whether a run with new columns may add them to the table.
        nul: What becomes of the character NUL in a text, also within maps, arrays and structs: "replace" stores
            U+FFFD instead, with a warning and a count; "fail" ends the pipeline, at every start, until the message
            is left out.
        trust_columns: Columns of the table that get texts and have a type which takes only some: `uuid`, `jsonb`,
            `varchar(20)`, an enum, a domain. They are refused unless named here. A text that does not fit after all
            ends the pipeline, at every start, until the message is left out.
    """

    adding = "ADD COLUMN IF NOT EXISTS"
    for_update = "FOR UPDATE"
    place_of = "strpos"
    bytewise = ' COLLATE "C"'
    room_for_updates = " WITH (fillfactor = 70)"

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        wait: Millis = WAIT,
        evolve: bool = True,
        nul: str = "replace",
        trust_columns: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(table, wait, evolve, clock)
        if nul not in ("replace", "fail"):
            raise InvalidOption(f'nul = {nul!r}: write "replace" or "fail"')
        if isinstance(trust_columns, str):
            raise InvalidOption(f'trust_columns = {trust_columns!r}: write a list, such as ["{trust_columns}"]')
        self._nul = nul
        self._trusted = frozenset(trust_columns)
        self._json_texts: list[str] = []
        """Trusted columns of JSON: it has no NUL either, not even an escaped one."""
        self._psycopg = _driver()
        self._dsn = dsn
        self._connection: Any = None

    def close(self) -> None:
        super().close()
        self._forget()

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        connection = self._connected()
        try:
            with connection.transaction():
                yield connection
        except self._psycopg.Error as error:
            if connection.broken or connection.closed:
                self._forget()
                raise ConnectionLost(f"PostgreSQL, table {self._table}: {_first_line(error)}") from error
            raise self._in_our_words(error) from error

    def _connected(self) -> Any:
        if self._connection is None:
            try:
                self._connection = self._psycopg.connect(self._dsn, autocommit=True, connect_timeout=CONNECT_SECONDS)
            except self._psycopg.OperationalError as error:
                raise _why_not(str(error)) from error
            self._connection.execute(
                f"SET lock_timeout = {LOCK_MS}; SET idle_in_transaction_session_timeout = {HANGING_MS}; "
                f"SET client_encoding = 'UTF8'; SET TimeZone = 'UTC'; SET application_name = '{self._session_name()}'"
            )
        return self._connection

    def _open_once(self, terms: Terms) -> None:
        try:
            super()._open_once(terms)
        except RequestTimedOut:
            self._end_older_run(terms)
            raise

    def _end_older_run(self, terms: Terms) -> None:
        """Reads without the lock: an epoch that is committed is enough to know who is older."""
        with self._transaction() as connection:
            known = self._ask(connection, "SELECT to_regclass(?) IS NOT NULL", (self._ledger,))[0][0]
            if not known or not self._seen(connection, terms.query).lacks(terms):
                return
            ended = self._ask(
                connection,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = ? AND pid <> pg_backend_pid()",
                (self._session_name(),),
            )
        if ended:
            log.warning("table %s: an older run of %s held it, its session was ended", self._table, terms.query)

    def _session_name(self) -> str:
        """The same for all runs of a query that write to this table, and for nobody else."""
        query = self._terms.query if self._terms is not None else ""
        return f"lanemq {md5(f'{query} {self._table}'.encode(), usedforsecurity=False).hexdigest()[:16]}"

    def _in_our_words(self, error: Any) -> LaneError:
        said = f"table {self._table}: {_first_line(error)}"
        if error.sqlstate in _PASSING_STATES:
            return RequestTimedOut(said)
        if self._trusted and str(error.sqlstate).startswith(("22", "23514")):
            lines = (error.diag.context or "").splitlines()
            where = next((f" ({line})" for line in lines if line.startswith("COPY")), "")
            said += f"{where}. trust_columns says that all texts fit: leave such rows out before the sink"
        return InvalidOption(said) if error.sqlstate == "42P10" else StorageError(said)

    def _settle(self, connection: Any) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETTLING,))

    def _ask(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            statement = statement.replace("%", "%%").replace("?", "%s")
        try:
            cursor = connection.execute(statement, tuple(values) or None)
        except self._psycopg.errors.InvalidColumnReference as error:
            raise InvalidOption(_first_line(error)) from error
        return list(cursor.fetchall()) if cursor.description else []

    def _columns(self, connection: Any, table: str) -> list[Column]:
        found = self._ask(
            connection,
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
            "a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', t.typname, a.atttypmod, t.typcategory "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (table,),
        )
        return [Column(*row) for row in found]

    def _column_type(self, field: pa.Field) -> str:
        said = declared(field.type)
        if field.name == SEQUENCE and said == "text":
            said = 'text COLLATE "C"'
        return f"{said}{'' if field.nullable else ' NOT NULL'}"

    def _accepts(self, column: Column, kind: pa.DataType) -> bool:
        trusted = column.name in self._trusted and refuses(column.base, column.group, kind)
        return trusted or takes(column.base, column.limit, kind)

    def _way_out(self, column: Column, kind: pa.DataType) -> str:
        if not refuses(column.base, column.group, kind):
            return ""
        return f"; if every text fits, say so with trust_columns=[{column.name!r}]"

    def _check_columns(self, there: list[Column], terms: Terms) -> None:
        unknown = self._trusted - {column.name for column in there} - set(terms.schema.names)
        if unknown:
            raise InvalidOption(f"trust_columns: table {self._table} has no column {', '.join(sorted(unknown))}")
        self._json_texts = [
            column.name for column in there if column.name in self._trusted and column.base in ("json", "jsonb")
        ]
        super()._check_columns(there, terms)

    def _append(self, connection: Any, tables: Iterable[pa.Table], terms: Terms) -> None:
        self._copy(connection, self._name, (self._storable(table, ()) for table in tables), terms)

    def _merge(self, connection: Any, changes: pa.Table, terms: Terms) -> int:
        assert isinstance(terms.how, Merge)
        connection.execute("DROP TABLE IF EXISTS pg_temp.lanemq_changes")
        connection.execute(
            f"CREATE TEMP TABLE lanemq_changes ON COMMIT DROP AS SELECT * FROM {self._name} WITH NO DATA"
        )
        self._copy(connection, "lanemq_changes", [self._storable(changes, terms.how.keys)], terms)
        return int(connection.execute(self._upsert(terms, f"SELECT {names_of(terms)} FROM lanemq_changes")).rowcount)

    def _copy(self, connection: Any, target: str, tables: Iterable[bytes], terms: Terms) -> None:
        statement = f"COPY {target} ({names_of(terms)}) FROM STDIN (FORMAT csv)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for table in tables:
                copy.write(table)

    def _storable(self, table: pa.Table, keys: Sequence[str]) -> bytes:
        """What COPY reads, without texts that the server would refuse."""
        texts = _in_text(table)
        written = _csv(texts)
        nested = [f.name for f in table.schema if is_nested(f.type) or f.name in self._json_texts]
        if not may_have_nul(written, bool(nested)):
            return written
        texts, found = without_nul(texts, nested)
        self._tell_nul(found)
        return _csv(newest_of_each(texts, keys) if set(keys) & set(found) else texts)

    def _tell_nul(self, found: Mapping[str, int]) -> None:
        if not found:
            return
        said = ", ".join(f"{count} of column {name}" for name, count in found.items())
        if self._nul == "fail":
            raise StorageError(
                f"table {self._table}: texts hold NUL, which PostgreSQL cannot store ({said}): leave the character "
                f"out before the sink, or let it be replaced with nul='replace'"
            )
        log.warning("table %s: NUL in texts (%s) is stored as U+FFFD, since PostgreSQL has no NUL", self._table, said)
        self.last_replaced += sum(found.values())


def _driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidOption('the PostgreSQL sink needs psycopg: pip install "lanemq[postgres]"') from error
    found: ModuleType = psycopg
    return found


def _why_not(said: str) -> LaneError:
    """A server that says no for good, such as to a wrong password, need not be asked again."""
    line = next(iter(said.strip().splitlines()), "no reason given")
    if "FATAL" in said and not any(passing in said for passing in _PASSING_REFUSALS):
        return InvalidOption(f"dsn: PostgreSQL refuses the connection: {line}")
    return ConnectFailed(f"PostgreSQL: {line}")


def _in_text(table: pa.Table) -> pa.Table:
    """Bytes and what is nested as COPY reads them."""
    for at, field in enumerate(table.schema):
        if is_nested(field.type):
            table = table.set_column(at, field.name, json_column(table[at]))
        elif pa.types.is_binary(field.type):
            texts = [None if value is None else "\\x" + value.hex() for value in table[at].to_pylist()]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table


def _csv(table: pa.Table) -> bytes:
    """As COPY reads it: null is nothing, empty text is a pair of quotes."""
    target = BytesIO()
    # One chunk, because pyarrow 26 writes uninitialised memory for a table with an empty chunk among others.
    pcsv.write_csv(table.combine_chunks(), target, pcsv.WriteOptions(include_header=False))
    return target.getvalue()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
