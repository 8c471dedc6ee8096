"""The parts of the main job that run in processes of their own: `produce` and `consume`."""

import os
from pathlib import Path

import click

from lanemq.client.app import App
from lanemq.client.message import Message
from lanemq.client.producer import Producer
from lanemq.clock import SystemClock
from lanemq.history import open_history
from lanemq.testing.demo import GROUP, KEYS, TOPIC

CHUNK = 500


@click.group()
def roles() -> None:
    """Started by `lanemq.testing.demo`."""


@roles.command()
@click.argument("address")
@click.argument("history", type=click.Path(path_type=Path))
@click.argument("number", type=int)
@click.argument("count", type=int)
def produce(address: str, history: Path, number: int, count: int) -> None:
    """Sends `count` messages over this producer's share of the keys, pipelined."""
    record = open_history(history, f"producer-{number}", SystemClock().now_ns, role="producer")
    steps: dict[int, int] = {}
    with Producer(address, history=record) as producer:
        waiting = []
        for sequence in range(count):
            order = (sequence * 3 + number) % KEYS
            steps[order] = steps.get(order, -1) + 1
            event = {"order": order, "step": steps[order], "producer": number}
            waiting.append(producer.submit(TOPIC, event, key=f"order-{number}-{order}"))
            if len(waiting) >= CHUNK:
                for sent in waiting:
                    sent.result()
                waiting.clear()
        for sent in waiting:
            sent.result()
    record.close()


@roles.command()
@click.argument("address")
@click.argument("history", type=click.Path(path_type=Path))
def consume(address: str, history: Path) -> None:
    """Consumes in order until it is told to stop, or killed."""
    record = open_history(history, f"consumer-{os.getpid()}", SystemClock().now_ns, role="consumer")
    app = App(address, group=GROUP, history=record)

    @app.ordered(TOPIC)
    def on_order(event: dict[str, int], message: Message) -> None:
        """Nothing to do: what is shown is who gets which message when."""

    app.run()
    record.close()


if __name__ == "__main__":
    roles()
