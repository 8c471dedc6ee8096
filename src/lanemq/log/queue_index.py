"""One queue's index: offset → where its record lies. 20 bytes an entry, a cache of the log and nothing more.

    position 8 | size 4 | tag code 4 (signed, 0 none) | checksum of the entry and its offset 4

An entry of size 0 is a place whose record is damaged: the offset stays taken, readers are told and go past it.

Published entries wait in `tail` until they are written to the index files; `filed_end` is the offset up to
which the files have them. A reader therefore looks below `filed_end` in files and above it in memory. All
fields are changed on the loop only.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence

from lanemq._fast import compiled

ENTRY = struct.Struct(">qiiI")
ENTRY_BYTES = ENTRY.size
_FACTS = struct.Struct(">qii")
_CHECK = struct.Struct(">I")


Entry = tuple[int, int, int, int]
"""position, size, tag code, check. A plain tuple: a pull touches a thousand of them."""


class QueueIndex:
    """The offsets of one queue: `first` ≤ `filed_end` ≤ `end` ≤ `staged_end`.

    `first` is the smallest offset still kept, `end` the next one to become visible, `staged_end` the next one
    to be given out. `checked_start` is the start of the log for which `first` is known to be right.
    """

    __slots__ = (
        "checked_start",
        "dropped",
        "end",
        "filed_end",
        "first",
        "number",
        "queue_id",
        "staged_end",
        "tail",
        "topic",
        "topic_bytes",
    )

    def __init__(self, number: int, topic: str, queue_id: int, first: int = 0, end: int = 0) -> None:
        self.number = number
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.first = first
        self.filed_end = self.end = self.staged_end = end
        self.tail = bytearray()
        self.checked_start = 0
        self.dropped = False

    def begin_at(self, offset: int) -> None:
        """An empty queue whose earlier offsets are gone starts here."""
        self.first = self.filed_end = self.end = self.staged_end = offset

    def publish(self, entries: bytes) -> None:
        """Makes staged entries visible to readers."""
        self.tail += entries
        self.end += len(entries) // ENTRY_BYTES

    def put(self, position: int, size: int, tag_code: int) -> None:
        """Adds and publishes one entry; recovery's way."""
        self.publish(pack_entry(self.end, position, size, tag_code))
        self.staged_end = self.end

    def from_tail(self, offset: int, count: int) -> bytes:
        """Entries from memory; the offset must not lie below `filed_end`."""
        at = (offset - self.filed_end) * ENTRY_BYTES
        return bytes(self.tail[at : at + count * ENTRY_BYTES])

    def filed(self, count: int) -> None:
        """The oldest `count` entries of the tail are in the files now."""
        del self.tail[: count * ENTRY_BYTES]
        self.filed_end += count


def pack_entry(offset: int, position: int, size: int, tag_code: int) -> bytes:
    facts = _FACTS.pack(position, size, tag_code)
    return facts + _CHECK.pack(zlib.crc32(facts, offset & 0xFFFFFFFF))


@compiled
def pack_entries(offset: int, positions: Sequence[int], sizes: Sequence[int], tag_codes: Sequence[int]) -> bytes:
    """Entries of records that follow one another in a queue."""
    first = offset & 0xFFFFFFFF
    offsets: Sequence[int] = range(first, first + len(positions))
    if offsets and offsets[-1] > 0xFFFFFFFF:
        offsets = [at & 0xFFFFFFFF for at in offsets]
    checks = map(zlib.crc32, map(_FACTS.pack, positions, sizes, tag_codes), offsets)
    return b"".join(map(ENTRY.pack, positions, sizes, tag_codes, checks))


def unpack_entries(data: bytes) -> list[Entry]:
    return list(ENTRY.iter_unpack(data))


def broken_entries(data: bytes, offset: int) -> Iterator[int]:
    """Offsets whose entry does not match its own checksum, for entries that begin at `offset`."""
    for at in range(0, len(data), ENTRY_BYTES):
        check = zlib.crc32(data[at : at + 16], offset & 0xFFFFFFFF)
        if data[at + 16 : at + 20] != _CHECK.pack(check):
            yield offset
        offset += 1
