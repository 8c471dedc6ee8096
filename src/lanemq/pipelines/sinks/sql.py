"""Batches in a database table: rows and ledger row in one transaction.

Invariants: the ledger row of (query, table) is locked before a batch is checked and changes together with the rows, so
of two runs one waits for the other and then sees what it did. A batch that the table has, or whose run was replaced,
changes nothing. A table that has to be created has no batches, whatever the ledger says. After an error it is unknown
whether the commit arrived, so the next attempt reads the ledger again. A batch is written only to columns and unique
indexes that were checked: if another program changes them during a run, they are checked again.

A merge replaces a row only by one with a higher sequence. Deletions stay as rows with `_deleted`; a truncation of the
source deletes all rows that are older.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import InvalidOption, StateLost
from lanemq.model.units import Seconds, to_millis
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE, Append, Batch, Merge, Rows
from lanemq.pipelines.queue_ties import (
    SOURCE_IN_SQL,
    changed_in_two_queues,
    source_and_queue,
    tied_in_sql,
    truncated_in_two_queues,
    with_others_in_sql,
)
from lanemq.pipelines.sinks.exact_sink import (
    ExactSink,
    ExtraColumns,
    LedgerEntry,
    Terms,
    kept_marks,
    merge_table,
    refuse_other_sequence,
    refuse_removed,
    shard_tables,
)
from lanemq.spark.retrying import Retrying

LEDGER = "lanemq_ledger"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the database describes it."""

    name: str
    kind: str
    """The database's name for the type, in lower case."""
    required: bool
    """Whether the database refuses a row without it."""
    base: str = ""
    """The type without its limits, where the database distinguishes them."""
    limit: int = -1
    """The limit of length or digits as the database encodes it; -1 for none."""
    group: str = ""
    """The category of the type, as the database names it."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index as the database describes it."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Each with the collation by which it compares texts loosely; "" if it compares them exactly."""

    def is_of(self, keys: Sequence[str]) -> bool:
        """Whether it is over exactly these columns."""
        return {name for name, _ in self.columns} == set(keys)


