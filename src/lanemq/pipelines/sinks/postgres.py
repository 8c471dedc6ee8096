"""Batches in a PostgreSQL table, by COPY: rows and ledger row in one transaction.

The ledger row is locked FOR UPDATE before a batch is checked, so a second run waits until the first one ends. If the
older run hangs inside its transaction, a newer run that has waited `LOCK_MS` lets the server end the older session,
which leaves nothing of the batch behind. Text sequences compare byte by byte (collation "C").

Maps, arrays and structs are stored as jsonb, times as timestamptz. PostgreSQL cannot store the character NUL, so it is
replaced by U+FFFD.

A column is accepted when the pipeline starts only if it stores every possible value unchanged. So limits count
(`numeric(4,1)`, `varchar(20)`, `timestamp(0)`), and types that take only some texts (`uuid`, `jsonb`) are refused for
text: one value that does not fit would fail its batch at every start. `trust_columns` overrides this for types that
refuse a text that does not fit, never for types that round it.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import md5
from io import BytesIO
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from lanemq.clock import Clock
from lanemq.model.environment import install_extra
from lanemq.model.errors import ConnectFailed, ConnectionLost, InvalidOption, LaneError, RequestTimedOut, StorageError
from lanemq.model.units import Seconds
from lanemq.pipelines.ports import SEQUENCE, Merge
from lanemq.pipelines.sinks.exact_sink import Terms, is_nested, json_column
from lanemq.pipelines.sinks.sql import Column, SqlSink, names_of

log = logging.getLogger(__name__)

LOCK_MS = 5_000
"""How long the server waits for a lock, before the sink logs a warning and tries again."""
HANGING_MS = 60_000
"""How long the server keeps a transaction of a silent client, if no newer run ends it."""
CONNECT_SECONDS = 5
SCHEMA_LOCK = 0x1A9E_3D61
"""The advisory lock under which tables are created."""

_RETRIABLE_STATES = frozenset({"40001", "40P01", "55P03", "57014", "53300", "53400"})
"""Serialization, deadlock, lock timeout, cancelled, too many connections, limits: a later attempt may succeed."""
_RETRIABLE_REFUSALS = ("starting up", "shutting down", "recovery", "too many", "reserved", "terminating")
"""Parts of the refusal of a server that will take connections again later."""

_NUMERIC_HEADER: Final = 4
"""What PostgreSQL adds to the encoded limits of a numeric or a varchar."""
_MICROSECONDS: Final = 6
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""Decimal digits of an integer, by its bits."""

_REFUSING: Final = frozenset("EISU")
"""Categories of types that refuse a text that does not fit: enums, addresses, texts with a limit, and user-defined
types, which include uuid, json and jsonb. A domain has the category of its type. Numbers, times, shapes and arrays of
them round instead, and `name` cuts."""

