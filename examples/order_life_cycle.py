"""An order is created, paid, shipped, and the events come from two topics.

The shop reports "created" and "paid", the warehouse reports "shipped". Within a topic each order is in order. Between
topics there is no order: the warehouse may be faster. Its handler then raises `Retry`, and gets the same message again
until the order is paid. The queue of the warehouse waits, nothing is skipped, and the shop's topic continues.

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
    """The state of each order, shared by the handlers of both topics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lives: dict[str, list[str]] = {}
        self.early = 0
        self.some_early = threading.Event()
        self.complete = threading.Event()

    def advance(self, event: Event) -> bool:
        """Moves the order to the state of the event, and returns whether it was ready. A repeat changes nothing."""
        with self._lock:
            life = self.lives.setdefault(event["order"], [])
            before = life[-1] if life else None
            if before == event["state"]:
                return True
            if before != NEEDS[event["state"]]:
                self.early += 1
                self.some_early.set()
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
        for order in ORDERS:  # the warehouse reports first, before the orders are created
            producer.send("warehouse", {"order": order, "state": "shipped"}, key=order)
        orders.some_early.wait(30)  # the shop is slow today
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
