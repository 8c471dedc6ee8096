"""What a send returns: where the message is stored, and how durably."""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import overload

import msgspec

from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

MAX_SHOWN = 10
"""Receipts that the `repr` of many shows."""


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


class Receipts(Sequence[Receipt]):
    """The receipts of one call of `send_many`, in the order of its messages: a sequence that cannot be changed.

    It keeps a few bytes for each message and makes a receipt each time one is read; `list(receipts)` makes all.
    """

    __slots__ = ("_count", "_get")

    def __init__(self, get: Callable[[int], Receipt], count: int) -> None:
        self._get = get
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._get(each) for each in range(self._count)[index]]
        return self._get(range(self._count)[index])

    def __iter__(self) -> Iterator[Receipt]:
        return map(self._get, range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipts | list | tuple):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Receipts({list(self)!r})" if self._count <= MAX_SHOWN else f"Receipts(of {self._count} messages)"