_TYPES: tuple[tuple[Any, str, frozenset[str]], ...] = (
    (pa.types.is_boolean, "boolean", frozenset({"bool"})),
    (pa.types.is_int8, "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    (pa.types.is_int16, "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    (pa.types.is_int32, "integer", frozenset({"int4", "int8", "numeric"})),
    (pa.types.is_int64, "bigint", frozenset({"int8", "numeric"})),
    (pa.types.is_float32, "real", frozenset({"float4", "float8"})),
    (pa.types.is_float64, "double precision", frozenset({"float8"})),
    (pa.types.is_decimal, "numeric", frozenset({"numeric"})),
    (pa.types.is_binary, "bytea", frozenset({"bytea"})),
    (pa.types.is_date, "date", frozenset({"date"})),
    (pa.types.is_nested, "jsonb", frozenset({"jsonb", "json", "text"})),
    (pa.types.is_string, "text", frozenset({"text", "varchar", "bpchar", "citext"})),
)
"""Arrow type, type of a new column, and types (names of pg_type) of existing columns that take the values."""

NUL, REPLACEMENT = "\0", "\ufffd"
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""NUL as JSON writes it, not preceded by an escaped backslash."""


class PostgresSink(SqlSink):
    """Appends or merges batches into a table of a PostgreSQL database.

    Args:
        dsn: A libpq connection string: `host=db dbname=shop user=...` or `postgresql://...`.
        table: `orders` or `sales.orders`; the ledger `lanemq_ledger` is kept in the same schema.
        wait: Seconds to wait for a server that is down or a lock that is held. A low value fails at every fail-over.
        evolve: Whether a run with new columns may add them to the table.
        nul: What happens to the character NUL in a text, also within maps, arrays and structs: "replace" stores
            U+FFFD instead, with a warning and a count; "fail" ends the pipeline, at every start, until the message
            is left out.
        trust_columns: Columns that receive texts and have a type that takes only some of them: `uuid`, `jsonb`,
            `varchar(20)`, an enum, a domain. The sink refuses such columns unless they are named here. A text that
            does not fit then ends the pipeline, at every start, until the message is left out.
    """

    adding = "ADD COLUMN IF NOT EXISTS"
    for_update = "FOR UPDATE"
    position_in_text = "strpos"
    bytewise = ' COLLATE "C"'
    merged_table_options = " WITH (fillfactor = 70)"

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        wait: Seconds = 60.0,
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
        """Trusted columns of JSON, where even an escaped NUL is refused."""
        self._psycopg = _driver()
        self._dsn = dsn
        self._connection: Any = None

    def close(self) -> None:
        super().close()
        self._disconnect()

    def _disconnect(self) -> None:
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
                self._disconnect()
                raise ConnectionLost(f"PostgreSQL, table {self._table}: {_first_line(error)}") from error
            raise self._lane_error(error) from error

    def _connected(self) -> Any:
        if self._connection is None:
            try:
                self._connection = self._psycopg.connect(self._dsn, autocommit=True, connect_timeout=CONNECT_SECONDS)
            except self._psycopg.OperationalError as error:
                raise _connect_error(str(error)) from error
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
        """End the session of an older run that holds the ledger row. Reads the ledger without a lock."""
        with self._transaction() as connection:
            known = self._execute(connection, "SELECT to_regclass(?) IS NOT NULL", (self._ledger,))[0][0]
            if not known:
                return
            entry = self._entry(connection, terms.query)
            entry.check_opener(terms)
            if not entry.lacks_epoch_of(terms):
                return
            ended = self._execute(
                connection,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = ? AND pid <> pg_backend_pid()",
                (self._session_name(),),
            )
        if ended:
            log.warning(
                "table %s: an older run of %s held its lock, so that run's session was ended", self._table, terms.query
            )

    def _session_name(self) -> str:
        """The session name shared by all runs of a query that write to this table, and by no others."""
        query = self._terms.query if self._terms is not None else ""
        return f"lanemq {md5(f'{query} {self._table}'.encode(), usedforsecurity=False).hexdigest()[:16]}"

    def _lane_error(self, error: Any) -> LaneError:
        text = f"table {self._table}: {_first_line(error)}"
        if error.sqlstate in _RETRIABLE_STATES:
            return RequestTimedOut(text)
        if self._trusted and str(error.sqlstate).startswith(("22", "23514")):
            lines = (error.diag.context or "").splitlines()
            where = next((f" ({line})" for line in lines if line.startswith("COPY")), "")
            text += f"{where}. trust_columns promises that all texts fit: leave such rows out before the sink"
        return InvalidOption(text) if error.sqlstate == "42P10" else StorageError(text)

    def _lock_schema(self, connection: Any) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))

    def _execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            statement = statement.replace("%", "%%").replace("?", "%s")
        try:
            cursor = connection.execute(statement, tuple(values) or None)
        except self._psycopg.errors.InvalidColumnReference as error:
            raise InvalidOption(_first_line(error)) from error
        return list(cursor.fetchall()) if cursor.description else []

    def _columns(self, connection: Any, table: str) -> list[Column]:
        found = self._execute(
            connection,
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
            "a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', t.typname, a.atttypmod, t.typcategory "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (table,),
        )
        return [Column(*row) for row in found]

    def _column_type(self, field: pa.Field) -> str:
        kind = column_type(field.type)
        if field.name == SEQUENCE and kind == "text":
            kind = 'text COLLATE "C"'
        return f"{kind}{'' if field.nullable else ' NOT NULL'}"

    def _accepts(self, column: Column, kind: pa.DataType) -> bool:
        trusted = column.name in self._trusted and _refuses(column.base, column.group, kind)
        return trusted or _takes(column.base, column.limit, kind)

    def _remedy(self, column: Column, kind: pa.DataType) -> str:
        if not _refuses(column.base, column.group, kind):
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
        """The table as input for COPY, without texts that the server would refuse."""
        texts = _in_text(table)
        written = _csv(texts)
        nested = [f.name for f in table.schema if is_nested(f.type) or f.name in self._json_texts]
        if not _may_have_nul(written, bool(nested)):
            return written
        texts, found = without_nul(texts, nested)
        self._count_nul(found)
        return _csv(_newest_of_each(texts, keys) if set(keys) & set(found) else texts)

    def _count_nul(self, found: Mapping[str, int]) -> None:
        if not found:
            return
        counts = ", ".join(f"{count} of column {name}" for name, count in found.items())
        if self._nul == "fail":
            raise StorageError(
                f"table {self._table}: texts hold NUL, which PostgreSQL cannot store ({counts}): leave the character "
                f"out before the sink, or let it be replaced with nul='replace'"
            )
        log.warning("table %s: NUL in texts (%s) is stored as U+FFFD, since PostgreSQL has no NUL", self._table, counts)
        self.last_replaced += sum(found.values())


def _driver() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise InvalidOption(f"the PostgreSQL sink needs psycopg: {install_extra('postgres')}") from error
    found: ModuleType = psycopg
    return found


def _connect_error(text: str) -> LaneError:
    """A retriable error, or `InvalidOption` if the server refuses for good, for example because of a wrong password."""
    line = next(iter(text.strip().splitlines()), "no reason given")
    if "FATAL" in text and not any(passing in text for passing in _RETRIABLE_REFUSALS):
        return InvalidOption(f"dsn: PostgreSQL refuses the connection: {line}")
    return ConnectFailed(f"PostgreSQL: {line}")


def _in_text(table: pa.Table) -> pa.Table:
    """The table with bytes and nested values as text for COPY."""
    for at, field in enumerate(table.schema):
        if is_nested(field.type):
            table = table.set_column(at, field.name, json_column(table[at]))
        elif pa.types.is_binary(field.type):
            texts = [None if value is None else "\\x" + value.hex() for value in table[at].to_pylist()]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    return table


def _csv(table: pa.Table) -> bytes:
    """CSV for COPY: null is an empty field, empty text a pair of quotes."""
    target = BytesIO()
    # One chunk, because pyarrow 26 writes uninitialised memory for a table with an empty chunk among others.
    pcsv.write_csv(table.combine_chunks(), target, pcsv.WriteOptions(include_header=False))
    return target.getvalue()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def column_type(kind: pa.DataType) -> str:
    """The type of a new column for such values."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    return _types_for(kind)[0]


def _takes(base: str, limit: int, kind: pa.DataType) -> bool:
    """Whether a column stores every value of this type unchanged. `base`: its pg_type; `limit`: its atttypmod."""
    if base not in _types_for(kind)[1]:
        return False
    if limit < 0:
        return True
    if base == "numeric":
        return _has_digits(limit - _NUMERIC_HEADER, kind)
    return base in ("timestamp", "timestamptz") and limit >= _MICROSECONDS


def _refuses(base: str, group: str, kind: pa.DataType) -> bool:
    """Whether the column refuses a text that does not fit, instead of changing it. `group`: its typcategory."""
    return group in _REFUSING and base != "name" and bool(pa.types.is_string(kind))


def _has_digits(limit: int, kind: pa.DataType) -> bool:
    """Whether there are enough digits before and after the point. The scale is an 11-bit number with a sign."""
    precision, scale = limit >> 16 & 0xFFFF, ((limit & 0x7FF) ^ 0x400) - 0x400
    is_decimal = pa.types.is_decimal(kind)
    after = kind.scale if is_decimal else 0
    before = kind.precision - kind.scale if is_decimal else _DIGITS[kind.bit_width]
    return bool(scale >= after and precision - scale >= before)


def _types_for(kind: pa.DataType) -> tuple[str, frozenset[str]]:
    if pa.types.is_timestamp(kind):
        return ("timestamptz", frozenset({"timestamptz"})) if kind.tz else ("timestamp", frozenset({"timestamp"}))
    for fits, name, accepted in _TYPES:
        if fits(kind):
            return name, accepted
    raise InvalidOption(f"type {kind} has no column in PostgreSQL: cast it to text")


def _may_have_nul(written: bytes, json: bool) -> bool:
    """A quick check whether `without_nul`, which is slow, is needed. `json`: some columns hold JSON."""
    return b"\0" in written or (json and b"\\u0000" in written)


def without_nul(table: pa.Table, json: Collection[str] = ()) -> tuple[pa.Table, Mapping[str, int]]:
    """Replace NUL in every text; returns the table and how many texts of which column had one.

    PostgreSQL stores NUL neither in text nor in jsonb, and one such message must not end a pipeline at every start. The
    replacement keeps the length of the text and shows that a character was lost. `json`: columns whose texts are JSON.
    """
    found: dict[str, int] = {}
    for at, field in enumerate(table.schema):
        if not pa.types.is_string(field.type):
            continue
        hits = pc.match_substring(table[at], "\\u0000" if field.name in json else NUL)
        if not pc.any(hits).as_py():
            continue
        before = table[at]
        after = _json_without_nul(before) if field.name in json else pc.replace_substring(before, NUL, REPLACEMENT)
        count = int(pc.sum(pc.not_equal(before, after)).as_py())
        if count:
            found[field.name] = count
            table = table.set_column(at, field, after)
    return table, found


def _newest_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row per key, the one with the highest sequence: replacing NUL may have made two keys equal."""
    sequences = table[SEQUENCE].to_pylist()
    best: dict[tuple[object, ...], int] = {}
    for at, key in enumerate(zip(*(table[name].to_pylist() for name in keys), strict=True)):
        if key not in best or sequences[at] > sequences[best[key]]:
            best[key] = at
    return table if len(best) == table.num_rows else table.take(sorted(best.values()))


def _json_without_nul(column: pa.ChunkedArray) -> pa.ChunkedArray:
    def replaced(text: str | None) -> str | None:
        return None if text is None else _ESCAPED.sub(lambda hit: hit[1] + REPLACEMENT, text)

    return pa.chunked_array([pa.array([replaced(text) for text in column.to_pylist()], pa.string())])
