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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import InvalidOption, StateLost
from lanemq.model.units import Seconds, to_millis
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE, Merge, Rows, SinkRun
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
    kept_marks,
    merge_table,
    owner_id,
    owner_mark,
    refuse_other_sequence,
    refuse_removed,
    shard_tables,
    widened,
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

    def open(self, run: SinkRun) -> None:
        self._begin(run)
        try:
            self._retrying.call(lambda: self._open_once(run), f"table {self._table}")
        except BaseException:
            self.close()
            raise

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        try:
            return self._retrying.call(lambda: self._applied_once(query), f"table {self._table}")
        finally:
            if self._run is None:
                self.close()  # a run's session is named after its query, which is not known yet

    def write(self, rows: Rows, batch: Batch) -> bool:
        run = self._write_run(rows, batch)
        changes = _in_key_order(rows, run) if isinstance(run.how, Merge) else None
        return self._retrying.call(lambda: self._write_once(rows, changes, batch, run), str(batch))

    def _write_run(self, rows: Rows, batch: Batch) -> SinkRun:
        return widened(self._run_of(batch), rows) if self.widens else self._run_of(batch)

    def purge_tombstones(self, below: int | str) -> int:
        """Remove deletions with a sequence below this one, and return how many there were.

        An older change of such a key that arrives afterwards is taken for a new row: choose a sequence so old that no
        change before it can still arrive.
        """
        return self._retrying.call(lambda: self._purge_once(below), f"table {self._table}")

    def _write_once(self, rows: Rows, changes: pa.Table | None, batch: Batch, run: SinkRun) -> bool:
        self.last_replaced = 0
        merged = 0 if changes is None else changes.num_rows
        return self._commit(batch, run, merged, lambda connection: self._apply(connection, rows, changes, run))

    def _commit(self, batch: Batch, run: SinkRun, merged: int, apply: Callable[[Any], int]) -> bool:
        """Apply and record a batch in one transaction; False if the table has it.

        `merged`: rows of a merge. `apply` returns how many of them it left out.
        """
        self.last_stale = 0
        with self._transaction() as connection:
            entry = self._locked_entry(connection, run)
            if not self._admits(entry, batch):
                return False
            self._check_changed(connection)
            stale = apply(connection)
            self._note(connection, run, batch.number)
            if entry.owner is None:
                self._note_owner(connection, run, owner_mark(run.query))
        self._reached = batch.number
        self._count_stale(batch, merged, stale)
        return True

    def _apply(self, connection: Any, rows: Rows, changes: pa.Table | None, run: SinkRun) -> int:
        """Append the rows or merge the changes; returns how many rows a merge left out."""
        if changes is None:
            self._append(connection, shard_tables(rows, run.columns), run)
            return 0
        self._empty(connection, rows.emptied_below)
        if not changes.num_rows:
            return 0
        changes, missing = self._fit_extra(connection, changes)
        self._add_columns(connection, self._name, missing)
        return int(changes.num_rows) - self._merge(connection, changes, replace(run, columns=changes.schema))

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

    def _open_once(self, run: SinkRun) -> None:
        with self._transaction() as connection:
            self._lock_schema(connection)
            self._execute(
                connection,
                f"CREATE TABLE IF NOT EXISTS {self._ledger} (query TEXT NOT NULL, target TEXT NOT NULL, batch BIGINT, "
                "epoch BIGINT NOT NULL, noted_ms BIGINT NOT NULL, PRIMARY KEY (query, target))",
            )
            if not self._columns(connection, self._name):
                self._forget_batches(connection, run)
            entry = self._locked_entry(connection, run)
            entry.check_opener(run, self)
            if entry.lacks_epoch_of(run):
                self._note(connection, run, None)
            moves = entry.has_other_owner(run)
            if moves:
                self._warn_new_owner(run)
            self._note_owner(connection, run, owner_mark(run.query) if moves else None)
            self._prepare_table(connection, run)

    def _prepare_table(self, connection: Any, run: SinkRun) -> None:
        there = self._columns(connection, self._name)
        if not there:
            self._execute(connection, self._creation(run))
            return
        self._check_columns(there, run)
        names = {column.name for column in there}
        for field in run.columns:
            if field.name not in names:
                kind = self._column_type(field.with_nullable(True))
                self._execute(connection, f"ALTER TABLE {self._name} ADD COLUMN {quoted(field.name)} {kind}")
        if isinstance(run.how, Merge):
            self._check_upsert(connection, run)

    def _check_changed(self, connection: Any) -> None:
        """Check the table again if it is not as it was at the last check. It stays so until the transaction ends."""
        self._keep_columns(connection)
        there, run = self._columns(connection, self._name), self._opened()
        indexes = self._unique_indexes(connection) if isinstance(run.how, Merge) else []
        if (there, indexes) == self._checked:
            return
        if not there:
            raise StateLost(
                f"table {self._table} is gone: another program dropped or renamed it while the pipeline ran. Put it "
                f"back; or start with --new-sink or run(..., new_sink=True), which continues with a new table"
            )
        refuse_removed(f"table {self._table}", {column.name for column in there}, run.columns.names)
        self._check_columns(there, run)
        if isinstance(run.how, Merge):
            self._check_upsert(connection, run)
        self._checked = there, indexes

    def _fit_extra(self, connection: Any, changes: pa.Table) -> tuple[pa.Table, list[pa.Field]]:
        """The changes as the table can take them, and the columns that only they have."""
        declared = self._opened().columns.names
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

    def _creation(self, run: SinkRun) -> str:
        parts = [f"{quoted(field.name)} {self._column_type(field)}" for field in run.columns]
        if isinstance(run.how, Merge):
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, run.how.keys))})")
            return f"CREATE TABLE {self._name} ({', '.join(parts)}){self.merged_table_options}"
        return f"CREATE TABLE {self._name} ({', '.join(parts)})"

    def _check_columns(self, there: list[Column], run: SinkRun) -> None:
        known = {column.name: column for column in there}
        essential = (*run.how.keys, SEQUENCE, DELETED) if isinstance(run.how, Merge) else ()
        for field in run.columns:
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
            if column.required and column.name not in run.columns.names:
                raise InvalidOption(f"column {column.name} of table {self._table} needs a value the rows do not have")
        if not essential and {SEQUENCE, DELETED} <= known.keys() and SEQUENCE not in run.columns.names:
            raise InvalidOption(f"table {self._table} is merged by key, and this pipeline appends: use another table")

    def _check_upsert(self, connection: Any, run: SinkRun) -> None:
        """Run the merge statement over no rows: without a unique index on the keys the database refuses it.

        The index must not take different keys for equal ones.
        """
        try:
            self._execute(connection, self._upsert(run, f"SELECT {names_of(run)} FROM {self._name} WHERE 1 = 0"))
        except InvalidOption as error:
            keys = ", ".join(run.how.keys) if isinstance(run.how, Merge) else ""
            raise InvalidOption(f"table {self._table} cannot be merged by {keys}; is it unique? {error}") from error
        assert isinstance(run.how, Merge)
        of_keys = [index for index in self._unique_indexes(connection) if index.is_of(run.how.keys)]
        for column, collation in (column for index in of_keys for column in index.columns if column[1]):
            raise InvalidOption(
                f"column {column} of table {self._table} compares texts loosely (collation {collation}), so rows with "
                f"different keys, such as a and A, would become one: give the column and its unique index a collation "
                f"that compares exactly, or write to another table"
            )

    def _upsert(self, run: SinkRun, source: str) -> str:
        """The statement that inserts rows, or replaces those with the same key if the new one is newer."""
        assert isinstance(run.how, Merge)
        keys = run.how.keys
        updates = ", ".join(f"{quoted(n)} = {self._newer(n, run)}" for n in run.columns.names if n not in keys)
        return (
            f"INSERT INTO {self._name} AS held ({names_of(run)}) {source} "
            f"ON CONFLICT ({', '.join(map(quoted, keys))}) DO UPDATE SET {updates} WHERE {self._replaces(run)}"
        )

    def _replaces(self, run: SinkRun) -> str:
        """The condition under which a row of the table is replaced: by a newer one, and by a repeat of it."""
        order = self.bytewise if self._by_source(run) else ""
        newer = f"excluded.{quoted(SEQUENCE)} > held.{quoted(SEQUENCE)}{order}"
        if QUEUE not in run.columns.names:
            return newer
        tie = self._tie("excluded", run)
        repeat = f" OR ({tie} AND {self._alike('excluded', run)})" if self._by_source(run) else ""
        return f"({newer} AND {tie} IS NOT TRUE){repeat}"

    def _tie(self, given: str, run: SinkRun) -> str:
        return tied_in_sql(
            "held", given, quoted(QUEUE), quoted(SEQUENCE), SOURCE_IN_SQL if self._by_source(run) else ""
        )

    def _by_source(self, run: SinkRun) -> bool:
        """Whether sequences are positions of the source."""
        return bool(pa.types.is_string(run.columns.field(SEQUENCE).type))

    def _alike(self, given: str, run: SinkRun) -> str:
        """The condition that two rows of a key have the same values."""
        assert isinstance(run.how, Merge)
        names = (quoted(name) for name in run.columns.names if name not in (*run.how.keys, SEQUENCE, QUEUE))
        return " AND ".join(self.same_values.format(f"held.{name}", f"{given}.{name}") for name in names)

    def _refuse_ties(self, connection: Any, run: SinkRun, source: str, values: Sequence[Any] = ()) -> None:
        """Raises `OrderError` if one of these rows, which a merge has left out, ties with a row of the table."""
        if QUEUE not in run.columns.names:
            return
        assert isinstance(run.how, Merge)
        keys, queue, refused = run.how.keys, quoted(QUEUE), self._tie("given", run)
        if self._by_source(run):
            refused += f" AND NOT ({self._alike('given', run)})"
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

    def _newer(self, name: str, run: SinkRun) -> str:
        """What a newer row stores in a column: its own value, or the old one if the row keeps it."""
        if name == QUEUE and self._by_source(run):
            several = with_others_in_sql(f"excluded.{quoted(QUEUE)}")
            return f"CASE WHEN {self._tie('excluded', run)} THEN {several} ELSE excluded.{quoted(QUEUE)} END"
        if KEPT not in run.columns.names or name in (SEQUENCE, DELETED, KEPT, QUEUE):
            return f"excluded.{quoted(name)}"
        marks = [mark.replace("'", "''") for mark in kept_marks(name)]
        keeps = " OR ".join(f"{self.position_in_text}(excluded.{quoted(KEPT)}, '{mark}') > 0" for mark in marks)
        return f"CASE WHEN {keeps} THEN held.{quoted(name)} ELSE excluded.{quoted(name)} END"

    def _locked_entry(self, connection: Any, run: SinkRun) -> LedgerEntry:
        """The ledger entry with the owner; it cannot change until the transaction ends."""
        owner = self._entry(connection, owner_id(run), self.for_update).batch if run.pipeline else None
        return replace(self._entry(connection, run.query, self.for_update), owner=owner)

    def _entry(self, connection: Any, query: str, lock: str = "") -> LedgerEntry:
        found = self._execute(
            connection,
            f"SELECT batch, epoch FROM {self._ledger} WHERE query = ? AND target = ? {lock}",
            (query, self._table),
        )
        return LedgerEntry(*found[0]) if found else LedgerEntry()

    def _note(self, connection: Any, run: SinkRun, number: int | None) -> None:
        self._execute(
            connection,
            f"INSERT INTO {self._ledger} AS held (query, target, batch, epoch, noted_ms) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (query, target) DO UPDATE SET batch = COALESCE(excluded.batch, held.batch), "
            "epoch = excluded.epoch, noted_ms = excluded.noted_ms",
            (run.query, self._table, number, run.epoch, self._clock.wall()),
        )

    def _note_owner(self, connection: Any, run: SinkRun, owner: int | None) -> None:
        """Record the owner, as the batch number of a ledger row of its own. None: make the row, so it can be locked."""
        if run.pipeline:
            self._note(connection, replace(run, query=owner_id(run)), owner)

    def _forget_batches(self, connection: Any, run: SinkRun) -> None:
        """Clear batch number and owner: the old table was dropped with its batches, and the new one has none."""
        self._execute(
            connection,
            f"UPDATE {self._ledger} SET batch = NULL WHERE query IN (?, ?) AND target = ?",
            (run.query, owner_id(run), self._table),
        )

    def _applied_once(self, query: str) -> int | None:
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
    def _append(self, connection: Any, tables: Iterable[pa.Table], run: SinkRun) -> None:
        """Add the rows, in order."""

    @abstractmethod
    def _merge(self, connection: Any, changes: pa.Table, run: SinkRun) -> int:
        """Apply one row per key with `_upsert`, and return how many were new or newer."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """`orders` or `sales.orders` with each part quoted."""
    parts = name.split(".")
    if not all(parts) or "?" in name:
        raise InvalidOption(f"table {name!r}: write a name, or schema.name, without question marks")
    return ".".join(map(quoted, parts))


def _in_key_order(rows: Rows, run: SinkRun) -> pa.Table:
    """The rows to merge, sorted by key. This is twice as fast in a table larger than the database's memory."""
    assert isinstance(run.how, Merge)
    changes = merge_table(rows, run.columns, run.how.keys)
    return changes.sort_by([(key, "ascending") for key in run.how.keys])


def names_of(run: SinkRun) -> str:
    return ", ".join(map(quoted, run.columns.names))


def in_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of plain values."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
