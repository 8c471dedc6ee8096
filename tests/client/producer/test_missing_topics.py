"""A message with a key to a topic that does not exist is refused, unless the program declares the topic."""

import threading
import time
from collections.abc import Iterator

import pytest
from tests.client.fake_broker import FakeBroker
from tests.client.producer.producers import Blocking, Open

from lanemq.client.admin.admin import Admin
from lanemq.client.receipt import Receipt
from lanemq.client.topic_route import MISSING_QUESTIONS
from lanemq.client.topics import NewTopic
from lanemq.core.sending.sharding import by_hash
from lanemq.model.errors import InvalidName, InvalidOption, LaneError, TopicNotFound, UsageError
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode, ResponseCode


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.address) as each:
        yield each


COMMAND = "lanemq topic create ordrs --ordered"


def test_a_keyed_message_to_a_mistyped_topic_is_refused_with_the_command_that_creates_it(
    broker: EmbeddedBroker, admin: Admin, kind: Open
) -> None:
    with kind(broker.address) as producer:
        with pytest.raises(TopicNotFound, match=COMMAND):
            producer.send("ordrs", 1, key="k")
        with pytest.raises(TopicNotFound, match=COMMAND):
            producer.submit("ordrs", 1, key="k")
        with pytest.raises(TopicNotFound, match=COMMAND):
            producer.send_many("ordrs", [("k", 1)])
        with pytest.raises(TopicNotFound, match=COMMAND):
            producer.send("ordrs", 1, key="k", selector=by_hash)
        assert producer.frozen_keys() == []
    assert "ordrs" not in admin.topics()


def test_a_message_without_a_key_creates_its_topic_as_in_rocketmq(
    broker: EmbeddedBroker, admin: Admin, kind: Open
) -> None:
    """The negative control: without a key there is no order to lose."""
    name = f"keyless-{kind.__name__}"
    with kind(broker.address) as producer:
        producer.send(name, 1)
    assert not admin.describe_topic(name).ordered


def test_declared_topics_are_created_when_they_are_used(broker: EmbeddedBroker, admin: Admin, kind: Open) -> None:
    names = [f"declared-{kind.__name__}-{number}" for number in range(3)]
    plain = NewTopic(names[1], 3, ordered=False)
    with kind(broker.address, create=[names[0], plain, names[2]]) as producer:
        producer.send(names[0], 1, key="k")
        producer.send_many(names[1], [("k", 1)])
    found = [admin.describe_topic(name) for name in names[:2]]
    assert [(len(each.queues), each.ordered) for each in found] == [(8, True), (3, False)]
    assert names[2] not in admin.topics()


def test_a_declared_topic_that_differs_is_refused(broker: EmbeddedBroker, admin: Admin, kind: Open) -> None:
    admin.ensure_topic("differs", 4)
    with (
        kind(broker.address, create="differs") as producer,
        pytest.raises(UsageError, match="is not ordered, but this"),
    ):
        producer.send("differs", 1, key="k")


def test_producers_that_start_together_agree_on_a_declared_topic(broker: EmbeddedBroker) -> None:
    receipts: list[Receipt] = []
    errors: list[LaneError] = []
    barrier = threading.Barrier(6)

    def send() -> None:
        try:
            with Blocking(broker.address, create="at-once") as producer:
                barrier.wait(30)
                receipts.append(producer.send("at-once", 1, key="k"))
        except LaneError as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(receipt.offset for receipt in receipts) == list(range(6))


@pytest.mark.parametrize(("create", "why"), [([5], "neither the name"), ("or ders", "topic name")])
def test_a_declaration_is_checked_when_the_producer_is_made(create: object, why: str, kind: Open) -> None:
    with pytest.raises((InvalidOption, InvalidName), match=why):
        kind("127.0.0.1:1", create=create)


# delays


def test_a_delayed_message_to_an_ordered_topic_is_refused(broker: EmbeddedBroker, admin: Admin, kind: Open) -> None:
    admin.ensure_topic("in-order", ordered=True)
    with kind(broker.address) as producer:
        for call in (producer.send, producer.submit, producer.send_oneway):
            with pytest.raises(InvalidOption, match="later messages of key 'k' would overtake a delayed one"):
                call("in-order", 1, key="k", delay_level=1)
        assert producer.send("in-order", 1, key="k").offset >= 0


def test_the_receipt_of_a_delayed_message_names_no_place(broker: EmbeddedBroker, admin: Admin, kind: Open) -> None:
    """The broker answers with a place among all delayed messages, which is another message's place in the topic."""
    name = f"later-{kind.__name__}"
    admin.ensure_topic(name, 1)
    with kind(broker.address) as producer:
        first = producer.send(name, 1, key="k")
        delayed = producer.send(name, 2, key="k", delay_level=1)
        after = producer.send(name, 3, key="k")
    assert (first.offset, delayed.offset, after.offset) == (0, -1, 1)


# a topic that is created later


def test_the_next_message_finds_a_topic_that_was_created_meanwhile(
    broker: EmbeddedBroker, admin: Admin, kind: Open
) -> None:
    name = f"created-later-{kind.__name__}"
    with kind(broker.address) as producer:
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                producer.send(name, 1, key="k")
        admin.ensure_topic(name, ordered=True)
        assert producer.send(name, 1, key="k").offset == 0


@pytest.mark.parametrize("creates", [True, False])
def test_a_loop_of_refused_messages_does_not_flood_the_name_servers(kind: Open, creates: bool) -> None:
    """Also if the brokers create no topics, so that there is no provisional route."""
    with FakeBroker() as fake, kind(fake.address) as producer:
        if not creates:
            missing = (ResponseCode.TOPIC_NOT_EXIST, {}, b"")
            fake.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: missing
        began = time.monotonic()
        for _ in range(300):
            with pytest.raises(TopicNotFound):
                producer.send("ordrs", 1, key="k")
        seconds = 1 + int(time.monotonic() - began)
        assert fake.codes[RequestCode.GET_ROUTEINFO_BY_TOPIC] <= 2 * MISSING_QUESTIONS * (1 + seconds)
