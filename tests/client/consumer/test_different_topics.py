"""Members of one group that subscribe to different topics, with a real broker and default settings."""

from collections.abc import Callable

import pytest
from tests.client.consumer.with_broker import Inbox, wait_for

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.brokering.members.membership import Membership
from lanemq.model.errors import GroupConflict
from lanemq.testing.embedded import EmbeddedBroker

KEYS = 40


def member(broker: EmbeddedBroker, group: str, topics: list[str], inbox: Inbox) -> App:
    app = App(broker.address, group=group)
    for topic in topics:

        @app.ordered(topic)
        def on_event(event: int, message: Message) -> None:
            inbox.add((message.topic, message.key))

    return app


def send_all(broker: EmbeddedBroker, topics: list[str]) -> set[tuple[str, str]]:
    with Producer(broker.address) as producer:
        for topic in topics:
            for key in range(KEYS):
                producer.send(topic, key, key=str(key))
    return {(topic, str(key)) for topic in topics for key in range(KEYS)}


def create(broker: EmbeddedBroker, *topics: str) -> None:
    with Admin(broker.address) as admin:
        for topic in topics:
            admin.create_topic(topic, queues=8, ordered=True)


def shares(*apps: App) -> list[dict[str, int]]:
    """By member: topic → number of queues, without the retry topic."""
    found = []
    for app in apps:
        counts: dict[str, int] = {}
        for queue in app.snapshot().queues:
            if not queue.topic.startswith("%"):
                counts[queue.topic] = counts.get(queue.topic, 0) + 1
        found.append(counts)
    return found


def test_every_queue_is_consumed_while_a_deployment_adds_a_topic(broker: EmbeddedBroker, topic: str) -> None:
    old, new = f"{topic}-old", f"{topic}-new"
    create(broker, old, new)
    inbox, group = Inbox(), f"g-{topic}"
    with member(broker, group, [old], inbox) as first, member(broker, group, [old, new], inbox) as second:
        wait_for(lambda: shares(first, second) == [{old: 4}, {old: 4, new: 8}])
        sent = send_all(broker, [old, new])
        assert set(inbox.wait(len(sent))) == sent


def test_members_of_different_topics_consume_all_of_their_own(broker: EmbeddedBroker, topic: str) -> None:
    one, other = f"{topic}-one", f"{topic}-other"
    create(broker, one, other)
    inbox = Inbox()
    with member(broker, f"g-{topic}", [one], inbox) as first, member(broker, f"g-{topic}", [other], inbox) as second:
        wait_for(lambda: shares(first, second) == [{one: 8}, {other: 8}])
        sent = send_all(broker, [one, other])
        assert set(inbox.wait(len(sent))) == sent


def test_sharing_topics_among_all_members_would_leave_queues_out(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the broker answers with all members of the group, as RocketMQ does."""
    monkeypatch.setattr(Membership, "members_of", lambda self, group, topic: self.members(group))
    one, other = f"{topic}-one", f"{topic}-other"
    create(broker, one, other)
    inbox = Inbox()
    with member(broker, f"g-{topic}", [one], inbox) as first, member(broker, f"g-{topic}", [other], inbox) as second:
        wait_for(lambda: shares(first, second) == [{one: 4}, {other: 4}])


def test_members_that_share_as_rocketmq_does_are_warned_of_different_topics(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = f"{topic}-one", f"{topic}-other"
    create(broker, one, other)
    apps = [App(broker.address, group=f"g-{topic}", compat="rocketmq") for _ in range(2)]
    for app, subscribed in zip(apps, (one, other), strict=True):
        ordered(app, subscribed)
    with apps[0], apps[1]:
        wait_for(lambda: "subscribe to different topics" in caplog.text)


def ordered(app: App, topic: str) -> None:
    app.ordered(topic)(lambda event: None)


def concurrent(app: App, topic: str) -> None:
    app.concurrent(topic)(lambda event: None)


@pytest.mark.parametrize(("first", "second"), [(ordered, concurrent), (concurrent, ordered)])
def test_ordered_and_concurrent_members_are_refused_with_the_others_name(
    broker: EmbeddedBroker,
    topic: str,
    first: Callable[[App, str], None],
    second: Callable[[App, str], None],
) -> None:
    topic += "-ordered"
    topic = f"{topic}-shared"
    create(broker, topic)
    here = App(broker.address, group=f"g-{topic}", client_id="the-first")
    first(here, topic)
    with here:
        there = App(broker.address, group=f"g-{topic}")
        second(there, topic)
        with pytest.raises(GroupConflict, match=rf"member the-first consumes {topic}"):
            there.start()
        assert sum(shares(here)[0].values()) == 8, "the first member is not disturbed"
