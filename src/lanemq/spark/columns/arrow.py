"""A pull's body as Arrow columns: the bytes that the broker sent, rearranged, with no Python object per row.

The rule guarded here: what a query sees of a message is what `wire.record.RecordView` sees, field by field; the
tests hold the two against each other. Only the columns asked for are decoded. Two things are done per row, for
the few rows that need them: unpacking compressed bodies (see `damage`), and ids of messages whose producer gave none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.model.queue import MessageQueue
from lanemq.spark.columns.damage import Damaged, Packed, unpack
from lanemq.spark.columns.layout import Layout, measure
from lanemq.spark.columns.properties import Entries, entries_of, texts, unicode_texts
from lanemq.spark.columns.stamps import stamp_column
from lanemq.wire.properties import LANE_STAMP, PropertyName
from lanemq.wire.record import COMPRESSED, RecordView, encode_offset_id


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants of a queue: columns, tags (none means all), where it is, and what damage means."""

    schema: pa.Schema
    broker: str
    tags: frozenset[str] = frozenset()
    damaged: Damaged = Damaged.FAIL


def decode(body: bytes, low: int, high: int, wanted: Wanted) -> pa.RecordBatch:
    """The records with offsets from `low` up to, not including, `high`, whose tags are wanted."""
    layout = measure(body, low, high)
    if not len(layout):
        return pa.RecordBatch.from_pylist([], wanted.schema)
    records = _Records(layout, wanted)
    names = wanted.schema.names
    tags = records.column("tags") if wanted.tags else None
    batch = pa.RecordBatch.from_arrays([records.column(name) for name in names], schema=wanted.schema)
    if tags is None:
        return batch
    # The broker compared hash codes; two tags may share one.
    return batch.filter(pc.is_in(tags, pa.array(sorted(wanted.tags), pa.string())))


class _Records:
    """The columns of one body, each made when it is asked for."""

    def __init__(self, layout: Layout, wanted: Wanted) -> None:
        self._layout = layout
        self._broker = wanted.broker
        self._damaged = wanted.damaged
        self._entries: Entries | None = None

    def column(self, name: str) -> pa.Array:
        return _MAKERS[name](self)

    @property
    def entries(self) -> Entries:
        if self._entries is None:
            self._entries = entries_of(self._layout)
        return self._entries

    def topic(self) -> pa.Array:
        return unicode_texts(self._layout.body, self._layout.topic)

    def broker(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._broker, pa.string()), len(self._layout))

    def queue_id(self) -> pa.Array:
        return _ints(self._layout.queue_ids)

    def queue_offset(self) -> pa.Array:
        return pa.array(self._layout.queue_offsets)

    def key(self) -> pa.Array:
        return self.entries.column(PropertyName.KEY)

    def tags(self) -> pa.Array:
        return self.entries.column(PropertyName.TAGS)

    def keys(self) -> pa.Array:
        return self.entries.column(PropertyName.KEYS)

    def properties(self) -> pa.Array:
        return self.entries.maps()

    def born_timestamp(self) -> pa.Array:
        return _times(self._layout.born_times)

    def store_timestamp(self) -> pa.Array:
        return _times(self._layout.store_times)

    def reconsume_times(self) -> pa.Array:
        return _ints(self._layout.reconsume_times)

    def stamp(self) -> pa.Array:
        return stamp_column(self.entries.column(LANE_STAMP))

    def value(self) -> pa.Array:
        layout = self._layout
        values = texts(layout.body, layout.value, pa.binary())
        packed = np.flatnonzero(layout.sys_flags & COMPRESSED)
        if not len(packed):
            return values
        found = (Packed(row, int(layout.sys_flags[row]), values[row].as_py()) for row in packed.tolist())
        plain = unpack(found, self._damaged, self._place)
        mask = np.zeros(len(layout), bool)
        mask[packed] = True
        return pc.replace_with_mask(values, pa.array(mask), pa.array(plain, pa.binary()))

    def message_id(self) -> pa.Array:
        """The producer's id; where an old producer gave none, the place where the broker keeps the record."""
        ids = self.entries.column(PropertyName.UNIQUE_ID)
        if not ids.null_count:
            return ids
        missing = ids.is_null()
        rows = np.flatnonzero(missing.to_numpy(zero_copy_only=False)).tolist()
        return pc.replace_with_mask(ids, missing, pa.array(map(self._stored_id, rows), pa.string()))

    def _place(self, row: int) -> str:
        record = RecordView(self._layout.body, int(self._layout.starts[row]))
        return f"{MessageQueue(record.topic, self._broker, record.queue_id)} at {record.queue_offset}"

    def _stored_id(self, row: int) -> str:
        record = RecordView(self._layout.body, int(self._layout.starts[row]))
        host, _, port = record.store_host.rpartition(":")
        return encode_offset_id(host.strip("[]"), int(port), record.position)


def _ints(numbers: Any) -> pa.Array:
    return pa.array(numbers.astype(np.int32))


def _times(millis: Any) -> pa.Array:
    return pa.array(millis * 1000).cast(pa.timestamp("us", tz="UTC"))


_MAKERS: dict[str, Callable[[_Records], pa.Array]] = {
    "topic": _Records.topic,
    "broker": _Records.broker,
    "queue_id": _Records.queue_id,
    "queue_offset": _Records.queue_offset,
    "key": _Records.key,
    "tags": _Records.tags,
    "keys": _Records.keys,
    "value": _Records.value,
    "properties": _Records.properties,
    "message_id": _Records.message_id,
    "born_timestamp": _Records.born_timestamp,
    "store_timestamp": _Records.store_timestamp,
    "reconsume_times": _Records.reconsume_times,
    "stamp": _Records.stamp,
}
