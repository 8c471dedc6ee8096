"""Message properties as text, and the producer stamp among them.

Properties are `name 0x01 value 0x02 name 0x01 value 0x02`. What we write can be cut apart again by every client, so
encoding refuses separators and empty parts. What other clients wrote never stops us: decoding drops what makes no
sense, as RocketMQ's MessageDecoder does. The last 0x02 is always written and never required.

The producer stamp (`producer.epoch.sequence`) travels as one property, so stock brokers store it and stock consumers
ignore it. A stamp is read back exactly as it was written, or not at all: text that is only half readable counts as no
stamp, because judging repeats by a guess could drop a message.
"""

import re
from collections.abc import Mapping
from typing import Final

from lanemq._fast import compiled
from lanemq.model.errors import MessageTooLarge, UsageError
from lanemq.model.java_hash import tag_code
from lanemq.model.stamp import Stamp

NAME_END: Final = "\x01"
ENTRY_END: Final = "\x02"
MAX_PROPERTIES_BYTES: Final = 32767
"""A signed short holds the length in a stored record."""


class PropertyName:
    """Names of properties that RocketMQ or LaneMQ uses (RocketMQ's MessageConst)."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    UNIQUE_ID: Final = "UNIQ_KEY"
    KEY: Final = "__SHARDINGKEY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE: Final = "REAL_QID"
    ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIMES: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    TRANSACTION: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    CLUSTER: Final = "CLUSTER"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MILLIS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MILLIS: Final = "TIMER_DELIVER_MS"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encodes properties; `UsageError` for an empty part or one with a separator, `MessageTooLarge` over the limit."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if text.count(NAME_END) != count or text.count(ENTRY_END) != count or _has_empty_part(properties):
        _refuse(properties)
    if len(text) * 4 > MAX_PROPERTIES_BYTES:
        check_properties_size(text)
    return text


def decode_properties(text: str) -> dict[str, str]:
    """Decodes properties; if a name occurs twice, the last entry counts."""
    properties: dict[str, str] = {}
    for entry in text.split(ENTRY_END):
        name, _, value = entry.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def find_property(text: str, name: str) -> str | None:
    """The same as `decode_properties(text).get(name)`, without building the rest."""
    sought = name + NAME_END
    end = len(text)
    while (at := text.rfind(sought, 0, end)) >= 0:
        if at == 0 or text[at - 1] == ENTRY_END:
            start = at + len(sought)
            stop = text.find(ENTRY_END, start)
            value = text[start:] if stop < 0 else text[start:stop]
            if value and name:
                return value
        end = at + len(sought) - 1
    return None


def tag_code_of(properties: str) -> int:
    """The hash of a message's tag, as index entries keep it and pulls filter by it; 0 without a tag."""
    return tag_code(find_property(properties, PropertyName.TAGS))


def append_properties(text: str, extra: Mapping[str, str]) -> str:
    """`text` with more entries at its end, and the separator between them if it is missing."""
    if not extra:
        return text
    if text and not text.endswith(ENTRY_END):
        text += ENTRY_END
    return text + encode_properties(extra)


def remove_property(text: str, name: str) -> str:
    """`text` without the entries of that name; the rest is unchanged."""
    if name + NAME_END not in text:
        return text
    entries = text.split(ENTRY_END)
    return ENTRY_END.join([entry for entry in entries if entry.partition(NAME_END)[0] != name])


def check_properties_size(text: str, spare: int = 0) -> None:
    """Raises `MessageTooLarge` if the text does not fit into a stored record with `spare` bytes left."""
    size, limit = len(text.encode()), MAX_PROPERTIES_BYTES - spare
    if size > limit:
        largest = max(text.split(ENTRY_END), key=len)
        name = largest.partition(NAME_END)[0]
        raise MessageTooLarge(
            f"properties of {size} bytes, at most {limit} fit, and {_ARGUMENTS.get(name, name)[:80]} takes "
            f"{len(largest.encode())} of them: shorten it, or move it into the body"
        )


_ARGUMENTS = {PropertyName.KEY: "key", PropertyName.TAGS: "tag", PropertyName.KEYS: "keys"}
"""The arguments of `send` that are stored as properties."""


def _has_empty_part(properties: Mapping[str, str]) -> bool:
    return "" in properties or "" in properties.values()


def _refuse(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        for what, part in (("name", name), ("value", value)):
            if not part or NAME_END in part or ENTRY_END in part:
                raise UsageError(
                    f"property {what} of {name[:80]!r} is not allowed: it is empty or contains 0x01 or 0x02"
                )


LANE_PASSED: Final = "LANE_PASSED"
"""In a retry topic: how often members without the message's topic have passed it on since its last attempt."""
LANE_STAMP: Final = "LANE_STAMP"
LANE_WHY: Final = "LANE_WHY"
"""Of a dead letter: why the consumer gave it up."""
REDRIVEN: Final = "redriven:"
"""Begins the word among `KEYS` by which the copy of a redriven dead letter is found."""
LANE_ORIGIN: Final = "LANE_ORIGIN"
"""In a copy that a mirror made: the mirror, and the queue and offset that it read."""
LANE_PLACE: Final = "LANE_PLACE"
"""In a copy that a mirror made: where its first original is, in the log of the broker that a producer sent it to."""
LANE_WATERMARKS: Final = "LANE_WATERMARKS"
"""In the last copy of a mirror's request: how far each queue of the source is contained in this queue."""

_STAMP_NAME = f"{LANE_STAMP}\x01".encode()
_STAMP_TEXT = re.compile(r"([A-Za-z0-9_-]{1,64})\.(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})")
_MAX_NUMBER = 2**63 - 1


def decode_stamp(text: str) -> Stamp | None:
    """Decodes a property's value; None if it is not a stamp."""
    match = _STAMP_TEXT.fullmatch(text)
    if match is None:
        return None
    epoch, sequence = int(match[2]), int(match[3])
    return Stamp(match[1], epoch, sequence) if max(epoch, sequence) <= _MAX_NUMBER else None


def find_stamp(properties_text: str) -> Stamp | None:
    """The stamp among a message's properties, without decoding the others."""
    text = find_property(properties_text, LANE_STAMP)
    return None if text is None else decode_stamp(text)


def stamp_in(properties: bytes) -> Stamp | None:
    """As `find_stamp`, for properties as stored; they must be UTF-8."""
    return find_stamp(properties.decode()) if _STAMP_NAME in properties else None


@compiled
def following_stamps(texts: list[bytes]) -> tuple[Stamp | None, int]:
    """The stamp of the first message, and how many messages from it on have consecutive stamps.

    If the first has no stamp, counts the messages without one.
    """
    first = stamp_in(texts[0])
    for at, text in enumerate(texts):
        expected = None if first is None else (first.producer, first.epoch, first.sequence + at)
        if stamp_in(text) != expected:
            return first, at
    return first, len(texts)


def stamp_prefix(stamp: Stamp) -> bytes:
    """A stamp behind another property, up to its sequence number."""
    return f"\x02{LANE_STAMP}\x01{stamp.producer}.{stamp.epoch}.".encode()
