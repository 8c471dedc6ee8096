"""Batches in a PostgreSQL table, by COPY: rows and ledger row in one transaction.

The driver copies a small batch itself. A large one is copied by Spark tasks, into a staging table that the driver then
merges in one statement (`postgres_staging.py`), so its rows do not pass through the driver.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import md5
from itertools import groupby
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lanemq.clock import Clock
from lanemq.model.errors import ConnectFailed, ConnectionLost, InvalidOption, LaneError, RequestTimedOut, StorageError
from lanemq.model.units import Seconds, to_millis
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, SEQUENCE, Append, FileRows, Merge, RowFile, Rows, SinkRun
from lanemq.pipelines.sinks.postgres_rows import NUL, CopyFormat, nul_counts
from lanemq.pipelines.sinks.postgres_session import PostgresSession, driver, first_line
from lanemq.pipelines.sinks.postgres_staging import (
    ROWS_AT_ONCE,
    Copied,
    CopyTask,
    StagingOutdated,
    StagingTable,
    check_copies,
    divide,
    only_copies,
    staging_name,
    staging_prefix,
)
from lanemq.pipelines.sinks.sql import Column, SqlSink, UniqueIndex, names_of, quoted, quoted_table
from lanemq.pipelines.text_limits import TextLimit

log = logging.getLogger(__name__)

SCHEMA_LOCK = 0x1A9E_3D61
"""The advisory lock under which tables are created."""
_IN_A_TASK: Final = (
    "; this concerns a Spark task: install psycopg on executors and let them reach the database, or let the driver "
    "copy with copies=0"
)
MAX_INDEX_ENTRY: Final = 2_704
"""Bytes of an entry of a B-tree. PostgreSQL compresses longer keys, but not every key shrinks."""
MAX_FIXED_BYTES: Final = 32
"""Bytes of a key column beside its text: header, padding, or a number."""
MAX_COPIES: Final = 3
"""How often the rows of a large batch are copied, if the server loses them, before the batch fails."""

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
        copies: Spark tasks that copy the rows of a large batch at the same time, 0 for none: the driver copies them.
            Each has a connection of its own. Low values are slow; high ones use up the connections of the server.
        staged_from: Rows from which on a batch is large. Low values make small batches wait for a Spark job; with
            high ones many rows pass through the driver.
    """

    adding = "ADD COLUMN IF NOT EXISTS"
    for_update = "FOR UPDATE"
    position_in_text = "strpos"
    bytewise = ' COLLATE "C"'
    same_values = "{}::text IS NOT DISTINCT FROM {}::text"  # json cannot be compared
    merged_table_options = " WITH (fillfactor = 70)"

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        wait: Seconds = 60.0,
        evolve: bool = True,
        nul: Literal["replace", "fail"] = "replace",
        trust_columns: Sequence[str] = (),
        copies: int = 8,
        staged_from: int = 100_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(table, wait, evolve, clock)
        if nul not in ("replace", "fail"):
            raise InvalidOption(f'nul = {nul!r}: write "replace" or "fail"')
        if copies < 0 or staged_from < 0:
            raise InvalidOption("copies and staged_from cannot be negative; copies=0 lets the driver copy")
        if isinstance(trust_columns, str):
            raise InvalidOption(f'trust_columns = {trust_columns!r}: write a list, such as ["{trust_columns}"]')
        driver()
        self._format = CopyFormat(table, nul)
        self._trusted = frozenset(trust_columns)
        self._copies = copies
        self._staged_from = staged_from
        self._wait = to_millis(wait)
        self._dsn = dsn
        self._connection: Any = None
        self._spark: SparkSession | None = None

    def open(self, run: SinkRun) -> None:
        super().open(run)
        self._spark = run.spark
        self._drop_staging(run)

    def close(self) -> None:
        super().close()
        self._disconnect()

    def text_limits(self) -> tuple[TextLimit, ...]:
        """For the key of a merge, which is an entry of the table's index."""
        run = self._opened()
        if not isinstance(run.how, Merge):
            return ()
        kinds = {name: run.columns.field(name).type for name in run.how.keys}
        texts = tuple(name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_binary(kind))
        left = MAX_INDEX_ENTRY - MAX_FIXED_BYTES * len(kinds)
        return (TextLimit(texts, left, NUL, "the key of an index of PostgreSQL"),) if texts else ()

    def write(self, rows: Rows, batch: Batch) -> bool:
        if not isinstance(rows, FileRows) or not self._copies_in_tasks(rows):
            return super().write(rows, batch)
        run = self._write_run(rows, batch)
        attempt = 1
        while True:
            try:
                return self._write_staged(rows, batch, run)
            except StagingOutdated as outdated:
                self._drop_staging(run)
                if attempt == MAX_COPIES:
                    raise StorageError(f"{batch}: its rows were copied {attempt} times; {outdated}") from outdated
                attempt += 1
                log.warning("%s: its rows are copied again, attempt %d: %s", batch, attempt, outdated)

    def _copies_in_tasks(self, rows: FileRows) -> bool:
        return self._spark is not None and bool(self._copies) and rows.count() >= max(1, self._staged_from)

    # A large batch: tasks copy it into a staging table, then one transaction applies and records it.

    def _write_staged(self, rows: FileRows, batch: Batch, run: SinkRun) -> bool:
        self.last_replaced = 0
        staging = self._retrying.call(lambda: self._stage_once(batch, run), str(batch))
        if staging is None:
            return False
        copies = self._copy_files(rows, staging, batch, run)

        def apply(connection: Any) -> int:
            return self._apply_staged(connection, staging, copies, rows.emptied_below, run)

        merged = sum(each.rows for each in copies) if isinstance(run.how, Merge) else 0
        new = self._retrying.call(lambda: self._commit(batch, run, merged, apply), str(batch))
        self._drop_staging(run)
        return new

    def _stage_once(self, batch: Batch, run: SinkRun) -> StagingTable | None:
        """Create the staging table of an attempt; None if the target has the batch."""
        with self._transaction() as connection:
            if not self._locked_entry(connection, run).admits(batch):
                return None
            fitted, missing = self._fit_extra(connection, run.columns.empty_table())
            name = ".".join([*self._table.split(".")[:-1], staging_name(self._mark())])
            staging = StagingTable(quoted_table(name), fitted.schema)
            known = ", ".join(
                quoted(name) for name in fitted.schema.names if name not in {each.name for each in missing}
            )
            self._execute(
                connection,
                f"CREATE UNLOGGED TABLE {staging.name} WITH (autovacuum_enabled = false) AS "
                f"SELECT {known} FROM {self._name} WITH NO DATA",
            )
            self._add_columns(connection, staging.name, missing)
            if isinstance(run.how, Append):
                self._execute(
                    connection,
                    f"ALTER TABLE {staging.name} ADD COLUMN {staging.place} bigint GENERATED ALWAYS AS IDENTITY "
                    f"(CACHE {ROWS_AT_ONCE})",
                )
            return staging

    def _copy_files(self, rows: FileRows, staging: StagingTable, batch: Batch, run: SinkRun) -> list[Copied]:
        required = (*run.how.keys, SEQUENCE, DELETED) if isinstance(run.how, Merge) else ()
        session = self._session(f"{self._session_name()} copy")
        task = CopyTask(session, staging, self._format, required, self._wait)
        copies: list[Copied] = []
        replaced: Counter[str] = Counter()
        for found in self._run_tasks(task, divide([each for each in rows.files if each.rows], self._copies)):
            if isinstance(found, LaneError):
                # Its cause may be a newer run, which drops the staging table.
                self._retrying.call(lambda: self._check_admitted(batch, run), str(batch))
                if isinstance(found, ConnectionLost | RequestTimedOut):
                    raise StagingOutdated(str(found)) from found
                raise type(found)(f"{found}{_IN_A_TASK if isinstance(found, InvalidOption | ConnectFailed) else ''}")
            copies.append(found)
            replaced.update(found.replaced)
        self._count_nul(replaced)
        return copies

    def _run_tasks(self, task: CopyTask, lists: Sequence[Sequence[RowFile]]) -> list[Copied | LaneError]:
        """Run the task for each list, at the same time; returns what one complete run of each returned."""
        assert self._spark is not None, "only then tasks copy"
        return list(self._spark.sparkContext.parallelize(lists, len(lists)).mapPartitions(task).collect())

    def _check_admitted(self, batch: Batch, run: SinkRun) -> None:
        with self._transaction() as connection:
            self._locked_entry(connection, run).admits(batch)

    def _apply_staged(
        self,
        connection: Any,
        staging: StagingTable,
        copies: Sequence[Copied],
        emptied_below: int | str | None,
        run: SinkRun,
    ) -> int:
        """Append or merge what was copied; returns how many rows a merge left out."""
        self._check_staged(connection, staging, copies)
        fitted, missing = self._fit_extra(connection, run.columns.empty_table())
        if fitted.schema != staging.schema:
            raise StagingOutdated(f"another session has changed the columns of table {self._table}")
        source = f"FROM {staging.name} WHERE {only_copies(copies)}"
        if isinstance(run.how, Append):
            self._execute(
                connection,
                f"INSERT INTO {self._name} ({staging.columns}) SELECT {staging.columns} {source} "
                f"ORDER BY {staging.place}",
            )
            return 0
        self._empty(connection, emptied_below)
        self._add_columns(connection, self._name, missing)
        keys = ", ".join(map(quoted, run.how.keys))
        replaced = {name for each in copies for name in each.replaced}
        if replaced & set(run.how.keys):  # without NUL, keys of two rows may have become equal
            bytewise = self.bytewise if pa.types.is_string(staging.schema.field(SEQUENCE).type) else ""
            newest = f"{quoted(SEQUENCE)}{bytewise} DESC"
            select = f"SELECT DISTINCT ON ({keys}) {staging.columns} {source} ORDER BY {keys}, {newest}"
        else:
            select = f"SELECT {staging.columns} {source} ORDER BY {keys}"
        staged = replace(run, columns=staging.schema)
        left_out = sum(each.rows for each in copies) - int(connection.execute(self._upsert(staged, select)).rowcount)
        if left_out:
            self._refuse_ties(connection, staged, select)
        return left_out

    def _check_staged(self, connection: Any, staging: StagingTable, copies: Sequence[Copied]) -> None:
        there = self._execute(connection, "SELECT to_regclass(?) IS NOT NULL", (staging.name,))[0][0]
        found = self._execute(connection, f"SELECT xmin, count(*) FROM {staging.name} GROUP BY xmin") if there else []
        check_copies({int(each): count for each, count in found}, copies)

    def _drop_staging(self, run: SinkRun) -> None:
        """End the copies that count no longer, and drop their tables. What cannot be dropped now is dropped later.

        The ledger row is locked and names no newer run, so the copies are not a newer run's.
        """
        try:
            with self._transaction() as connection:
                self._locked_entry(connection, run).check_opener(run, self)
                self._end_sessions(connection, f"{self._session_name()} copy")
                left = self._execute(
                    connection,
                    "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND strpos(relname, ?) = 1",
                    (staging_prefix(self._mark()),),
                )
                for (name,) in left:
                    self._execute(connection, f"DROP TABLE IF EXISTS {name}")
        except LaneError as error:
            log.info("table %s: a staging table was not dropped: %s", self._table, error)

    def _open_once(self, run: SinkRun) -> None:
        try:
            super()._open_once(run)
        except RequestTimedOut:
            self._end_older_run(run)
            raise

    def _end_older_run(self, run: SinkRun) -> None:
        """End the session of an older run that holds the ledger row. Reads the ledger without a lock."""
        with self._transaction() as connection:
            known = self._execute(connection, "SELECT to_regclass(?) IS NOT NULL", (self._ledger,))[0][0]
            if not known:
                return
            entry = self._entry(connection, run.query)
            entry.check_opener(run, self)
            if not entry.lacks_epoch_of(run):
                return
            ended = self._end_sessions(connection, self._session_name())
        if ended:
            log.warning(
                "table %s: an older run of %s held its lock, so that run's session was ended", self._table, run.query
            )

    def _end_sessions(self, connection: Any, name: str) -> int:
        """End all other sessions of this name, and return how many there were."""
        return len(
            self._execute(
                connection,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = ? AND pid <> pg_backend_pid()",
                (name,),
            )
        )

    def _session(self, name: str) -> PostgresSession:
        return PostgresSession(self._dsn, self._table, name, bool(self._trusted))

    def _session_name(self) -> str:
        """The session name shared by all runs of a query that write to this table, and by no others."""
        return f"lanemq {self._mark()}"

    def _mark(self) -> str:
        query = self._run.query if self._run is not None else ""
        return md5(f"{query} {self._table}".encode(), usedforsecurity=False).hexdigest()[:16]

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        connection = self._connected()
        try:
            with self._session(self._session_name()).errors(connection), connection.transaction():
                yield connection
        except ConnectionLost:
            self._disconnect()
            raise

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._session(self._session_name()).connect()
        return self._connection

    def _lock_schema(self, connection: Any) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))

    def _execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            statement = statement.replace("%", "%%").replace("?", "%s")
        try:
            cursor = connection.execute(statement, tuple(values) or None)
        except driver().errors.InvalidColumnReference as error:
            raise InvalidOption(first_line(error)) from error
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

    def _keep_columns(self, connection: Any) -> None:
        if self._columns(connection, self._name):
            connection.execute(f"LOCK TABLE {self._name} IN ROW EXCLUSIVE MODE")

    def _unique_indexes(self, connection: Any) -> list[UniqueIndex]:
        found = self._execute(
            connection,
            "SELECT i.indexrelid::bigint, a.attname, "
            "CASE WHEN coalesce(c.collisdeterministic, true) THEN '' ELSE c.collname END "
            "FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indcollation::oid[]) AS k(attnum, coll) "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
            "LEFT JOIN pg_collation c ON c.oid = k.coll WHERE i.indisunique AND i.indrelid = to_regclass(?) "
            "ORDER BY i.indexrelid, k.attnum",
            (self._name,),
        )
        by_index = groupby(found, key=lambda row: row[0])
        return [UniqueIndex(str(index), tuple((name, loose) for _, name, loose in rows)) for index, rows in by_index]

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

    def _check_columns(self, there: list[Column], run: SinkRun) -> None:
        unknown = self._trusted - {column.name for column in there} - set(run.columns.names)
        if unknown:
            raise InvalidOption(f"trust_columns: table {self._table} has no column {', '.join(sorted(unknown))}")
        texts = (each.name for each in there if each.name in self._trusted and each.base in ("json", "jsonb"))
        self._format = replace(self._format, json_texts=tuple(texts))
        super()._check_columns(there, run)

    def _append(self, connection: Any, tables: Iterable[pa.Table], run: SinkRun) -> None:
        self._copy(connection, self._name, (self._storable(table, ()) for table in tables), run)

    def _merge(self, connection: Any, changes: pa.Table, run: SinkRun) -> int:
        assert isinstance(run.how, Merge)
        connection.execute("DROP TABLE IF EXISTS pg_temp.lanemq_changes")
        connection.execute(
            f"CREATE TEMP TABLE lanemq_changes ON COMMIT DROP AS SELECT * FROM {self._name} WITH NO DATA"
        )
        self._copy(connection, "lanemq_changes", [self._storable(changes, run.how.keys)], run)
        source = f"SELECT {names_of(run)} FROM lanemq_changes"
        done = int(connection.execute(self._upsert(run, source)).rowcount)
        if done < changes.num_rows:
            self._refuse_ties(connection, run, source)
        return done

    def _copy(self, connection: Any, target: str, tables: Iterable[bytes], run: SinkRun) -> None:
        statement = f"COPY {target} ({names_of(run)}) FROM STDIN (FORMAT csv)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for table in tables:
                copy.write(table)

    def _storable(self, table: pa.Table, keys: Sequence[str]) -> bytes:
        written, found = self._format.encode(table, keys)
        self._count_nul(found)
        return written

    def _count_nul(self, found: Mapping[str, int]) -> None:
        if found:
            log.warning(
                "table %s: NUL in texts (%s) is stored as U+FFFD, since PostgreSQL has no NUL",
                self._table,
                nul_counts(found),
            )
            self.last_replaced += sum(found.values())


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
