"""Sending in order without waiting for each receipt.

`submit` gives a message its place in line and returns immediately; `send_many` does the same for many. Messages of a
key are stored in the order of the calls, through lost answers, reconnects and retries, and none is stored twice. If one
fails for good, later messages of its key fail too instead of passing it.

    python examples/pipelined_send.py localhost:9876
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from lanemq import Admin, Producer, Receipt

KEYS = [f"account-{number}" for number in range(7)]
MESSAGES = [(KEYS[i % len(KEYS)], {"booking": i}) for i in range(2_000)]


def one_by_one(producer: Producer, topic: str) -> list[Receipt]:
    """Every send waits for its receipt."""
    return [producer.send(topic, value, key=key) for key, value in MESSAGES[:200]]


def pipelined(producer: Producer, topic: str) -> list[Receipt]:
    """Submits everything, then waits for the receipts."""
    futures = [producer.submit(topic, value, key=key) for key, value in MESSAGES]
    return [future.result() for future in futures]


def many(producer: Producer, topic: str) -> Sequence[Receipt]:
    """One call for all messages: the fastest way."""
    return producer.send_many(topic, MESSAGES)


def check_order(receipts: Sequence[Receipt]) -> None:
    """Checks that each key has one queue and growing offsets."""
    places = defaultdict(list)
    for receipt in receipts:
        places[receipt.key].append((receipt.queue, receipt.offset))
    for key, stored in places.items():
        assert stored == sorted(stored), f"{key} is out of order"
        assert len({queue for queue, _ in stored}) == 1, f"{key} is in several queues"


def main(servers: str = "localhost:9876", topic: str = "bookings") -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, queues=4, ordered=True)
    ways: tuple[Callable[[Producer, str], Sequence[Receipt]], ...] = (one_by_one, pipelined, many)
    with Producer(servers) as producer:
        for way in ways:
            began = time.monotonic()
            receipts = way(producer, topic)
            seconds = time.monotonic() - began
            check_order(receipts)
            print(f"{way.__name__:>10}: {len(receipts)} messages in order, {len(receipts) / seconds:,.0f} a second")


if __name__ == "__main__":
    main(*sys.argv[1:])
