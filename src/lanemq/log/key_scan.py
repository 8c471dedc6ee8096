"""The keys of records that lie one behind the other: what the index of keys is made of.

A message can be found by each word of its keys, by its unique id and by its sharding key. The rule guarded here: only
what is proven to be an intact record is read; the scan stops in front of anything else and leaves it to the caller.
"""

import re
from array import array
from collections.abc import Collection
from struct import Struct
from sys import byteorder
from zlib import crc32

from lanemq._fast import compiled
from lanemq.log.record_bytes import RecordFacts, facts_of, size_at
from lanemq.wire.properties import PropertyName, find_property
from lanemq.wire.record import HEAD_BYTES

HASH_BYTES = 4

_LENGTH = Struct(">i")
_USUAL = re.compile(b"(?:__SHARDINGKEY\x01([^\x01\x02]+)\x02)?UNIQ_KEY\x01([^\x01\x02]+)\x02").match
"""How the properties of a producer's message begin."""


@compiled
def scan_keys(buffer: bytes, position: int) -> tuple[bytes, bytes, int]:
    """Hashes and positions (native, 8 bytes each) of the keys of the records at the begin of `buffer`.

    `position` is where in the log the buffer begins. The last number is how many bytes these records take.
    """
    hashes, positions, at = array("I"), array("Q"), 0
    scopes: dict[bytes, int] = {}
    while (size := size_at(buffer, at, position + at)) > 0:
        found = _usual_hashes(buffer, at, size, scopes) or _hashes_of(facts_of(buffer, at))
        hashes.extend(found)
        positions.extend([position + at] * len(found))
        at += size
    if byteorder == "little":
        hashes.byteswap()
    return hashes.tobytes(), positions.tobytes(), at


def _hashes_of(facts: RecordFacts) -> list[int]:
    return [key_hash(facts.topic, key) for key in keys_of(facts.properties)]


def _usual_hashes(buffer: bytes, start: int, size: int, scopes: dict[bytes, int]) -> list[int] | None:
    """The same for what our producers write, without decoding anything; None for all that needs a closer look."""
    (length,) = _LENGTH.unpack_from(buffer, start + HEAD_BYTES)
    at = start + HEAD_BYTES + _LENGTH.size + length
    topic_end = at + 1 + buffer[at]
    topic, text = buffer[at + 1 : topic_end], buffer[topic_end + 2 : start + size]
    scope = scopes.get(topic)
    if scope is None:
        scope = scopes[topic] = crc32(topic + b"#")
    usual = _USUAL(text)
    if usual is None or not text.isascii():
        return None
    end = usual.end()
    if text.find(b"KEY\x01", end) >= 0 or text.find(b"KEYS\x01", end) >= 0:
        return None  # a later entry of the same name would count instead
    key, unique = usual.groups()
    return [crc32(unique, scope)] if key is None or key == unique else [crc32(unique, scope), crc32(key, scope)]


def keys_of(properties: str) -> Collection[str]:
    """What a message can be found by: each word of its keys, its unique id, its sharding key; each once."""
    words = (find_property(properties, PropertyName.KEYS) or "").split()
    others = find_property(properties, PropertyName.UNIQUE_ID), find_property(properties, PropertyName.KEY)
    return dict.fromkeys([*words, *filter(None, others)])


def key_hash(topic: str, key: str) -> int:
    """Scoped by topic, so that equal keys of different topics do not meet."""
    return crc32(f"{topic}#{key}".encode())
