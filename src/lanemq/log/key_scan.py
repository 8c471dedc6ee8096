"""The keys of records that lie one behind the other: what the index of keys is made of.

A message can be found by each word of its keys, by its unique id and by its sharding key. The rule guarded here: only
what is proven to be an intact record is read; the scan stops in front of anything else and leaves it to the caller.
"""

from array import array
from collections.abc import Collection
from zlib import crc32

from lanemq._fast import compiled
from lanemq.log.record_bytes import facts_of, size_at
from lanemq.wire.properties import PropertyName, find_property

HASH_BYTES = 4


@compiled
def scan_keys(buffer: bytes, position: int) -> tuple[bytes, bytes, int]:
    """Hashes and positions (native, 8 bytes each) of the keys of the records at the begin of `buffer`.

    `position` is where in the log the buffer begins. The last number is how many bytes these records take.
    """
    hashes, positions, at = bytearray(), array("Q"), 0
    while (size := size_at(buffer, at, position + at)) > 0:
        facts = facts_of(buffer, at)
        for key in keys_of(facts.properties):
            hashes += key_hash(facts.topic, key).to_bytes(HASH_BYTES, "big")
            positions.append(position + at)
        at += size
    return bytes(hashes), positions.tobytes(), at


def keys_of(properties: str) -> Collection[str]:
    """What a message can be found by: each word of its keys, its unique id, its sharding key; each once."""
    words = (find_property(properties, PropertyName.KEYS) or "").split()
    others = find_property(properties, PropertyName.UNIQUE_ID), find_property(properties, PropertyName.KEY)
    return dict.fromkeys([*words, *filter(None, others)])


def key_hash(topic: str, key: str) -> int:
    """Scoped by topic, so that equal keys of different topics do not meet."""
    return crc32(f"{topic}#{key}".encode())
