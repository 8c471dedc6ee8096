"""A source and a target, and what the tests of mirrors do with them."""

from dataclasses import dataclass

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.message import Message
from lanemq.client.producer.batches import Outgoing
from lanemq.client.producer.producer import Producer
from lanemq.mirror.copying import Mirror, MirrorOptions, MirrorReport


@dataclass(frozen=True)
class Pair:
    """A source and a target."""

    source: str
    target: str

    def options(self, *topics: str, back: bool = False) -> MirrorOptions:
        source, target = (self.target, self.source) if back else (self.source, self.target)
        return MirrorOptions(source=source, target=target, topics=topics)

    def create(self, topic: str, here: int = 4, there: int = 4, *, ordered: bool = True) -> None:
        for address, queues in ((self.source, here), (self.target, there)):
            with Admin(address) as admin:
                admin.create_topic(topic, queues, ordered=ordered)

    def drain(self, topic: str, *, back: bool = False) -> MirrorReport:
        return Mirror(self.options(topic, back=back)).run(until_drained=True)


def send(address: str, topic: str, count: int, *, keys: int = 10, first: int = 0) -> None:
    """Messages whose bodies count within their key."""
    with Producer(address) as producer:
        producer.send_many(
            topic,
            (
                Outgoing({"n": number // keys}, key=f"k{number % keys}", tag=f"t{number % 3}", keys=[f"word{number}"])
                for number in range(first, first + count)
            ),
        )


def stored(address: str, topic: str) -> list[Message]:
    """All messages of a topic, queue by queue."""
    with PullConsumer(address, group="reads-all") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        consumer.seek_to_first()
        return [message for queue in queues for message in consumer.read(queue, 10_000_000)]


def by_key(address: str, topic: str) -> dict[str | None, list[int]]:
    """The numbers in the bodies of each key, in the order stored."""
    found: dict[str | None, list[int]] = {}
    for message in stored(address, topic):
        found.setdefault(message.key, []).append(message.value()["n"])
    return found


def assert_continues(
    sent: dict[str | None, list[int]],
    before: list[tuple[str | None, int]],
    after: list[tuple[str | None, int]],
    *,
    once_each: bool,
) -> None:
    """A group that moved skips no number of any key and keeps the order; with `once_each`, it repeats none."""
    for key, numbers in sent.items():
        first = [number for each, number in before if each == key]
        second = [number for each, number in after if each == key]
        assert second == numbers[len(numbers) - len(second) :]
        assert len(first) + len(second) >= len(numbers)
        if once_each:
            assert first + second == numbers
