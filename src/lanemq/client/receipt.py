"""What a send returns: where the message is stored, and how durably."""

from enum import Enum

import msgspec

from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset


class StoredAs(Enum):
    """How durably the broker has stored a message."""

    DURABLE = "durable"
    """On disk: acknowledged after fdatasync."""
    RELAXED = "relaxed"
    """Written, not yet synced."""
    UNCONFIRMED = "unconfirmed"
    """By the master of an Apache broker, whose disk or replicas did not confirm it in time (FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE). If the master is lost before they do, so is the message."""
    UNKNOWN = "unknown"
    """The broker did not say (Apache brokers do not)."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """One stored message. Receipts of one key have the same queue and growing offsets.

    A struct, because a producer creates one per message, and a frozen dataclass costs five times as much.
    """

    queue: MessageQueue
    offset: QueueOffset
    """Its place in the queue; -1 if it is not known: for a delayed message, which gets a place when it is due, and for
    a repeat whose place the broker has forgotten."""
    message_id: str
    key: str | None = None
    stored: StoredAs = StoredAs.UNKNOWN
    repeat: bool = False
    """The broker already had the message: an earlier attempt arrived, but its reply was lost."""

    @property
    def topic(self) -> str:
        return self.queue.topic
