"""A merge computed with Arrow, for tables whose library cannot merge: which rows of a file change, and how.

The rules are those of every merging sink: a row is replaced only by one with a higher sequence; deletions are rows with
`_deleted`; columns named in `_kept` keep the stored value; a change that ties with the row is refused, unless it
repeats the row (`queue_ties.py`); a truncation removes older rows, and a row that follows it keeps nothing of the row
before. The table is read file by file, so at most one of its files is in memory.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.ports import KEPT, QUEUE, SEQUENCE
from lanemq.pipelines.queue_ties import (
    alike,
    by_source,
    changed_in_two_queues,
    source_and_queue,
    source_part,
    tied,
    truncated_in_two_queues,
    with_others,
)

_ROW, _CHANGE = "_lanemq_row", "_lanemq_change"
"""Names of the columns with positions while rows and changes are joined."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a merge does with the rows of one file."""

    stays: pa.BooleanArray
    """For each row of the file: whether it stays as it is."""
    rows: pa.Array
    """Positions of the rows that changes replace."""
    changes: pa.Array
    """Positions of these changes, in the same order."""
    older: pa.Array
    """For each replaced row: whether it is from before a truncation."""
    ties: pa.Array
    """For each replaced row: whether its change ties with it, and so must be equal."""


class ArrowMerge:
    """The merge of one batch; give it every file that may have one of the keys, then ask for what is left to insert.

    Args:
        changes: At most one row per key, with the types of the table's columns.
        keys: The columns that identify a row.
        below: Rows with a sequence below this one are removed. None: none of them.
    """

    def __init__(self, changes: pa.Table, keys: tuple[str, ...], below: int | str | None) -> None:
        self._changes = changes
        self._keys = keys
        self._below = below
        self._found: list[pa.Array] = []
        self.stale = 0
        """Changes that are not newer than the table's rows."""

    @property
    def index_columns(self) -> tuple[str, ...]:
        """The columns that decide what happens to a file."""
        return (*self._keys, SEQUENCE, *([QUEUE] if QUEUE in self._changes.schema.names else []))

    def plan(self, index: pa.Table) -> Rewrite | None:
        """What happens to a file with these keys and sequences; None if it stays as it is."""
        rows, changes = pairs_of(index, self._changes, self._keys)
        self._found.append(changes)
        self._refuse_truncation(index)
        old, new = index[SEQUENCE], self._changes[SEQUENCE]
        removed = pc.less(old, self._below) if self._below is not None else pa.repeat(False, index.num_rows)
        older = _array(pc.take(removed, rows))
        ties = pc.and_not(self._ties(index.take(rows), self._changes.take(changes)), older)
        newer = _array(pc.or_(pc.or_(older, ties), pc.greater(pc.take(new, changes), pc.take(old, rows))))
        self.stale += len(newer) - (pc.sum(newer).as_py() or 0)
        rows, changes, older, ties = (each.filter(newer) for each in (rows, changes, older, ties))
        if not len(rows) and not pc.any(removed).as_py():
            return None
        replaced = pc.is_in(pa.array(range(index.num_rows), pa.int64()), value_set=rows)
        return Rewrite(_array(pc.invert(pc.or_(removed, replaced))), rows, changes, older, ties)

    def rewritten(self, table: pa.Table, rewrite: Rewrite) -> pa.Table:
        """All rows of the file after the merge. `table` has every column of the changes."""
        before, after = table.take(rewrite.rows), self._changes.take(rewrite.changes)
        after = self._settle_ties(before, after, rewrite.ties)
        for name in after.schema.names:
            column = self._kept(before, after, name, rewrite.older)
            before = before.set_column(before.schema.get_field_index(name), before.schema.field(name), column)
        return pa.concat_tables([table.filter(rewrite.stays), before])

    def inserted(self) -> pa.Table:
        """The changes whose key no file had."""
        found = pa.concat_arrays([pa.array([], pa.int64()), *self._found])
        at = pa.array(range(self._changes.num_rows), pa.int64())
        return self._changes.filter(pc.invert(pc.is_in(at, value_set=found)))

    def _refuse_truncation(self, index: pa.Table) -> None:
        """Refuses a truncation with the source position of a row of another queue."""
        if tie := source_and_queue(self._below):
            source, emptied = tie
            other = pc.and_(pc.equal(source_part(index[SEQUENCE]), source), pc.not_equal(index[QUEUE], emptied))
            for queue in index[QUEUE].filter(other).to_pylist():
                raise truncated_in_two_queues(emptied, queue, source)

    def _ties(self, before: pa.Table, after: pa.Table) -> pa.Array:
        if QUEUE not in self._changes.schema.names:
            return pa.repeat(False, after.num_rows)
        return _array(tied(before, after, QUEUE, SEQUENCE))

    def _settle_ties(self, before: pa.Table, after: pa.Table, ties: pa.Array) -> pa.Table:
        """Refuses changes that tie with their rows and are not equal; marks those that are."""
        if not pc.any(ties).as_py():
            return after
        queues = after[QUEUE].to_pylist()
        repeats, hidden = by_source(after.schema.field(SEQUENCE).type), (SEQUENCE, QUEUE)
        for at in pc.indices_nonzero(ties).to_pylist():
            held, change = before.slice(at, 1).to_pylist()[0], after.slice(at, 1).to_pylist()[0]
            if not repeats or not alike(change, held, hidden):
                key = {name: change[name] for name in self._keys}
                raise changed_in_two_queues(key, held[QUEUE], change[QUEUE], change[SEQUENCE])
            queues[at] = with_others(queues[at])
        field = after.schema.field(QUEUE)
        return after.set_column(after.schema.get_field_index(QUEUE), field, pa.array(queues, field.type))

    def _kept(self, before: pa.Table, after: pa.Table, name: str, older: pa.Array) -> pa.ChunkedArray:
        """The new values of a column, except where a change keeps the stored one."""
        column = after[name]
        if KEPT not in after.schema.names:
            return column
        texts = [text for text in pc.unique(after[KEPT].drop_null()).to_pylist() if name in json.loads(text)]
        if not texts:
            return column
        keeps = pc.is_in(after[KEPT], value_set=pa.array(texts, after[KEPT].type))
        return pc.if_else(pc.and_(keeps, pc.invert(older)), before[name], column)


def pairs_of(held: pa.Table, changes: pa.Table, keys: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """The positions of rows and changes with the same key."""
    rows, given = _positioned(held.select(keys), _ROW), _positioned(changes.select(keys), _CHANGE)
    pairs = rows.join(given, list(keys), join_type="inner")
    return _array(pairs[_ROW]), _array(pairs[_CHANGE])


def _positioned(table: pa.Table, name: str) -> pa.Table:
    return table.append_column(name, pa.array(range(table.num_rows), pa.int64()))


def _array(column: Any) -> Any:
    """One array, however many chunks a column has."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
