"""RocketMQ's push consumer and the iterators, against a real broker."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.client.consumer.test_app import Inbox, send

from lanemq.client.consumer.async_consumer import AsyncConsumer
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.consumer.handler import ConcurrentlyStatus, OrderlyContext, OrderlyStatus
from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, DeadLetter, HoldQueue
from lanemq.model.errors import Closed, InvalidOption, UsageError
from lanemq.testing.embedded import EmbeddedBroker

FIRST = {"start": StartFrom.FIRST}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t-{abs(hash(request.node.name)) % 10**9}"


def committed(broker: EmbeddedBroker, topic: str) -> int:
    with PullConsumer(broker.address, group=f"g-{topic}") as reader:
        return sum(reader.committed(queue) or 0 for queue in reader.queues(topic))


@pytest.mark.row("A19")
@pytest.mark.row("A75")
def test_an_orderly_listener_gets_one_message_at_a_time_in_order(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=20)
    inbox, consumer = Inbox(), PushConsumer(broker.address, group=f"g-{topic}", **FIRST)
    consumer.subscribe(topic)

    def listener(messages: Sequence[Message], context: OrderlyContext) -> OrderlyStatus:
        assert len(messages) == 1
        inbox.add(messages[0].value()["n"])
        return OrderlyStatus.SUCCESS

    consumer.register_orderly(listener)
    assert consumer.consume_orderly
    consumer.start()
    inbox.wait(20)
    consumer.shutdown()
    assert inbox.items == list(range(20))
    assert committed(broker, topic) == 20


@pytest.mark.row("A95")
@pytest.mark.row("A96")
@pytest.mark.row("A97")
def test_manual_commit_repeats_the_whole_uncommitted_run_after_a_rollback(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=6)
    inbox = Inbox()
    consumer = PushConsumer(
        broker.address, group=f"g-{topic}", manual_commit=True, suspend_current_queue_time_millis=10, **FIRST
    )
    consumer.subscribe(topic)

    def listener(messages: Sequence[Message], context: OrderlyContext) -> OrderlyStatus:
        n = messages[0].value()["n"]
        inbox.add(n)
        if n == 3:
            return OrderlyStatus.ROLLBACK if inbox.items.count(3) == 1 else OrderlyStatus.COMMIT
        return OrderlyStatus.SUCCESS

    consumer.register_orderly(listener)
    consumer.start()
    inbox.wait(10)
    consumer.shutdown()
    assert inbox.items == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert committed(broker, topic) == 4


@pytest.mark.row("A19")
@pytest.mark.row("A76")
def test_a_concurrent_failure_comes_back_under_its_own_topic(broker: EmbeddedBroker, topic: str) -> None:
    """Sent back to the broker, delivered again through the retry topic; the listener sees the topic it knows."""
    send(broker, topic, keys=1, each=1)
    inbox, consumer = Inbox(), PushConsumer(broker.address, group=f"g-{topic}", **FIRST)
    consumer.subscribe(topic)

    def listener(messages: Sequence[Message], context: Any) -> ConcurrentlyStatus:
        message = messages[0]
        context.delay_level_when_next_consume = 1
        inbox.add((message.topic, message.attempt, message.queue.topic))
        return ConcurrentlyStatus.RECONSUME_LATER if message.attempt == 1 else ConcurrentlyStatus.CONSUME_SUCCESS

    consumer.register_concurrent(listener)
    assert not consumer.consume_orderly
    consumer.start()
    inbox.wait(2)
    consumer.shutdown()
    assert inbox.items == [(topic, 1, topic), (topic, 2, f"%RETRY%g-{topic}")]


@pytest.mark.row("A20")
def test_a_started_consumer_cannot_be_started_or_changed_again(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    consumer = PushConsumer(broker.address, group=f"g-{topic}")
    consumer.subscribe(topic)
    with pytest.raises(InvalidOption, match="no listener"):
        consumer.start()
    consumer.register_orderly(lambda messages, context: OrderlyStatus.SUCCESS)
    consumer.start()
    try:
        with pytest.raises(Closed):
            consumer.start()
        with pytest.raises(Closed):
            consumer.subscribe("other")
    finally:
        consumer.shutdown()


@pytest.mark.row("A102")
@pytest.mark.row("A9")
@pytest.mark.parametrize(
    ("options", "retries"),
    [({}, 16), ({"compat": "rocketmq"}, RETRY_FOREVER), ({"max_reconsume_times": -1}, RETRY_FOREVER)],
)
def test_retries_are_finite_unless_rocketmqs_way_is_asked_for(options: dict[str, Any], retries: int) -> None:
    consumer = PushConsumer("localhost:9876", group="g", **options)
    consumer.register_orderly(lambda messages, context: None)
    policy = consumer._policy()
    hold = policy.hold if isinstance(policy, DeadLetter) else policy
    assert isinstance(policy, HoldQueue) == (retries == RETRY_FOREVER)
    assert hold.retries == retries


def test_an_iterator_gives_a_keys_next_message_only_after_done(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=3)
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        first = consumer.poll(60)
        assert first is not None
        assert consumer.poll(0.05) is None
        assert consumer.done(first)
        second = consumer.poll(60)
        assert second is not None
        assert (first.value()["n"], second.value()["n"]) == (0, 1)
        with pytest.raises(UsageError):
            consumer.done(first)


def test_an_undecided_message_is_delivered_again_to_the_next_consumer(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=2)
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        assert consumer.poll(60) is not None
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        again = consumer.poll(60)
        assert again is not None
        assert again.value()["n"] == 0


def test_an_iterators_retry_and_dead_decide_about_the_message(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=2)
    seen = []
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        for message in consumer:
            seen.append((message.value()["n"], message.attempt))
            if message.value()["n"] == 1:
                consumer.done(message)
                break
            if message.attempt == 1:
                consumer.retry(message, after=0.01)
            else:
                assert consumer.dead(message, "enough")
    assert seen == [(0, 1), (0, 2), (1, 1)]
    assert committed(broker, topic) == 2


def test_closing_ends_a_waiting_iteration(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    consumer = Consumer(broker.address, group=f"g-{topic}", topics=topic)
    consumer.start()
    seen: list[Message] = []
    ended = threading.Event()

    def iterate() -> None:
        for message in consumer:
            seen.append(message)
            consumer.done(message)
        ended.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    while not seen:
        ended.wait(0.01)
    consumer.close()
    assert ended.wait(60)
    thread.join()


def test_the_async_iterator_has_the_same_methods(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=2, each=5)

    async def main() -> list[tuple[str | None, int]]:
        seen = []
        async with AsyncConsumer(broker.address, group=f"g-{topic}", topics=[topic]) as consumer:
            async for message in consumer:
                seen.append((message.key, message.value()["n"]))
                if message.attempt == 1 and message.value()["n"] == 2:
                    seen.pop()
                    await consumer.retry(message, after=0.01)
                    continue
                await consumer.done(message)
                if len(seen) == 10:
                    break
            assert consumer.snapshot().group == f"g-{topic}"
        return seen

    seen = asyncio.run(main())
    for key in ("k0", "k1"):
        assert [n for k, n in seen if k == key] == list(range(5))
    assert committed(broker, topic) == 10


def test_a_pull_consumer_reads_from_chosen_offsets_and_commits_on_demand(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=10)
    with PullConsumer(broker.address, group=f"g-{topic}") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        messages = consumer.poll(30)
        assert [each.value()["n"] for each in messages] == list(range(10))
        used = messages[0].queue
        consumer.seek(used, 7)
        assert [each.value()["n"] for each in consumer.poll(30)] == [7, 8, 9]
        assert consumer.committed(used) is None
        consumer.commit()
        assert consumer.committed(used) == 10
        assert consumer.poll(0) == []
        consumer.seek_to_begin()
        assert consumer.position(used) == 0
        consumer.seek_to_end()
        assert consumer.position(used) == 10
        consumer.seek_to_time(0)
        assert consumer.position(used) == 0
        with pytest.raises(UsageError):
            consumer.seek(used._replace(queue_id=99), 0)


def test_a_pull_consumer_waits_for_a_message_that_is_sent_later(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    with PullConsumer(broker.address, group=f"g-{topic}") as consumer, Producer(broker.address) as producer:
        used = producer.send(topic, {"n": 1}, key="k0").queue
        consumer.assign([used])
        consumer.seek_to_end()
        later = threading.Timer(0.1, lambda: producer.send(topic, {"n": 2}, key="k0"))
        later.start()
        assert [each.value()["n"] for each in consumer.poll(10)] == [2]
        later.join()
