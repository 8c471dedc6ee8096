"""What a step is given: one message of a key, decoded, with its position.

`decode=` turns bodies into values. Whatever it raises makes the message poison and never fails the query. An empty
body is not JSON, but it is how Kafka's tombstones arrive, so where JSON is expected it becomes the value None. A
missing body (null) is poison for every decoder.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from lanemq.clock import wall_time
from lanemq.model.errors import InvalidOption

COLUMNS = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "key",
    "tags",
    "value",
    "message_id",
    "store_timestamp",
    "stamp",
)
"""Columns of the source that transitions read."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One message, as a step sees it. A msgspec struct, because one is made per message and its fields are set in C."""

    key: str | None
    """None for messages without a key; those of a queue share a lane."""
    value: Any
    """The body as `decode` made it."""
    topic: str
    broker: str
    queue_id: int
    offset: int
    tags: str | None
    stored_ms: int
    """`stored_at` in milliseconds since 1970, as the columns have it."""
    message_id: str | None
    attempt: int
    """1, and one more after each time the step failed on it."""
    late: bool = False
    """Whether it is a redriven dead letter: newer events of its key may have been applied before it."""

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it. The only time that is the same in a repeated batch."""
        return wall_time(self.stored_ms)


Row: TypeAlias = Mapping[str, object]
Step: TypeAlias = Callable[[Any, Event], tuple[Any, Iterable[Row]]]
"""`step(state, event) -> (state, rows)`. The state of a new key is None; a step that returns None as state forgets the
key. With `sequence=` its number is still kept, to recognise repeats, see `StateLimits(forget_numbers_after)`.

It must depend on its arguments only, because a repeated batch calls it again.
"""


class WaitingMessage(msgspec.Struct, array_like=True, gc=False):
    """A message as it waits in its lane: not decoded, so that a corrected decoder can still read it."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    tags: str | None
    stored: int
    message_id: str | None
    value: bytes | None
    late: bool = False
    """A redriven dead letter whose number, if it has one, the lane does not wait for."""

    def event(self, key: str | None, value: object, attempt: int) -> Event:
        """The event for the step."""
        return Event(
            key,
            value,
            self.topic,
            self.broker,
            self.queue_id,
            self.offset,
            self.tags,
            self.stored,
            self.message_id,
            attempt,
            self.late,
        )


Decode: TypeAlias = Callable[[bytes], Any]


def decoder(decode: object) -> Decode:
    """`"json"`, `"text"`, `"bytes"`, a type for JSON (msgspec Struct, dataclass, TypedDict), or a function."""
    match decode:
        case "json":
            return msgspec.json.Decoder().decode
        case "text":
            return _text
        case "bytes":
            return _same
        case type():
            return msgspec.json.Decoder(decode).decode
        case _ if callable(decode):
            return decode
        case _:
            raise InvalidOption(f"decode={decode!r} is unknown: use 'json', 'text', 'bytes', a type or a function")


def empty_decoder(decode: object) -> Callable[[bytes | None], Any]:
    """The decoder for empty and missing bodies."""
    if decode == "json" or isinstance(decode, type):
        return decode_empty_as_none
    decoded = decoder(decode)
    return lambda body: decoded(_present(body))


def decode_empty_as_none(body: bytes | None) -> None:
    """None for an empty body; raises for a missing one."""
    _present(body)


def _present(body: bytes | None) -> bytes:
    if body is None:
        raise ValueError("there is no body, or it could not be unpacked")
    return body


def _text(body: bytes) -> str:
    return body.decode()


def _same(body: bytes) -> bytes:
    return body
