"""How often a concurrent listener's message comes back: the broker counts, the consumer says how far."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.consumer.with_broker import Inbox, send, wait_for

from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.consumer.turns.handler import ConcurrentlyStatus
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import SendBack
from lanemq.model.errors import LaneError
from lanemq.testing.embedded import EmbeddedBroker


@pytest.mark.lanemq(own_broker=True)
def test_a_message_without_retries_is_a_dead_letter_after_its_first_failure(lanemq_broker: EmbeddedBroker) -> None:
    send(lanemq_broker, "t", keys=1, each=1)
    inbox = Inbox()
    consumer = PushConsumer(lanemq_broker.address, group="g", max_reconsume_times=0, start=StartFrom.FIRST)
    consumer.subscribe("t")

    def listener(messages: Sequence[Message], context: Any) -> ConcurrentlyStatus:
        inbox.add(messages[0].attempt)
        return ConcurrentlyStatus.RECONSUME_LATER

    consumer.register_concurrent(listener)
    consumer.start()
    try:
        inbox.wait(1)
        wait_for(lambda: _dead_letters(lanemq_broker) == 1)
    finally:
        consumer.shutdown()
    assert inbox.items == [1]


def _dead_letters(broker: EmbeddedBroker) -> int:
    with PullConsumer(broker.address, group="reader") as reader:
        try:
            reader.assign(reader.queues("%DLQ%g"))
        except LaneError:
            return 0  # the topic comes with its first message
        return len(reader.poll(timeout=0))


@pytest.mark.parametrize(("asked", "retries"), [(None, 16), (-1, 16), (3, 3)])
def test_minus_one_means_rocketmqs_sixteen(asked: int | None, retries: int) -> None:
    consumer = PushConsumer("localhost:9876", group="g", max_reconsume_times=asked)
    consumer.register_concurrent(lambda messages, context: None)
    policy = consumer._policy()
    assert isinstance(policy, SendBack)
    assert policy.retries == retries
