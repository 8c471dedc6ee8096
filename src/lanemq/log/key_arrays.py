"""Keys of one segment: two packed arrays side by side, hashes and positions.

A search is one `bytes.find` over the hashes, which is far quicker than any structure made of Python objects.
A hash only nominates; the record decides.

The file of a finished segment is a cache: one that does not check out is ignored, and made again from the log.
"""

from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from sys import byteorder
from zlib import crc32

from lanemq.log.key_scan import HASH_BYTES, key_hash

_HEAD = Struct(">8sQQQI")
_MAGIC = b"LANEKEY1" if byteorder == "big" else b"LANEKEYL"


class KeyArrays:
    """Covers the log from `start` to `end`; positions are in log order."""

    def __init__(self, start: int, end: int, hashes: bytes = b"", positions: bytes = b"") -> None:
        self.start = start
        self.end = end
        self._hashes = bytearray(hashes)
        self._positions = array("Q", positions)

    def add(self, topic: str, keys: Iterable[str], position: int) -> None:
        for key in keys:
            self._hashes += key_hash(topic, key).to_bytes(HASH_BYTES, "big")
            self._positions.append(position)

    def extend(self, hashes: bytes, positions: bytes) -> None:
        """The same for what `scan_keys` found."""
        self._hashes += hashes
        self._positions.frombytes(positions)

    def newest_first(self, wanted: int) -> Iterator[int]:
        """Positions of records that may have the key."""
        needle = wanted.to_bytes(HASH_BYTES, "big")
        at = self._hashes.rfind(needle)
        while at >= 0:
            if at % HASH_BYTES == 0:
                yield self._positions[at // HASH_BYTES]
            at = self._hashes.rfind(needle, 0, at + HASH_BYTES - 1)

    def to_bytes(self) -> bytes:
        body = bytes(self._hashes) + self._positions.tobytes()
        return _HEAD.pack(_MAGIC, self.start, self.end, len(self._positions), crc32(body)) + body


def load_arrays(data: bytes, start: int, end: int) -> KeyArrays | None:
    """The arrays from a file, or None if the file is not whole or not about this piece of the log."""
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size:
        return None
    magic, its_start, its_end, count, check = _HEAD.unpack_from(data)
    if (magic, its_start, its_end) != (_MAGIC, start, end) or check != crc32(body):
        return None
    return KeyArrays(start, end, body[: count * HASH_BYTES], body[count * HASH_BYTES :])
