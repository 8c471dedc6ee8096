"""Sample traffic for `lanemq up --demo`: order life cycles without end, and three groups that consume them.

`shipping` has two members and fails at some orders until its retries are used up, so that keys are held and parked.
`billing` is slow and falls behind now and then. `mail` gives messages up, so that there are dead letters.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey
from lanemq.history import open_history
from lanemq.model.errors import LaneError
from lanemq.signals import end_with_parent
from lanemq.testing.order_life import ITEM, OrderEvent

TOPIC = "orders"
QUEUES = 4
STEPS = ("created", ITEM, ITEM, "paid", "packed", "shipped", "done")
AT_ONCE = 12
"""Orders that are under way at the same time."""
PARKING = HoldKey(retries=3, backoff=Backoff(first=0.5, factor=2.0, max=4.0))
HOLDING = HoldKey(retries=-1, backoff=Backoff(first=5.0, factor=1.5, max=60.0))
GIVING_UP = DeadLetter(skip=True, hold=HoldKey(retries=1, backoff=Backoff(first=0.2, factor=1.0, max=0.2)))


class DemoFailure(LaneError):
    """What the handlers of the demonstration raise on purpose."""


def endless_orders(seed: int = 5) -> Iterator[OrderEvent]:
    """Events of orders, a few orders under way at once, each in its own order."""
    chance = random.Random(seed)
    numbers = itertools.count(1)
    under_way: list[Iterator[OrderEvent]] = []
    while True:
        while len(under_way) < AT_ONCE:
            name = f"order-{next(numbers)}"
            life = [OrderEvent(name, seq, kind, chance.randrange(1, 5_000)) for seq, kind in enumerate(STEPS, 1)]
            under_way.append(iter(life))
        chosen = chance.choice(under_way)
        event = next(chosen, None)
        if event is None:
            under_way.remove(chosen)
        else:
            yield event


def number_of(event: OrderEvent) -> int:
    return int(event.order.removeprefix("order-"))


def ship(event: OrderEvent) -> None:
    """Fails at every fortieth order, from the seventh on."""
    if event.kind == "packed" and number_of(event) % 40 == 7:
        raise DemoFailure(f"no carrier takes {event.order}: the address has no postal code")


def bill(event: OrderEvent) -> None:
    """Takes its time; the payment service refuses one order again and again."""
    time.sleep(0.15)
    if event.kind == "paid" and number_of(event) % 60 == 11:
        raise DemoFailure(f"the payment service does not answer for {event.order}: timed out after 150 ms")


def mail(event: OrderEvent) -> None:
    if event.kind == "shipped" and number_of(event) % 25 == 9:
        raise DemoFailure(f"no mail address for {event.order}")


HANDLERS: dict[str, tuple[Callable[[OrderEvent], None], FailurePolicy, int]] = {
    "shipping": (ship, PARKING, 20),
    "billing": (bill, HOLDING, 2),
    "mail": (mail, GIVING_UP, 20),
}


@click.group()
def traffic() -> None:
    """Started by `lanemq up --demo`."""
    end_with_parent()


@traffic.command()
@click.argument("address")
@click.argument("history", type=click.Path(path_type=Path))
@click.option("--rate", default=12.0, show_default=True, help="Events per second.")
def send(address: str, history: Path, rate: float) -> None:
    """Sends events until it is stopped."""
    record = open_history(history, "shop", SystemClock().now_ns, role="producer")
    with Admin(address) as admin:
        admin.ensure_topic(TOPIC, QUEUES, ordered=True)
    with Producer(address, history=record) as producer:
        for event in endless_orders():
            producer.send(TOPIC, msgspec.to_builtins(event), key=event.order, tag=event.kind)
            time.sleep(1 / rate)


@traffic.command()
@click.argument("address")
@click.argument("history", type=click.Path(path_type=Path))
@click.argument("group", type=click.Choice(list(HANDLERS)))
@click.argument("name")
def consume(address: str, history: Path, group: str, name: str) -> None:
    """Consumes as a member of a group until it is stopped."""
    with Admin(address) as admin:
        admin.ensure_topic(TOPIC, QUEUES, ordered=True)
    record = open_history(history, name, SystemClock().now_ns, role="consumer")
    handle, policy, lanes = HANDLERS[group]
    app = App(address, group=group, history=record, client_id=f"{name}@{os.getpid()}")

    @app.ordered(TOPIC, on_fail=policy, lanes=lanes)
    def on_event(event: OrderEvent, message: Message) -> None:
        handle(event)

    app.run()
    record.close()


if __name__ == "__main__":
    traffic()
