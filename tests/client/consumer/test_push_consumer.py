"""`PushConsumer` with a real broker."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.consumer.with_broker import Inbox, committed, send

from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.consumer.turns.handler import ConcurrentlyStatus, OrderlyContext, OrderlyStatus
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, DeadLetter, HoldQueue
from lanemq.model.errors import Closed, InvalidOption
from lanemq.testing.embedded import EmbeddedBroker

FIRST = {"start": StartFrom.FIRST}


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
