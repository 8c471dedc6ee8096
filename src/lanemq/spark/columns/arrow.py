"""Decodes the body of a pull into Arrow columns, without a Python object per row.

Only the requested columns are decoded. Two things are done row by row, for the rows that need them: decompressing
bodies, and making ids for messages whose producer gave none.

Invariant: every column equals the field of `wire.record.RecordView`; tests compare the two.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.model.errors import RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.spark.columns.layout import Layout, measure
from lanemq.spark.columns.properties import Entries, entries_of, stamp_column, texts, unicode_texts
from lanemq.wire.compression import decompress
from lanemq.wire.properties import LANE_STAMP, PropertyName
from lanemq.wire.record import COMPRESSED, RecordView, encode_offset_id

log = logging.getLogger(__name__)


class OnDamaged(StrEnum):
    """Values of the option `onDamaged`: what to do with a message whose compressed body cannot be decompressed."""

    FAIL = "fail"
    """The query fails with an error that names the message. It fails again at every attempt and start."""
    NULL = "null"
    """The row's value is null."""
    RAW = "raw"
    """The row's value is the stored bytes, still compressed."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to decode from the messages of a queue."""

    schema: pa.Schema
    broker: str
    tags: frozenset[str] = frozenset()
    """Tags to keep; empty keeps all messages."""
    on_damaged: OnDamaged = OnDamaged.FAIL


def decode(body: bytes, low: int, high: int, options: DecodeOptions) -> pa.RecordBatch:
    """The records with offsets from `low` up to, but not including, `high`, whose tags match."""
    layout = measure(body, low, high)
    if not len(layout):
        return pa.RecordBatch.from_pylist([], options.schema)
    records = _Records(layout, options)
    names = options.schema.names
    tags = records.column("tags") if options.tags else None
    batch = pa.RecordBatch.from_arrays([records.column(name) for name in names], schema=options.schema)
    if tags is None:
        return batch
    # The broker compared hash codes of tags, which can collide.
    return batch.filter(pc.is_in(tags, pa.array(sorted(options.tags), pa.string())))


class _Records:
    """The columns of one body, each decoded on request."""

    def __init__(self, layout: Layout, options: DecodeOptions) -> None:
        self._layout = layout
        self._broker = options.broker
        self._on_damaged = options.on_damaged
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
        compressed = np.flatnonzero(layout.sys_flags & COMPRESSED)
        if not len(compressed):
            return values
        bodies = (CompressedBody(row, int(layout.sys_flags[row]), values[row].as_py()) for row in compressed.tolist())
        plain = decompress_bodies(bodies, self._on_damaged, self._position)
        mask = np.zeros(len(layout), bool)
        mask[compressed] = True
        return pc.replace_with_mask(values, pa.array(mask), pa.array(plain, pa.binary()))

    def message_id(self) -> pa.Array:
        """The producer's id; if an old producer gave none, an id made from the record's place in the broker's log."""
        ids = self.entries.column(PropertyName.UNIQUE_ID)
        if not ids.null_count:
            return ids
        missing = ids.is_null()
        rows = np.flatnonzero(missing.to_numpy(zero_copy_only=False)).tolist()
        return pc.replace_with_mask(ids, missing, pa.array(map(self._offset_id, rows), pa.string()))

    def _position(self, row: int) -> str:
        record = RecordView(self._layout.body, int(self._layout.starts[row]))
        return f"{MessageQueue(record.topic, self._broker, record.queue_id)} at {record.queue_offset}"

    def _offset_id(self, row: int) -> str:
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


class CompressedBody(NamedTuple):
    """The compressed body of one row."""

    row: int
    sys_flag: int
    body: bytes


def decompress_bodies(
    bodies: Iterable[CompressedBody], on_damaged: OnDamaged, position: Callable[[int], str]
) -> list[bytes | None]:
    """The decompressed bodies. All damaged ones are logged in one line; `position` describes a row's message."""
    plain: list[bytes | None] = []
    damaged: list[str] = []
    for row, sys_flag, body in bodies:
        try:
            plain.append(decompress(sys_flag, body))
        except RemoteProtocolError as error:
            if on_damaged is OnDamaged.FAIL:
                raise RemoteProtocolError(
                    f"{position(row)}: {error}. To continue set onDamaged=null (its value is null) or onDamaged=raw "
                    f"(its value is the stored bytes)"
                ) from None
            plain.append(None if on_damaged is OnDamaged.NULL else body)
            damaged.append(f"{position(row)}: {error}")
    if damaged:
        log.warning("%d damaged messages, onDamaged=%s; the first is %s", len(damaged), on_damaged, damaged[0])
    return plain
