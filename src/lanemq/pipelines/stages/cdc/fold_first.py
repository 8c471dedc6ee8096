"""`fold_first`: which messages need not be read, because a newer message with their key replaces them.

Message keys such as `{"id": 17}` name their row. A message is left unread only if it is known to be about the row that
its message key names, and about no other: the newest one because it is read, every older one by decoding only its keys,
which also finds a change of a row's key. Where this is not proved, all messages of that message key are read. With
`fold_first=True` the user guarantees it. To compare only the beginnings of messages would be faster, but proves less: a
field may occur twice in a document, and then its last value counts.

Invariant: leaving messages unread never changes the result.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from lanemq.pipelines.stages.cdc import documents
from lanemq.pipelines.stages.cdc.changes import Format, Reading
from lanemq.pipelines.stages.cdc.fold import last_indices
from lanemq.pipelines.stages.cdc.options import ReplicaOptions
from lanemq.pipelines.stages.cdc.table import ReplicaTable
from lanemq.pipelines.stages.cdc.values import convert

WORTH_IT: Final = 0.6
"""With more distinct keys per message than this, reading all messages is faster than choosing some."""


class FoldFirst:
    """Chooses the messages to read, and checks the choice."""

    def __init__(self, options: ReplicaOptions, row_types: documents.RowTypes) -> None:
        self._keys, self._row_types, self._fold_first = options.table.keys, row_types, options.fold_first
        self._options = options

    @cached_property
    def _key_format(self) -> Format:
        """Reads keys only. Made when first needed, because making types takes as long as reading a hundred messages."""
        return _keys_only(self._options).make_format()

    @cached_property
    def _decoder(self) -> Any:
        kinds = [each.dataType for each in self._options.table.schema.fields]
        return documents.decoder(self._key_format.document, kinds)

    def worth_reading(self, messages: pa.Table) -> pa.Array | None:
        """The messages to read: the newest of each message key that names its row, and all others. None: all."""
        if self._fold_first is False:
            return None
        foldable = self._foldable(messages)
        indices = pc.indices_nonzero(foldable)
        if len(indices) == 0:
            return None
        last = indices.take(last_indices(messages.select(["key"]).take(indices)))
        if len(last) > len(indices) * WORTH_IT:
            return None
        return pa.concat_arrays([last, pc.indices_nonzero(pc.invert(foldable))]).sort()

    def unproved(self, messages: pa.Table, chosen: pa.Array, reading: Reading) -> frozenset[int]:
        """The chosen messages, by their index in `reading`, that cannot stand for all of their message key."""
        unsure = self._unsure(reading)
        if self._fold_first is None:
            unsure |= self._contradicted(messages, chosen, reading, unsure)
        return frozenset(unsure)

    def _foldable(self, messages: pa.Table) -> pa.ChunkedArray:
        keys = messages["key"]
        found = pc.not_equal(keys, "") if self._fold_first else pc.starts_with(keys, "{")
        return pc.fill_null(found, False)

    def _unsure(self, reading: Reading) -> set[int]:
        """Messages without a change, unreadable ones, and those about another row than their message key names."""
        changes = reading.changes
        read = set(changes.message) - changes.poison.keys()
        unsure = set(range(reading.messages.num_rows)) - read
        if self._fold_first is None:
            named = [reading.names.object_key(message) for message in changes.message]
            for name, found in zip(self._keys, reading.keys, strict=True):
                get = self._row_types.getter(name)
                expected, _ = convert([None if each is None else get(each) for each in named], found.type)
                other = pc.indices_nonzero(pc.invert(pc.fill_null(pc.equal(expected, found), False)))
                unsure.update(changes.message[index] for index in other.to_pylist())
        return unsure.intersection(pc.indices_nonzero(self._foldable(reading.messages)).to_pylist())

    def _contradicted(self, messages: pa.Table, chosen: pa.Array, reading: Reading, unsure: set[int]) -> set[int]:
        """Messages whose message key has an unread message about another row. Unread poison is ignored."""
        unread = pc.invert(pc.is_in(pa.arange(0, messages.num_rows), value_set=chosen))
        newest_index = pc.index_in(messages["key"], value_set=reading.messages["key"].combine_chunks())
        older, newest_index = messages.select(["value"]).filter(unread), newest_index.filter(unread)
        if not older.num_rows:
            return set()
        own_keys: list[Any] = [None] * reading.messages.num_rows
        for message, row in zip(reading.changes.message, reading.changes.row, strict=True):
            own_keys[message] = self._row_types.key(row)
        newer: list[int] = documents.listed(newest_index)
        decoded = self._key_format.unwrap(documents.Decoded(documents.listed(older["value"]), self._decoder).documents)
        others = self._key_format.others(decoded, [own_keys[index] for index in newer])
        return {newer[index] for index in others} - unsure


def _keys_only(options: ReplicaOptions) -> ReplicaOptions:
    """The options for decoding nothing but the row's key."""
    fields = [field for field in options.table.schema.fields if field.name in options.table.keys]
    return replace(
        options, table=ReplicaTable(StructType(fields), options.table.keys), parts=(), only_table=None, deleted=None
    )
