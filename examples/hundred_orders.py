"""The classic example of ordered messages: 100 messages, 10 orders, 5 tags.

The order id, i modulo 10, selects the queue. The consumer starts at the first message and reads only the tags A, C and
D. The messages of each order arrive in the order in which they were sent.

    python examples/hundred_orders.py localhost:9876
"""

import argparse
from collections import defaultdict

from lanemq import Admin, Consumer, Producer, Receipt, StartFrom, by_int_modulo

TAGS = ("TagA", "TagB", "TagC", "TagD", "TagE")
WANTED = "TagA || TagC || TagD"


def send_all(servers: str, topic: str) -> list[Receipt]:
    """Sends 100 messages with RocketMQ's selector form: the queue is the order's id modulo the queue count."""
    receipts = []
    with Producer(servers) as producer:
        for i in range(100):
            order = i % 10
            receipt = producer.send(
                topic,
                f"Hello RocketMQ {i}".encode(),
                key=str(order),
                tag=TAGS[i % len(TAGS)],
                keys=[f"KEY{i}"],
                selector=by_int_modulo,
                arg=order,
            )
            print(f"order {order} message {i:2} -> queue {receipt.queue.queue_id} offset {receipt.offset}")
            receipts.append(receipt)
    return receipts


def receive(servers: str, topic: str, count: int) -> dict[str, list[int]]:
    """Reads `count` messages and returns the message numbers of each order, as they arrived."""
    seen: dict[str, list[int]] = defaultdict(list)
    with Consumer(servers, group="hundred-orders", topics=topic, tags=WANTED, start=StartFrom.FIRST) as consumer:
        while count > 0 and (message := consumer.poll(timeout=10)) is not None:
            seen[message.key or ""].append(int(message.body.rsplit(b" ", 1)[1]))
            consumer.done(message)
            count -= 1
    return seen


def main(servers: str = "localhost:9876", topic: str = "TopicTest") -> dict[str, list[int]]:
    with Admin(servers) as admin:
        admin.create_topic(topic, queues=4, ordered=True)
    send_all(servers, topic)
    seen = receive(servers, topic, count=60)
    for order, numbers in sorted(seen.items()):
        print(f"order {order}: {numbers}")
        assert numbers == sorted(numbers), f"order {order} came out of order"
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send 100 messages of 10 orders and receive them in order.")
    parser.add_argument("servers", nargs="?", default="localhost:9876", help="host:port of the broker")
    parser.add_argument("topic", nargs="?", default="TopicTest")
    main(**vars(parser.parse_args()))
