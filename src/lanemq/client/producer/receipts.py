"""What a call of `send_many` keeps of its stored messages until a receipt is read.

A call may have millions of messages, and most programs look at none of their receipts. So the compiled table keeps the
numbers that a receipt is made of: new memory for a receipt and its id costs more than sending the message.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from lanemq._fast import compiled
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset


class Sent(Protocol):
    """What is read of a message."""

    @property
    def message_id(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def index(self) -> int: ...
    @property
    def waiter(self) -> object: ...


@compiled
class ReceiptTable:
    """The receipts of one call, by the index of the message. The caller guards it."""

    def __init__(self, make: type[Receipt]) -> None:
        self._make = make
        self._batches: list[tuple[Sequence[int], Sequence[Receipt]]] = []
        self._receipts: dict[int, Receipt] = {}

    def add(
        self,
        messages: Sequence[Sent],
        waiter: object,
        queue: MessageQueue,
        first_offset: int,
        stored: StoredAs,
        repeat: bool,
    ) -> bool:
        """Adds messages that are stored one behind the other; nothing, and False, if one has another waiter."""
        if not all([message.waiter is waiter for message in messages]):
            return False
        make = self._make
        receipts = [
            make(queue, offset, message.message_id, message.key, stored, repeat)
            for offset, message in cast(Iterable[tuple[QueueOffset, Sent]], enumerate(messages, first_offset))
        ]
        self._batches.append(([message.index for message in messages], receipts))
        return True

    def put(self, index: int, receipt: Receipt) -> None:
        """Adds one receipt."""
        self._batches.append(((index,), (receipt,)))

    def get(self, index: int) -> Receipt:
        """The receipt of a message; raises `KeyError` if it is not stored."""
        for indexes, receipts in self._batches:
            self._receipts.update(zip(indexes, receipts, strict=True))
        self._batches.clear()
        return self._receipts[index]
