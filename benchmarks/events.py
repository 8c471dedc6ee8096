"""The messages that consume benchmarks read, and the handler that reads them as users do.

An event is JSON of about 100 or 1,000 bytes with one property beside it. The handler takes the event decoded into its
type, and reads a field of it, the key, the offset and the property.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lanemq.client.message import Message
from lanemq.client.producer.batches import Outgoing

PROPERTY, REGION = "region", "eu-west"


class OrderPaid(msgspec.Struct):
    """About 100 bytes of JSON with an empty note."""

    order: int
    customer: str
    amount: int
    currency: str
    state: str
    note: str


def event_json(number: int, size: int) -> bytes:
    """An event whose JSON has `size` bytes, at least 100."""
    event = OrderPaid(number, f"customer-{number % 1000}", number % 10_000, "EUR", "paid", "")
    event.note = "x" * max(size - len(msgspec.json.encode(event)), 0)
    return msgspec.json.encode(event)


def made_events(count: int, keys: int, size: int) -> Iterator[Outgoing]:
    """One after the other, so that a million of them do not stay in memory."""
    properties, bodies = {PROPERTY: REGION}, [event_json(number, size) for number in range(1_000)]
    for number in range(count):
        yield Outgoing(bodies[number % 1_000], f"key-{number % keys}", properties=properties)


def reading_handler(count: Callable[[], None]) -> Callable[..., None]:
    """The handler of the published figures; `count` is called for every message."""

    def on_order(event: OrderPaid, message: Message) -> None:
        read(event, message)
        count()

    return on_order


def read(event: OrderPaid, message: Message) -> None:
    """What the handlers of the published figures read of a message."""
    if event.amount < 0 or message.key is None or message.offset < 0 or message.properties[PROPERTY] != REGION:
        raise AssertionError(f"{message} is not what was sent")


def empty_handler(count: Callable[[], None]) -> Callable[..., None]:
    """Reads nothing: what remains is the cost of lanes, workers and offsets."""

    def on_message(message: Message) -> None:
        count()

    return on_message


HANDLERS: dict[str, Callable[[Callable[[], None]], Any]] = {"event": reading_handler, "empty": empty_handler}
