"""Batches in a table of a database: rows and ledger row in one transaction.

The rules guarded here: the ledger row of (query, table) is locked before anything is decided and changed with the
rows, so of two runs one waits for the other and then sees what it did; a batch that is in, or whose run was replaced,
changes nothing; a table that has to be made anew has no batches, whatever the ledger said. After an error nobody knows
whether a commit arrived, and nobody has to: the ledger is asked again.

A merge replaces a row only by one with a higher sequence. Deletions stay as rows with `_deleted`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE, Append, Merge
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sinks.columns import json_bytes, merge_table, shard_tables
from lanemq.pipelines.sinks.ledger import ExactSink, Standing, Terms
from lanemq.pipelines.sinks.widening import Room, widened
from lanemq.spark.read.waiting import Patience

LEDGER = "lanemq_ledger"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the database describes it."""

    name: str
    kind: str
    """The database's own word for the type, in lower case."""
    required: bool
    """Whether a row without it is refused."""
    base: str = ""
    """The type without its limits, where the database tells them apart."""
    limit: int = -1
    """Of lengths or digits, as the database has it; -1: none."""
    group: str = ""
    """What sort of type it is, in the database's own word."""


class SqlSink(ExactSink, ABC):
    """What SQLite and PostgreSQL have in common; the differences are the methods without a body."""

    def __init__(self, table: str, wait: Millis, evolve: bool, clock: Clock | None) -> None:
        self._table = table
        self._name = quoted_table(table)
        self._ledger = quoted_table(".".join([*table.split(".")[:-1], LEDGER]))
        self._evolve = self.widens = evolve
        self._clock = clock or SystemClock()
        self._patience = Patience(wait, self._clock)
        self._room = Room(f"table {table}")

    def __str__(self) -> str:
        return f"table {self._table}"

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A transaction on an open connection; foreign errors leave it as LaneErrors, passing ones retriable."""

    @abstractmethod
    def _settle(self, connection: Any) -> None:
        """Keeps everybody else from creating tables until the transaction ends."""

    @abstractmethod
    def _columns(self, connection: Any, table: str) -> list[Column]:
        """The columns of a table (its name is quoted); none if there is no such table."""

    @abstractmethod
    def _column_type(self, field: pa.Field) -> str:
        """What a new column is declared as."""

    @abstractmethod
    def _accepts(self, column: Column, kind: pa.DataType) -> bool:
        """Whether values of this type keep their meaning in the column."""

    def _way_out(self, column: Column, kind: pa.DataType) -> str:
        """What else somebody can do whose column was refused."""
        return ""

    @abstractmethod
    def _ask(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement with `?` for values, and the rows of its answer."""

    @abstractmethod
    def _append(self, connection: Any, tables: Iterable[pa.Table], terms: Terms) -> None:
        """Adds the rows, in order."""

    @abstractmethod
    def _merge(self, connection: Any, changes: pa.Table, terms: Terms) -> int:
        """Applies one row per key by `upsert`, and says how many were new or newer."""

    adding = "ADD COLUMN"
    """How a column is added that somebody else may be adding, too."""
    for_update = ""
    """What makes a SELECT lock its row; empty where the transaction locks everything."""
    place_of = "instr"
    """The function that says where in a text another begins, from 1."""
    bytewise = ""
    """What makes a comparison of texts one of their bytes; empty where it always is."""
    room_for_updates = ""
    """What a table that is merged is created with, beside its columns."""

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        terms = self._agree(query, epoch, schema, how)
        self._patience.run(lambda: self._open_once(terms), f"table {self._table}")

    def applied_before_open(self, query: str) -> int | None:
        try:
            return self._patience.run(lambda: self._look_once(query), f"table {self._table}")
        finally:
            self.close()  # the session of a run is one that knows its query

    def applied(self) -> int | None:
        terms = self._opened()
        return self._patience.run(lambda: self._ask_applied(terms), f"table {self._table}")

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = widened(self._terms_for(batch), rows) if self.widens else self._terms_for(batch)
        changes = _in_key_order(rows, terms) if isinstance(terms.how, Merge) else None
        return self._patience.run(lambda: self._write_once(rows, changes, batch, terms), str(batch))

    def purge_tombstones(self, below: int | str) -> int:
        """Removes deletions with a sequence below this one, and says how many.

        An older change of such a key that arrives afterwards is taken for a new row: choose a sequence that nothing
        on its way to the table is older than.
        """
        return self._patience.run(lambda: self._purge_once(below), f"table {self._table}")

    def _write_once(self, rows: Rows, changes: pa.Table | None, batch: Batch, terms: Terms) -> bool:
        stale = self.last_stale = self.last_replaced = 0
        with self._transaction() as connection:
            if not self._standing(connection, terms).admits(batch):
                return False
            self._reached("ledger locked")
            if changes is None:
                self._append(connection, shard_tables(rows, terms.schema), terms)
            elif changes.num_rows:
                changes, terms = self._make_room(connection, changes, terms)
                stale = changes.num_rows - self._merge(connection, changes, terms)
            self._reached("rows in")
            self._note(connection, terms, batch.number)
            self._reached("noted")
        self._tell_stale(batch, 0 if changes is None else changes.num_rows, stale)
        self._reached("committed")
        return True

    def _open_once(self, terms: Terms) -> None:
        with self._transaction() as connection:
            self._settle(connection)
            self._ask(
                connection,
                f"CREATE TABLE IF NOT EXISTS {self._ledger} (query TEXT NOT NULL, target TEXT NOT NULL, batch BIGINT, "
                "epoch BIGINT NOT NULL, noted_ms BIGINT NOT NULL, PRIMARY KEY (query, target))",
            )
            if self._standing(connection, terms).lacks(terms):
                self._note(connection, terms, None)
            self._settle_table(connection, terms)
            self._reached("table settled")

    def _settle_table(self, connection: Any, terms: Terms) -> None:
        there = self._columns(connection, self._name)
        if not there:
            self._ask(connection, self._creation(terms))
            self._forget_batches(connection, terms)
            return
        self._check_columns(there, terms)
        names = {column.name for column in there}
        for field in terms.schema:
            if field.name not in names:
                kind = self._column_type(field.with_nullable(True))
                self._ask(connection, f"ALTER TABLE {self._name} ADD COLUMN {quoted(field.name)} {kind}")
        if isinstance(terms.how, Merge):
            self._check_upsert(connection, terms)

    def _make_room(self, connection: Any, changes: pa.Table, terms: Terms) -> tuple[pa.Table, Terms]:
        """Columns that the rows bring along are added in the batch's own transaction."""
        agreed = self._opened().schema.names
        if terms.schema.names == agreed:
            return changes, terms
        there = {column.name: column for column in self._columns(connection, self._name)}
        changes, missing = self._room.made(changes, agreed, there, self._accepts)
        for field in missing:
            self._ask(
                connection, f"ALTER TABLE {self._name} {self.adding} {quoted(field.name)} {self._column_type(field)}"
            )
        return changes, replace(terms, schema=changes.schema)

    def _creation(self, terms: Terms) -> str:
        parts = [f"{quoted(field.name)} {self._column_type(field)}" for field in terms.schema]
        if isinstance(terms.how, Merge):
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, terms.how.keys))})")
            return f"CREATE TABLE {self._name} ({', '.join(parts)}){self.room_for_updates}"
        return f"CREATE TABLE {self._name} ({', '.join(parts)})"

    def _check_columns(self, there: list[Column], terms: Terms) -> None:
        known = {column.name: column for column in there}
        essential = (*terms.how.keys, SEQUENCE, DELETED) if isinstance(terms.how, Merge) else ()
        for field in terms.schema:
            column = known.get(field.name)
            if column is None and (field.name in essential or not self._evolve):
                raise InvalidOption(f"column {field.name} is not in table {self._table}: add it there")
            if column is not None and not self._accepts(column, field.type):
                raise InvalidOption(
                    f"column {field.name} is {column.kind} in table {self._table}, and the rows have {field.type}, of "
                    "which it does not take every value as it is: change the column, cast the rows, or write to another"
                    f"{self._way_out(column, field.type)}"
                )
        for column in there:
            if column.required and column.name not in terms.schema.names:
                raise InvalidOption(f"column {column.name} of table {self._table} needs a value the rows do not have")
        if not essential and {SEQUENCE, DELETED} <= known.keys() and SEQUENCE not in terms.schema.names:
            raise InvalidOption(f"table {self._table} is merged by key, and this pipeline appends: use another table")

    def _check_upsert(self, connection: Any, terms: Terms) -> None:
        """The statement itself, over no rows: without a unique index on the keys the database refuses it."""
        try:
            self._ask(connection, self._upsert(terms, f"SELECT {names_of(terms)} FROM {self._name} WHERE 1 = 0"))
        except InvalidOption as error:
            keys = ", ".join(terms.how.keys) if isinstance(terms.how, Merge) else ""
            raise InvalidOption(f"table {self._table} cannot be merged by {keys}, is it unique? {error}") from error

    def _upsert(self, terms: Terms, source: str) -> str:
        """One row per key, replaced only by a newer one."""
        assert isinstance(terms.how, Merge)
        keys = terms.how.keys
        updates = ", ".join(f"{quoted(n)} = {self._newer(n, terms)}" for n in terms.schema.names if n not in keys)
        order = self.bytewise if pa.types.is_string(terms.schema.field(SEQUENCE).type) else ""
        return (
            f"INSERT INTO {self._name} AS held ({names_of(terms)}) {source} "
            f"ON CONFLICT ({', '.join(map(quoted, keys))}) DO UPDATE SET {updates} "
            f"WHERE excluded.{quoted(SEQUENCE)} > held.{quoted(SEQUENCE)}{order}"
        )

    def _newer(self, name: str, terms: Terms) -> str:
        """What a newer row puts into a column: its own value, unless it keeps the one that is there."""
        if KEPT not in terms.schema.names or name in (SEQUENCE, DELETED, KEPT):
            return f"excluded.{quoted(name)}"
        named = json_bytes(name).decode().replace("'", "''")
        keeps = f"{self.place_of}(excluded.{quoted(KEPT)}, '{named}') > 0"
        return f"CASE WHEN {keeps} THEN held.{quoted(name)} ELSE excluded.{quoted(name)} END"

    def _standing(self, connection: Any, terms: Terms) -> Standing:
        """What the ledger says, and goes on saying until the transaction ends."""
        return self._seen(connection, terms.query, self.for_update)

    def _seen(self, connection: Any, query: str, lock: str = "") -> Standing:
        found = self._ask(
            connection,
            f"SELECT batch, epoch FROM {self._ledger} WHERE query = ? AND target = ? {lock}",
            (query, self._table),
        )
        return Standing(*found[0]) if found else Standing()

    def _note(self, connection: Any, terms: Terms, number: int | None) -> None:
        self._ask(
            connection,
            f"INSERT INTO {self._ledger} AS held (query, target, batch, epoch, noted_ms) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (query, target) DO UPDATE SET batch = COALESCE(excluded.batch, held.batch), "
            "epoch = excluded.epoch, noted_ms = excluded.noted_ms",
            (terms.query, self._table, number, terms.epoch, self._clock.wall()),
        )

    def _forget_batches(self, connection: Any, terms: Terms) -> None:
        """A table that was dropped takes its batches along: the ledger must not say that a new one has them."""
        self._ask(
            connection,
            f"UPDATE {self._ledger} SET batch = NULL WHERE query = ? AND target = ?",
            (terms.query, self._table),
        )

    def _ask_applied(self, terms: Terms) -> int | None:
        with self._transaction() as connection:
            return self._seen(connection, terms.query).batch

    def _look_once(self, query: str) -> int | None:
        """A ledger's word about a table that is not there is worth nothing."""
        with self._transaction() as connection:
            there = self._columns(connection, self._name) and self._columns(connection, self._ledger)
            return self._seen(connection, query).batch if there else None

    def _purge_once(self, below: int | str) -> int:
        order = self.bytewise if isinstance(below, str) else ""
        old = f"{quoted(DELETED)} AND {quoted(SEQUENCE)} < ?{order}"
        with self._transaction() as connection:
            return len(self._ask(connection, f"DELETE FROM {self._name} WHERE {old} RETURNING 1", (below,)))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """`orders` or `sales.orders`, each part quoted."""
    parts = name.split(".")
    if not all(parts) or "?" in name:
        raise InvalidOption(f"table {name!r}: write a name, or schema.name, without question marks")
    return ".".join(map(quoted, parts))


def _in_key_order(rows: Rows, terms: Terms) -> pa.Table:
    """Neighbours in the index one after the other: twice as fast in a table larger than the database's memory."""
    assert isinstance(terms.how, Merge)
    changes = merge_table(rows, terms.schema, terms.how.keys)
    return changes.sort_by([(key, "ascending") for key in terms.how.keys])


def names_of(terms: Terms) -> str:
    return ", ".join(map(quoted, terms.schema.names))


def in_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of plain values."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
