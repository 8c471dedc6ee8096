"""Message properties as text: `name 0x01 value 0x02 name 0x01 value 0x02`.

The rule guarded here: what we write can be cut apart again by every client, and what others wrote never
stops us. So encoding refuses separators and empty parts, and decoding drops what makes no sense
(RocketMQ's MessageDecoder does the same). A last 0x02 is always written and never required.
"""

from collections.abc import Mapping
from typing import Final

from lanemq.model.errors import MessageTooLarge, UsageError
from lanemq.model.java_hash import tag_code

NAME_END: Final = "\x01"
ENTRY_END: Final = "\x02"
MAX_PROPERTIES_BYTES: Final = 32767
"""A signed short holds the length in a stored record."""


class PropertyName:
    """Properties with a meaning (RocketMQ's MessageConst)."""

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
    CONSUME_START: Final = "CONSUME_START_TIME"
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
    MESSAGE_TYPE: Final = "MSG_TYPE"
    TIMER_DELAY_SECONDS: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MILLIS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MILLIS: Final = "TIMER_DELIVER_MS"
    POP_CHECKPOINT: Final = "POP_CK"
    DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DEAD_LETTER_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"


def encode_properties(properties: Mapping[str, str]) -> str:
    """The text; `UsageError` for a part that no reader could get back, `MessageTooLarge` over the limit."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if text.count(NAME_END) != count or text.count(ENTRY_END) != count or _has_empty_part(properties):
        _refuse(properties)
    if len(text) * 4 > MAX_PROPERTIES_BYTES:
        check_properties_size(text)
    return text


def decode_properties(text: str) -> dict[str, str]:
    """The properties; of a name that occurs twice the last entry counts."""
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
    """`text` with more entries behind it; a missing separator between would glue them to the last value."""
    if not extra:
        return text
    if text and not text.endswith(ENTRY_END):
        text += ENTRY_END
    return text + encode_properties(extra)


def remove_property(text: str, name: str) -> str:
    """`text` without the entries of that name; everything else stays byte for byte."""
    if name + NAME_END not in text:
        return text
    entries = text.split(ENTRY_END)
    return ENTRY_END.join([entry for entry in entries if entry.partition(NAME_END)[0] != name])


def check_properties_size(text: str) -> None:
    """`MessageTooLarge` when the text would not fit into a stored record."""
    size = len(text.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise MessageTooLarge(
            f"properties of {size} bytes, at most {MAX_PROPERTIES_BYTES} fit: move the rest into the body"
        )


def _has_empty_part(properties: Mapping[str, str]) -> bool:
    return "" in properties or "" in properties.values()


def _refuse(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        for what, part in (("name", name), ("value", value)):
            if not part or NAME_END in part or ENTRY_END in part:
                raise UsageError(
                    f"property {what} of {name[:80]!r} is not allowed: it is empty or contains 0x01 or 0x02"
                )
