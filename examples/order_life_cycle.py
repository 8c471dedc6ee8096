"""An order's life: created, paid, shipped. No step happens before the one it needs.

Two systems report about the same orders: the shop says "created" and "paid", the warehouse says "shipped", each to
a topic of its own. Within a topic every order is in order. Between topics nothing is: the warehouse may be faster.
Its handler then finds that the predecessor has not arrived yet and asks to be called again; the queue waits,
nothing is skipped, and the shop's topic goes on meanwhile.

    python examples/order_life_cycle.py localhost:9876
"""

import sys
import threading
from typing import TypedDict

from lanemq import Admin, App, HoldQueue, Producer, Retry

ORDERS = [f"order-{number}" for number in range(5)]
NEEDS = {"created": None, "paid": "created", "shipped": "paid"}


class Event(TypedDict):
    order: str
    state: str


class Orders:
    """What is known about each order; handlers of two topics use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lives: dict[str, list[str]] = {}
        self.early = 0
        self.complete = threading.Event()

    def advance(self, event: Event) -> bool:
        """Whether the order was ready for this state. Repeats of the last state are harmless."""
        with self._lock:
            life = self.lives.setdefault(event["order"], [])
            before = life[-1] if life else None
            if before == event["state"]:
                return True
            if before != NEEDS[event["state"]]:
                self.early += 1
                return False
            life.append(event["state"])
            if len(self.lives) == len(ORDERS) and all(life[-1] == "shipped" for life in self.lives.values()):
                self.complete.set()
            return True


def make_app(servers: str, orders: Orders) -> App:
    app = App(servers, group="order-life-cycle")

    @app.ordered("shop", on_fail=HoldQueue())
    def on_shop(event: Event) -> None:
        if not orders.advance(event):
            raise Retry(after=0.05)

    @app.ordered("warehouse", on_fail=HoldQueue())
    def on_warehouse(event: Event) -> None:
        if not orders.advance(event):
            raise Retry(after=0.05)

    return app


def main(servers: str = "localhost:9876") -> Orders:
    with Admin(servers) as admin:
        admin.create_topic("shop", queues=2, ordered=True)
        admin.create_topic("warehouse", queues=2, ordered=True)
    orders = Orders()
    with make_app(servers, orders), Producer(servers) as producer:
        for order in ORDERS:  # the warehouse reports first, long before the orders are even created
            producer.send("warehouse", {"order": order, "state": "shipped"}, key=order)
        for state in ("created", "paid"):
            for order in ORDERS:
                producer.send("shop", {"order": order, "state": state}, key=order)
        if not orders.complete.wait(30):
            raise SystemExit(f"some orders never ended: {orders.lives}")
    for order, life in sorted(orders.lives.items()):
        print(f"{order}: {' → '.join(life)}")
    print(f"{orders.early} reports came too early and waited")
    return orders


if __name__ == "__main__":
    main(*sys.argv[1:])
