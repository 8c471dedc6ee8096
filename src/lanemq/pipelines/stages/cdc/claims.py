"""Which messages need not be read: where a message key names its row (`{"id": 17}`), the newest one stands for all.

The rule guarded here: that never changes the result. A message is left unread only if it is known to be about the row
that its message key names, and about no other: the newest one by reading it, every older one by a look at its keys
alone, which finds a change of a row's key too. What is not proved like this sends the reader back to all messages of
that message key. With `fold_first=True` the user's word stands in place of the proof.
"""

import json
import re
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from lanemq.pipelines.stages.cdc import shapes
from lanemq.pipelines.stages.cdc.changes import Format, Reading
from lanemq.pipelines.stages.cdc.fold import last_places
from lanemq.pipelines.stages.cdc.plan import Plan
from lanemq.pipelines.stages.cdc.table import Table
from lanemq.pipelines.stages.cdc.values import convert

WORTH_IT: Final = 0.6
"""Choosing messages costs time too: with more distinct keys per message than this, reading them all is faster."""

_PLAIN_KEY: Final = r':(?P<key>-?[0-9]+|"[^"\\]*")[,}]'
"""A key that is the row's first field and needs no decoding to be compared."""


class Claims:
    """What the message keys of one plan are worth."""

    def __init__(self, plan: Plan, shape: shapes.RowShape) -> None:
        self._keys, self._shape, self._fold_first = plan.table.keys, shape, plan.fold_first
        self._plan = plan

    @cached_property
    def _glance(self) -> Format:
        """Reads keys only; made when it is first needed, since making types takes longer than reading a hundred."""
        return _keys_only(self._plan).reader()[0]

    @cached_property
    def _decoder(self) -> Any:
        kinds = [each.dataType for each in self._plan.table.schema.fields]
        return shapes.decoder(self._glance.document, kinds)

    def worth_reading(self, messages: pa.Table) -> pa.Array | None:
        """The places of the newest message of each message key that names its row, and of all others; None: all."""
        if self._fold_first is False:
            return None
        foldable = self._foldable(messages)
        places = pc.indices_nonzero(foldable)
        if len(places) == 0:
            return None
        last = places.take(last_places(messages.select(["key"]).take(places)))
        if len(last) > len(places) * WORTH_IT:
            return None
        return pa.concat_arrays([last, pc.indices_nonzero(pc.invert(foldable))]).sort()

    def unproved(self, messages: pa.Table, chosen: pa.Array, reading: Reading) -> frozenset[int]:
        """Those of the chosen messages, by their place in `reading`, that cannot stand for all of their message key."""
        unsure = self._unsure(reading)
        if self._fold_first is None:
            unsure |= self._contradicted(messages, chosen, reading, unsure)
        return frozenset(unsure)

    def _foldable(self, messages: pa.Table) -> pa.ChunkedArray:
        keys = messages["key"]
        found = pc.not_equal(keys, "") if self._fold_first else pc.starts_with(keys, "{")
        return pc.fill_null(found, False)

    def _unsure(self, reading: Reading) -> set[int]:
        """Messages that say nothing, cannot be read, or are about another row than their key claims."""
        changes = reading.changes
        said = set(changes.message) - changes.poison.keys()
        unsure = set(range(reading.messages.num_rows)) - said
        if self._fold_first is None:
            claims = [reading.names.spelled(message) for message in changes.message]
            for name, found in zip(self._keys, reading.keys, strict=True):
                get = self._shape.getter(name)
                claimed, _ = convert([None if each is None else get(each) for each in claims], found.type)
                other = pc.indices_nonzero(pc.invert(pc.fill_null(pc.equal(claimed, found), False)))
                unsure.update(changes.message[place] for place in other.to_pylist())
        return unsure.intersection(pc.indices_nonzero(self._foldable(reading.messages)).to_pylist())

    def _contradicted(self, messages: pa.Table, chosen: pa.Array, reading: Reading, unsure: set[int]) -> set[int]:
        """Messages of whose message key an unread one is about another row. Unread poison contradicts nothing."""
        unread = pc.invert(pc.is_in(pa.arange(0, messages.num_rows), value_set=chosen))
        stands = pc.index_in(messages["key"], value_set=reading.messages["key"].combine_chunks())
        unread = pc.and_not(unread, self._plainly_same(messages["value"], reading.messages["value"], stands))
        older, stands = messages.select(["value"]).filter(unread), stands.filter(unread)
        if not older.num_rows:
            return set()
        mine: list[Any] = [None] * reading.messages.num_rows
        for message, row in zip(reading.changes.message, reading.changes.row, strict=True):
            mine[message] = self._shape.key(row)
        newer: list[int] = shapes.listed(stands)
        documents = self._glance.unwrap(shapes.Decoded(shapes.listed(older["value"]), self._decoder).documents)
        others = self._glance.others(documents, [mine[place] for place in newer])
        return {newer[place] for place in others} - unsure

    def _plainly_same(self, values: pa.ChunkedArray, newest: pa.ChunkedArray, stands: pa.ChunkedArray) -> pa.Array:
        """Values that begin as the newest one of their message key does, up to and with the row's key.

        No proof is cheaper: nothing is decoded. Other ways to write the same are left to the decoder.
        """
        if len(self._keys) > 1:
            return pa.repeat(False, len(values))
        pattern = self._glance.opening + re.escape(json.dumps(self._keys[0], ensure_ascii=False)) + _PLAIN_KEY
        mine, theirs = (pc.struct_field(pc.extract_regex(each, pattern), "key") for each in (values, newest))
        return pc.fill_null(pc.equal(mine, theirs.take(stands)), False)


def _keys_only(plan: Plan) -> Plan:
    """The same events, of which nothing but the row's key is decoded."""
    fields = [field for field in plan.table.schema.fields if field.name in plan.table.keys]
    return replace(plan, table=Table(StructType(fields), plan.table.keys), parts=(), only=None, deleted=None)