class SqlSink(ExactSink, ABC):
    """What SQLite and PostgreSQL have in common; the abstract methods are the differences."""

    empties = True
    adding = "ADD COLUMN"
    """Adds a column that another session may be adding at the same time."""
    for_update = ""
    """Makes a SELECT lock its row; empty where the transaction locks everything."""
    position_in_text = "instr"
    """The function that returns where in a text another begins, from 1."""
    bytewise = ""
    """Makes texts compare byte by byte; empty where they always do."""
    same_values = "{} IS {}"
    """The condition that two values are the same, or both null."""
    merged_table_options = ""
    """What follows the columns when a merged table is created."""

    def __init__(self, table: str, wait: Seconds, evolve: bool, clock: Clock | None) -> None:
        self._table = table
        self._name = quoted_table(table)
        self._ledger = quoted_table(".".join([*table.split(".")[:-1], LEDGER]))
        self._evolve = self.widens = evolve
        self._clock = clock or SystemClock()
        self._retrying = Retrying(to_millis(wait), self._clock)
        self._extra_columns = ExtraColumns(f"table {table}")
        self._checked: tuple[list[Column], list[UniqueIndex]] = ([], [])
        """The columns, and for a merge the unique indexes, that were found to fit."""

    def __str__(self) -> str:
        return f"table {self._table}"

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        terms = self._agree(query, epoch, schema, how)
        try:
            self._retrying.call(lambda: self._open_once(terms), f"table {self._table}")
        except BaseException:
            self.close()
            raise

    def applied_before_open(self, query: str) -> int | None:
        try:
            return self._retrying.call(lambda: self._applied_before_open_once(query), f"table {self._table}")
        finally:
            self.close()  # a run's session is named after its query, which is not known yet

    def applied(self) -> int | None:
        terms = self._opened()
        return self._retrying.call(lambda: self._applied_once(terms), f"table {self._table}")

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = self._write_terms(rows, batch)
        changes = _in_key_order(rows, terms) if isinstance(terms.how, Merge) else None
        return self._retrying.call(lambda: self._write_once(rows, changes, batch, terms), str(batch))

    def _write_terms(self, rows: Rows, batch: Batch) -> Terms:
        return self._terms_for(batch).widened(rows) if self.widens else self._terms_for(batch)

    def purge_tombstones(self, below: int | str) -> int:
        """Remove deletions with a sequence below this one, and return how many there were.

        An older change of such a key that arrives afterwards is taken for a new row: choose a sequence so old that no
        change before it can still arrive.
        """
        return self._retrying.call(lambda: self._purge_once(below), f"table {self._table}")

    def _write_once(self, rows: Rows, changes: pa.Table | None, batch: Batch, terms: Terms) -> bool:
        self.last_replaced = 0
        merged = 0 if changes is None else changes.num_rows
        return self._commit(batch, terms, merged, lambda connection: self._apply(connection, rows, changes, terms))

    def _commit(self, batch: Batch, terms: Terms, merged: int, apply: Callable[[Any], int]) -> bool:
        """Apply and record a batch in one transaction; False if the table has it.

        `merged`: rows of a merge. `apply` returns how many of them it left out.
        """
        self.last_stale = 0
        with self._transaction() as connection:
            entry = self._locked_entry(connection, terms)
            if not self._admits(entry, batch):
                return False
            self._check_changed(connection)
            stale = apply(connection)
            self._note(connection, terms, batch.number)
            if entry.owner is None:
                self._note_owner(connection, terms, terms.owner)
        self._reached = batch.number
        self._count_stale(batch, merged, stale)
        return True

    def _apply(self, connection: Any, rows: Rows, changes: pa.Table | None, terms: Terms) -> int:
        """Append the rows or merge the changes; returns how many rows a merge left out."""
        if changes is None:
            self._append(connection, shard_tables(rows, terms.schema), terms)
            return 0
        self._empty(connection, rows.emptied_below)
        if not changes.num_rows:
            return 0
        changes, missing = self._fit_extra(connection, changes)
        self._add_columns(connection, self._name, missing)
        return int(changes.num_rows) - self._merge(connection, changes, replace(terms, schema=changes.schema))

    def _empty(self, connection: Any, below: int | str | None) -> None:
        """Delete all rows that are older than a truncation."""
        if below is None:
            return
        if tie := source_and_queue(below):
            source, emptied = tie
            other = f"{SOURCE_IN_SQL.format(quoted(SEQUENCE))} = ? AND {quoted(QUEUE)} <> ?"
            for (queue,) in self._execute(
                connection, f"SELECT {quoted(QUEUE)} FROM {self._name} WHERE {other} LIMIT 1", tie
            ):
                raise truncated_in_two_queues(emptied, queue, source)
        self._execute(connection, f"DELETE FROM {self._name} WHERE {self._older(below)}", (below,))

    def _open_once(self, terms: Terms) -> None:
        with self._transaction() as connection:
            self._lock_schema(connection)
            self._execute(
                connection,
                f"CREATE TABLE IF NOT EXISTS {self._ledger} (query TEXT NOT NULL, target TEXT NOT NULL, batch BIGINT, "
                "epoch BIGINT NOT NULL, noted_ms BIGINT NOT NULL, PRIMARY KEY (query, target))",
            )
            if not self._columns(connection, self._name):
                self._forget_batches(connection, terms)
            entry = self._locked_entry(connection, terms)
            entry.check_opener(terms)
            if entry.lacks_epoch_of(terms):
                self._note(connection, terms, None)
            moves = entry.has_other_owner(terms)
            if moves:
                self._warn_new_owner(terms)
            self._note_owner(connection, terms, terms.owner if moves else None)
            self._prepare_table(connection, terms)

    def _prepare_table(self, connection: Any, terms: Terms) -> None:
        there = self._columns(connection, self._name)
        if not there:
            self._execute(connection, self._creation(terms))
            return
        self._check_columns(there, terms)
        names = {column.name for column in there}
        for field in terms.schema:
            if field.name not in names:
                kind = self._column_type(field.with_nullable(True))
                self._execute(connection, f"ALTER TABLE {self._name} ADD COLUMN {quoted(field.name)} {kind}")
        if isinstance(terms.how, Merge):
            self._check_upsert(connection, terms)

    def _check_changed(self, connection: Any) -> None:
        """Check the table again if it is not as it was at the last check. It stays so until the transaction ends."""
        self._keep_columns(connection)
        there, terms = self._columns(connection, self._name), self._opened()
        indexes = self._unique_indexes(connection) if isinstance(terms.how, Merge) else []
        if (there, indexes) == self._checked:
            return
        if not there:
            raise StateLost(
                f"table {self._table} is gone: another program dropped or renamed it while the pipeline ran. Put it "
                f"back; or start with --new-sink or run(..., new_sink=True), which continues with a new table"
            )
        refuse_removed(f"table {self._table}", {column.name for column in there}, terms.schema.names)
        self._check_columns(there, terms)
        if isinstance(terms.how, Merge):
            self._check_upsert(connection, terms)
        self._checked = there, indexes

    def _fit_extra(self, connection: Any, changes: pa.Table) -> tuple[pa.Table, list[pa.Field]]:
        """The changes as the table can take them, and the columns that only they have."""
        declared = self._opened().schema.names
        if changes.schema.names == declared:
            return changes, []
        there = {column.name: column for column in self._columns(connection, self._name)}
        return self._extra_columns.fit(changes, declared, there, self._accepts)

    def _add_columns(self, connection: Any, table: str, fields: Sequence[pa.Field]) -> None:
        """Add columns, in the transaction of the batch."""
        for field in fields:
            self._execute(
                connection, f"ALTER TABLE {table} {self.adding} {quoted(field.name)} {self._column_type(field)}"
            )

    def _creation(self, terms: Terms) -> str:
        parts = [f"{quoted(field.name)} {self._column_type(field)}" for field in terms.schema]
        if isinstance(terms.how, Merge):
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, terms.how.keys))})")
            return f"CREATE TABLE {self._name} ({', '.join(parts)}){self.merged_table_options}"
        return f"CREATE TABLE {self._name} ({', '.join(parts)})"

    def _check_columns(self, there: list[Column], terms: Terms) -> None:
        known = {column.name: column for column in there}
        essential = (*terms.how.keys, SEQUENCE, DELETED) if isinstance(terms.how, Merge) else ()
        for field in terms.schema:
            column = known.get(field.name)
            if column is None and (field.name in essential or not self._evolve):
                raise InvalidOption(f"column {field.name} is not in table {self._table}: add it there")
            if column is not None and not self._accepts(column, field.type):
                refuse_other_sequence(field.name, f"table {self._table}", field.type)
                raise InvalidOption(
                    f"column {field.name} is {column.kind} in table {self._table}, and the rows have {field.type}, of "
                    "which it does not take every value as it is: change the column, cast the rows, or write to another"
                    f"{self._remedy(column, field.type)}"
                )
        for column in there:
            if column.required and column.name not in terms.schema.names:
                raise InvalidOption(f"column {column.name} of table {self._table} needs a value the rows do not have")
        if not essential and {SEQUENCE, DELETED} <= known.keys() and SEQUENCE not in terms.schema.names:
            raise InvalidOption(f"table {self._table} is merged by key, and this pipeline appends: use another table")

    def _check_upsert(self, connection: Any, terms: Terms) -> None:
        """Run the merge statement over no rows: without a unique index on the keys the database refuses it.

        The index must not take different keys for equal ones.
        """
        try:
            self._execute(connection, self._upsert(terms, f"SELECT {names_of(terms)} FROM {self._name} WHERE 1 = 0"))
        except InvalidOption as error:
            keys = ", ".join(terms.how.keys) if isinstance(terms.how, Merge) else ""
            raise InvalidOption(f"table {self._table} cannot be merged by {keys}; is it unique? {error}") from error
        assert isinstance(terms.how, Merge)
        of_keys = [index for index in self._unique_indexes(connection) if index.is_of(terms.how.keys)]
        for column, collation in (column for index in of_keys for column in index.columns if column[1]):
            raise InvalidOption(
                f"column {column} of table {self._table} compares texts loosely (collation {collation}), so rows with "
                f"different keys, such as a and A, would become one: give the column and its unique index a collation "
                f"that compares exactly, or write to another table"
            )

    def _upsert(self, terms: Terms, source: str) -> str:
        """The statement that inserts rows, or replaces those with the same key if the new one is newer."""
        assert isinstance(terms.how, Merge)
        keys = terms.how.keys
        updates = ", ".join(f"{quoted(n)} = {self._newer(n, terms)}" for n in terms.schema.names if n not in keys)
        return (
            f"INSERT INTO {self._name} AS held ({names_of(terms)}) {source} "
            f"ON CONFLICT ({', '.join(map(quoted, keys))}) DO UPDATE SET {updates} WHERE {self._replaces(terms)}"
        )

    def _replaces(self, terms: Terms) -> str:
        """The condition under which a row of the table is replaced: by a newer one, and by a repeat of it."""
        order = self.bytewise if self._by_source(terms) else ""
        newer = f"excluded.{quoted(SEQUENCE)} > held.{quoted(SEQUENCE)}{order}"
        if QUEUE not in terms.schema.names:
            return newer
        tie = self._tie("excluded", terms)
        repeat = f" OR ({tie} AND {self._alike('excluded', terms)})" if self._by_source(terms) else ""
        return f"({newer} AND {tie} IS NOT TRUE){repeat}"

    def _tie(self, given: str, terms: Terms) -> str:
        return tied_in_sql(
            "held", given, quoted(QUEUE), quoted(SEQUENCE), SOURCE_IN_SQL if self._by_source(terms) else ""
        )

    def _by_source(self, terms: Terms) -> bool:
        """Whether sequences are positions of the source."""
        return bool(pa.types.is_string(terms.schema.field(SEQUENCE).type))

    def _alike(self, given: str, terms: Terms) -> str:
        """The condition that two rows of a key have the same values."""
        assert isinstance(terms.how, Merge)
        names = (quoted(name) for name in terms.schema.names if name not in (*terms.how.keys, SEQUENCE, QUEUE))
        return " AND ".join(self.same_values.format(f"held.{name}", f"{given}.{name}") for name in names)

    def _refuse_ties(self, connection: Any, terms: Terms, source: str, values: Sequence[Any] = ()) -> None:
        """Raises `OrderError` if one of these rows, which a merge has left out, ties with a row of the table."""
        if QUEUE not in terms.schema.names:
            return
        assert isinstance(terms.how, Merge)
        keys, queue, refused = terms.how.keys, quoted(QUEUE), self._tie("given", terms)
        if self._by_source(terms):
            refused += f" AND NOT ({self._alike('given', terms)})"
        same = " AND ".join(f"held.{quoted(key)} = given.{quoted(key)}" for key in keys)
        found = self._execute(
            connection,
            f"SELECT {', '.join(f'held.{quoted(key)}' for key in keys)}, held.{queue}, given.{queue}, "
            f"given.{quoted(SEQUENCE)} FROM {self._name} AS held JOIN ({source}) AS given ON {same} "
            f"WHERE {refused} LIMIT 1",
            values,
        )
        for *key, before, now, sequence in found:
            raise changed_in_two_queues(dict(zip(keys, key, strict=True)), before, now, sequence)

    def _newer(self, name: str, terms: Terms) -> str:
        """What a newer row stores in a column: its own value, or the old one if the row keeps it."""
        if name == QUEUE and self._by_source(terms):
            several = with_others_in_sql(f"excluded.{quoted(QUEUE)}")
            return f"CASE WHEN {self._tie('excluded', terms)} THEN {several} ELSE excluded.{quoted(QUEUE)} END"
        if KEPT not in terms.schema.names or name in (SEQUENCE, DELETED, KEPT, QUEUE):
            return f"excluded.{quoted(name)}"
        marks = [mark.replace("'", "''") for mark in kept_marks(name)]
        keeps = " OR ".join(f"{self.position_in_text}(excluded.{quoted(KEPT)}, '{mark}') > 0" for mark in marks)
        return f"CASE WHEN {keeps} THEN held.{quoted(name)} ELSE excluded.{quoted(name)} END"

    def _locked_entry(self, connection: Any, terms: Terms) -> LedgerEntry:
        """The ledger entry with the owner; it cannot change until the transaction ends."""
        owner = self._entry(connection, terms.owner_id, self.for_update).batch if terms.pipeline else None
        return replace(self._entry(connection, terms.query, self.for_update), owner=owner)

    def _entry(self, connection: Any, query: str, lock: str = "") -> LedgerEntry:
        found = self._execute(
            connection,
            f"SELECT batch, epoch FROM {self._ledger} WHERE query = ? AND target = ? {lock}",
            (query, self._table),
        )
        return LedgerEntry(*found[0]) if found else LedgerEntry()

    def _note(self, connection: Any, terms: Terms, number: int | None) -> None:
        self._execute(
            connection,
            f"INSERT INTO {self._ledger} AS held (query, target, batch, epoch, noted_ms) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (query, target) DO UPDATE SET batch = COALESCE(excluded.batch, held.batch), "
            "epoch = excluded.epoch, noted_ms = excluded.noted_ms",
            (terms.query, self._table, number, terms.epoch, self._clock.wall()),
        )

    def _note_owner(self, connection: Any, terms: Terms, owner: int | None) -> None:
        """Record the owner, as the batch number of a ledger row of its own. None: make the row, so it can be locked."""
        if terms.pipeline:
            self._note(connection, replace(terms, query=terms.owner_id), owner)

    def _forget_batches(self, connection: Any, terms: Terms) -> None:
        """Clear batch number and owner: the old table was dropped with its batches, and the new one has none."""
        self._execute(
            connection,
            f"UPDATE {self._ledger} SET batch = NULL WHERE query IN (?, ?) AND target = ?",
            (terms.query, terms.owner_id, self._table),
        )

    def _applied_once(self, terms: Terms) -> int | None:
        with self._transaction() as connection:
            return self._entry(connection, terms.query).batch

    def _applied_before_open_once(self, query: str) -> int | None:
        """None if the table or the ledger does not exist: a dropped table has lost its batches."""
        with self._transaction() as connection:
            there = self._columns(connection, self._name) and self._columns(connection, self._ledger)
            return self._entry(connection, query).batch if there else None

    def _purge_once(self, below: int | str) -> int:
        old = f"{quoted(DELETED)} AND {self._older(below)}"
        with self._transaction() as connection:
            return len(self._execute(connection, f"DELETE FROM {self._name} WHERE {old} RETURNING 1", (below,)))

    def _older(self, sequence: int | str) -> str:
        """The condition for rows with a lower sequence than the one that is given as a value."""
        return f"{quoted(SEQUENCE)} < ?{self.bytewise if isinstance(sequence, str) else ''}"

    # The differences between databases.

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A transaction on an open connection. Database errors leave it as LaneErrors, retriable if they may pass."""

    @abstractmethod
    def _lock_schema(self, connection: Any) -> None:
        """Keep other sessions from creating tables until the transaction ends."""

    @abstractmethod
    def _columns(self, connection: Any, table: str) -> list[Column]:
        """The columns of a table, given its quoted name; empty if there is no such table."""

    @abstractmethod
    def _keep_columns(self, connection: Any) -> None:
        """Keep other sessions from changing the table's columns and indexes until the transaction ends."""

    @abstractmethod
    def _unique_indexes(self, connection: Any) -> list[UniqueIndex]:
        """The unique indexes of the table."""

    @abstractmethod
    def _column_type(self, field: pa.Field) -> str:
        """The declaration of a new column."""

    @abstractmethod
    def _accepts(self, column: Column, kind: pa.DataType) -> bool:
        """Whether every value of this type keeps its meaning in the column."""

    def _remedy(self, column: Column, kind: pa.DataType) -> str:
        """A further remedy for the error about a refused column."""
        return ""

    @abstractmethod
    def _execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with `?` for values, and return its rows."""

    @abstractmethod
    def _append(self, connection: Any, tables: Iterable[pa.Table], terms: Terms) -> None:
        """Add the rows, in order."""

    @abstractmethod
    def _merge(self, connection: Any, changes: pa.Table, terms: Terms) -> int:
        """Apply one row per key with `_upsert`, and return how many were new or newer."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """`orders` or `sales.orders` with each part quoted."""
    parts = name.split(".")
    if not all(parts) or "?" in name:
        raise InvalidOption(f"table {name!r}: write a name, or schema.name, without question marks")
    return ".".join(map(quoted, parts))


def _in_key_order(rows: Rows, terms: Terms) -> pa.Table:
    """The rows to merge, sorted by key. This is twice as fast in a table larger than the database's memory."""
    assert isinstance(terms.how, Merge)
    changes = merge_table(rows, terms.schema, terms.how.keys)
    return changes.sort_by([(key, "ascending") for key in terms.how.keys])


def names_of(terms: Terms) -> str:
    return ", ".join(map(quoted, terms.schema.names))


def in_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of plain values."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
