"""The classic example of ordered messages: 100 messages, 10 orders, 5 tags.

Order id = i modulo 10 picks the queue; the consumer wants the tags A, C and D only. Each order's messages arrive
in the order they were sent, whatever else happens.

    python examples/seed_orders.py localhost:9876
"""

import sys
from collections import defaultdict

from lanemq import Consumer, Producer, by_int_modulo
from lanemq.client.admin import Admin

TAGS = ("TagA", "TagB", "TagC", "TagD", "TagE")
WANTED = "TagA || TagC || TagD"


def send_all(servers: str, topic: str) -> int:
    """Sends 100 messages with RocketMQ's selector form; returns how many the consumer will see."""
    with Producer(servers) as producer:
        for i in range(100):
            order = i % 10
            receipt = producer.send(
                topic,
                f"Hello RocketMQ {i}".encode(),
                tag=TAGS[i % len(TAGS)],
                keys=[f"KEY{i}"],
                selector=by_int_modulo,
                arg=order,
                key=str(order),
            )
            print(f"order {order} message {i:2} -> queue {receipt.queue.queue_id} offset {receipt.offset}")
    return sum(1 for i in range(100) if i % len(TAGS) in (0, 2, 3))


def receive_all(servers: str, topic: str, count: int) -> dict[str, list[int]]:
    """Reads `count` messages and returns the message numbers per order, as they came."""
    seen: dict[str, list[int]] = defaultdict(list)
    with Consumer(servers, group="seed-orders", topics={topic: WANTED}, start="first") as consumer:
        for message in consumer:
            seen[message.key or ""].append(int(message.body.rsplit(b" ", 1)[1]))
            consumer.done(message)
            count -= 1
            if count == 0:
                break
    return seen


def main(servers: str = "localhost:9876", topic: str = "TopicTest") -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, queues=4, ordered=True)
    seen = receive_all(servers, topic, send_all(servers, topic))
    for order, numbers in sorted(seen.items()):
        print(f"order {order}: {numbers}")
        assert numbers == sorted(numbers), f"order {order} came out of order"


if __name__ == "__main__":
    main(*sys.argv[1:])
