"""Retried messages in a group whose members subscribe to different topics, with a real broker."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.consumer.with_broker import Inbox, wait_for

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.consumer.turns.handler import ConcurrentlyContext, ConcurrentlyStatus
from lanemq.client.consumer.turns.send_back import DeadLetterSender
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.brokering.members.membership import Membership
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.stock_broker import stock_broker, stores_repeats
from lanemq.wire.properties import PropertyName

ONE_SECOND = 1
"""Delay level."""


def member(
    broker: EmbeddedBroker, name: str, topic: str, inbox: Inbox, *, failures: int = 1, **more: Any
) -> PushConsumer:
    """Fails every message, once by default, and asks for it again after a second."""
    consumer = PushConsumer(broker.address, group="g", start=StartFrom.FIRST, client_id=name, **more)
    consumer.subscribe(topic)

    def listener(messages: Sequence[Message], context: ConcurrentlyContext) -> ConcurrentlyStatus:
        (message,) = messages
        inbox.add((name, message.topic, message.key, message.attempt))
        context.delay_level_when_next_consume = ONE_SECOND
        return ConcurrentlyStatus.RECONSUME_LATER if message.attempt <= failures else ConcurrentlyStatus.CONSUME_SUCCESS

    consumer.register_concurrent(listener)
    consumer.start()
    return consumer


def dead_letters(broker: EmbeddedBroker) -> int:
    with Admin(broker.address) as admin:
        try:
            return admin.max_offset(MessageQueue("%DLQ%g", "lanemq", 0))
        except LaneError:
            return 0  # the topic comes with its first message


def send(broker: EmbeddedBroker, *topics: str) -> None:
    with Producer(broker.address, create=list(topics)) as producer:
        for topic in topics:
            for key in "xyz":
                producer.send(topic, key, key=key)


@pytest.mark.lanemq(own_broker=True)
@pytest.mark.slow
def test_a_retried_message_comes_to_a_member_that_has_its_topic(lanemq_broker: EmbeddedBroker) -> None:
    """The retry topic's first queue belongs to the first member, which has no handler for the other topic."""
    send(lanemq_broker, "one", "two")
    inbox = Inbox()
    first, second = member(lanemq_broker, "a", "one", inbox), member(lanemq_broker, "b", "two", inbox)
    try:
        handled = set(inbox.wait(12))
    finally:
        first.shutdown()
        second.shutdown()
    assert handled == {
        (name, topic, key, attempt)
        for name, topic in (("a", "one"), ("b", "two"))
        for key in "xyz"
        for attempt in (1, 2)
    }, "passing a message on is no attempt"
    assert dead_letters(lanemq_broker) == 0


@pytest.mark.lanemq(own_broker=True)
@pytest.mark.slow
def test_with_one_queue_a_retried_message_stays_with_a_member_that_does_not_have_its_topic(
    lanemq_broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control. It is not lost either: it waits for a member that has all topics."""
    monkeypatch.setattr(Membership, "retry_queues", lambda self, group: 1)
    passed_on: list[str] = []
    real = DeadLetterSender.pass_on

    async def noted(self: Any, message: Message, most: int = 16) -> bool:
        passed_on.append(message.topic)
        return await real(self, message, most)

    monkeypatch.setattr(DeadLetterSender, "pass_on", noted)
    send(lanemq_broker, "one", "two")
    inbox = Inbox()
    first, second = member(lanemq_broker, "a", "one", inbox), member(lanemq_broker, "b", "two", inbox)
    try:
        wait_for(lambda: passed_on.count("two") >= 6)  # each message, twice
        assert {(topic, attempt) for _, topic, _, attempt in inbox.items if topic == "two"} == {("two", 1)}
    finally:
        first.shutdown()
        second.shutdown()
    assert dead_letters(lanemq_broker) == 0


@pytest.mark.slow
def test_where_repeats_are_left_out_each_attempt_of_a_message_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache's brokers keep the stamp in what they store in a retry topic; one with timers drops the former topic."""
    monkeypatch.setattr("lanemq.broker.handlers.retries.LANE_STAMP", "-")
    monkeypatch.setattr("lanemq.broker.storage.delays.LANE_STAMP", PropertyName.REAL_TOPIC)
    with stock_broker() as broker, stores_repeats():
        send(broker, "one")
        inbox = Inbox()
        consumer = member(broker, "a", "one", inbox, failures=2, drop_repeats=True)
        try:
            handled = inbox.wait(9)
        finally:
            consumer.shutdown()
    assert sorted(handled) == sorted(("a", "one", key, attempt) for key in "xyz" for attempt in (1, 2, 3))
