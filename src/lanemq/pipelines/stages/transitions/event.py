"""What a step is given: one message of a key, decoded, with its place.

Built once per message on the hottest path there is, so it is a struct of msgspec: its fields are set in C, and the
garbage collector does not follow it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

S = TypeVar("S")

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
    """One message, as a step sees it."""

    key: str | None
    """None for messages without a key; those of a queue share a lane."""
    value: Any
    """The body as `decode` made it."""
    topic: str
    broker: str
    queue_id: int
    offset: int
    tags: str | None
    stored: int
    """When the broker stored it, in milliseconds since 1970: the only time that a repeated batch sees again."""
    message_id: str | None
    attempt: int
    """1, and one more with every time the step failed on it."""
    late: bool = False
    """Whether it was a dead letter and is redriven: newer events of its key may have been applied before it."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """A message as it waits in its lane: not decoded yet, so that a mended decoder can still read it."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    tags: str | None
    stored: int
    message_id: str | None
    value: bytes | None
    late: bool = False
    """A dead letter that is redriven and whose number, if it has one, is not waited for: applied, it is settled."""

    def event(self, key: str | None, value: object, attempt: int) -> Event:
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


Row: TypeAlias = Mapping[str, object]
Step: TypeAlias = Callable[[Any, Event], tuple[Any, Iterable[Row]]]
"""`step(state, event) -> (state, rows)`. The state is None for a new key; None given back forgets the key.
With `sequence=` it forgets the state only: the number recognises repeats, see `StateLimits(forget_numbers_after)`.

Depends on its arguments only: a repeated batch calls it again.
"""
