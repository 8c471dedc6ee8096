"""What a send returns: where the message is now, and how safe it is there."""

from enum import Enum

import msgspec

from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset


class StoredAs(Enum):
    """The broker's word on durability."""

    DURABLE = "durable"
    """On disk: acknowledged after fdatasync."""
    RELAXED = "relaxed"
    """Written, not yet synced; also what an Apache broker with asynchronous flush gives."""
    UNKNOWN = "unknown"
    """The broker did not say (Apache brokers do not)."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """One stored message. Receipts of one key name one queue, with growing offsets.

    A struct and not a dataclass: a producer makes one per message, and a frozen dataclass costs
    five times more.
    """

    queue: MessageQueue
    offset: QueueOffset
    message_id: str
    key: str | None = None
    stored: StoredAs = StoredAs.UNKNOWN
    repeat: bool = False
    """The broker had it already: an earlier attempt arrived, only its answer was lost."""

    @property
    def topic(self) -> str:
        return self.queue.topic
