"""The producer and the consumers of the main job, which run in processes of their own."""

import os
import time
from pathlib import Path

import click
import msgspec

from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.clock import SystemClock
from lanemq.history import open_history
from lanemq.testing.demo.plan import CONSUMER_GROUP, EVENTS_PER_SECOND, SEED, TOPIC
from lanemq.testing.order_life import OrderEvent, order_events

CHUNK = 300


@click.group()
def roles() -> None:
    """Started by `lanemq.testing.demo`."""


@roles.command()
@click.argument("address")
@click.argument("history", type=click.Path(path_type=Path))
@click.argument("orders", type=int)
def generate(address: str, history: Path, orders: int) -> None:
    """Sends the life cycles of all orders, pipelined, at a limited rate."""
    record = open_history(history, "generator", SystemClock().now_ns, role="producer")
    events = order_events(orders, SEED)
    begin = time.perf_counter()
    with Producer(address, history=record) as producer:
        for first in range(0, len(events), CHUNK):
            chunk = events[first : first + CHUNK]
            sent = [producer.submit(TOPIC, msgspec.to_builtins(event), key=event.order) for event in chunk]
            for one in sent:
                one.result()
            time.sleep(max(0.0, begin + first / EVENTS_PER_SECOND - time.perf_counter()))
    record.close()


@roles.command()
@click.argument("address")
@click.argument("history", type=click.Path(path_type=Path))
def consume(address: str, history: Path) -> None:
    """Consumes in order until it is stopped or killed."""
    record = open_history(history, f"consumer-{os.getpid()}", SystemClock().now_ns, role="consumer")
    app = App(address, group=CONSUMER_GROUP, history=record)

    @app.ordered(TOPIC)
    def on_event(event: OrderEvent, message: Message) -> None:
        """Does nothing: the history records who gets which message."""

    app.run()
    record.close()


if __name__ == "__main__":
    roles()
