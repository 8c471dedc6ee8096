"""Messages of one request, column by column, and the records they become.

A batch of a thousand messages differs in bodies, properties and little else. Kept as columns, its steps run once for
all of it instead of once per message. The rule guarded here: the records are byte for byte those that `seal_records`
makes of the same messages one by one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, count, repeat
from operator import concat
from struct import Struct
from zlib import crc32

from lanemq._fast import compiled
from lanemq.wire.properties import MAX_PROPERTIES_BYTES
from lanemq.wire.record import HEAD_BYTES, MAGIC_V1, MAX_TOPIC_BYTES, OUR_FLAGS, refuse_tail

_PLACE = Struct(">iIiiiqq40s")
"""Size, magic, body CRC, queue id, flag, queue offset, position, and the origin."""
_ORIGIN = Struct(">iq8sq8si")
"""Sys flag, born time, born host, store time, store host, reconsume times."""
_CHECKSUM = Struct(">Q")
_LENGTH, _SHORT = Struct(">i"), Struct(">h")


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Messages to store: a list for what is each one's own, all of one length, and once what they share."""

    bodies: list[bytes]
    properties: list[bytes]
    tag_codes: list[int]
    flags: list[int]
    born: list[int]
    sys_flag: int
    reconsume_times: int

    def __len__(self) -> int:
        return len(self.bodies)

    def behind(self, first: int) -> "RecordColumns":
        """Without the first so many messages."""
        return replace(
            self,
            bodies=self.bodies[first:],
            properties=self.properties[first:],
            tag_codes=self.tag_codes[first:],
            flags=self.flags[first:],
            born=self.born[first:],
        )


@compiled
def seal_columns(
    columns: RecordColumns,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
) -> list[bytes]:
    """Records that follow one another in queue and log.

    The checksum is taken of head and tail in one piece: for zlib, two short pieces take twice as long as one.
    """
    bodies, texts = columns.bodies, columns.properties
    lengths = list(map(len, texts))
    if len(topic) > MAX_TOPIC_BYTES or max(lengths, default=0) > MAX_PROPERTIES_BYTES:
        refuse_tail(topic, max(texts, key=len))
    named = bytes((len(topic),)) + topic
    sized = map(_LENGTH.pack, map(len, bodies))
    tails = list(map(b"".join, zip(sized, bodies, repeat(named), map(_SHORT.pack, lengths), texts, strict=False)))
    sizes = [HEAD_BYTES + len(tail) for tail in tails]
    crcs = [crc & 0x7FFFFFFF for crc in map(crc32, bodies)]
    origins = _origins(columns, born_host, store_timestamp, store_host)
    positions = accumulate(sizes, initial=position)
    same = repeat(MAGIC_V1), repeat(queue_id)
    heads = list(
        map(_PLACE.pack, sizes, same[0], crcs, same[1], columns.flags, count(queue_offset), positions, origins)
    )
    wholes: Iterable[bytes] = map(concat, heads, tails)  # type: ignore[arg-type]
    checks = map(_CHECKSUM.pack, map(crc32, wholes))
    return list(map(b"".join, zip(heads, checks, tails, strict=False)))


def _origins(columns: RecordColumns, born_host: bytes, store_timestamp: int, store_host: bytes) -> Iterable[bytes]:
    """The second half of each head; messages of a batch were born together and share it."""
    born, sys_flag = columns.born, columns.sys_flag & OUR_FLAGS
    rest = born_host, store_timestamp, store_host, columns.reconsume_times
    if born.count(born[0]) == len(born):
        return repeat(_ORIGIN.pack(sys_flag, born[0], *rest))
    return [_ORIGIN.pack(sys_flag, moment, *rest) for moment in born]
