"""Members of one group that read a topic with different tags, with a real broker and default settings."""

import signal
import subprocess
import sys
import threading

import pytest
from tests.broker.raw_client import RawClient, heartbeat
from tests.client.consumer.with_broker import WAIT, Inbox, wait_for

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.consumer.turns.handler import Retry
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.model.errors import GroupConflict
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.bodies import HeartbeatData
from lanemq.wire.codes import RequestCode

KEYS = 20


def member(broker: EmbeddedBroker, topic: str, tags: str, inbox: Inbox, *, ordered: bool = True) -> App:
    app = App(broker.address, group=f"g-{topic}", client_id=f"{tags} {id(inbox):x}".replace("|", "-"))
    register = app.ordered if ordered else app.concurrent

    @register(topic, tags=tags)
    def on_event(event: int, message: Message) -> None:
        inbox.add((message.tag, event))

    return app


def queues(*apps: App) -> list[int]:
    """How many queues of the topic each member has."""
    return [sum(not each.topic.startswith("%") for each in app.snapshot().queues) for app in apps]


def send(broker: EmbeddedBroker, topic: str, first: int = 0) -> set[tuple[str, int]]:
    """Sends a message with each tag for each key."""
    with Producer(broker.address) as producer:
        for event in range(first, first + KEYS):
            producer.send(topic, event, key=str(event), tag="a")
            producer.send(topic, event, key=str(event), tag="b")
    return {(tag, event) for tag in "ab" for event in range(first, first + KEYS)}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("wider", ["a || b", "*"])
def test_a_deployment_that_adds_a_tag_misses_no_message(
    broker: EmbeddedBroker, topic: str, wider: str, ordered: bool
) -> None:
    old, new = Inbox(), Inbox()
    with member(broker, topic, "a", old, ordered=ordered) as first:
        wait_for(lambda: queues(first) == [4])
        with member(broker, topic, wider, new, ordered=ordered) as second:
            sent = send(broker, topic)
            wait_for(lambda: sent <= {*old.items, *new.items})
            wait_for(lambda: queues(first, second) == [0, 4])


def test_a_deployment_that_removes_a_tag_hands_over_when_the_last_wider_member_stops(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Inbox(), Inbox()
    with member(broker, topic, "a || b", old) as first, member(broker, topic, "b", new) as second:
        wait_for(lambda: queues(first, second) == [4, 0])
        wait_for(lambda: f"no queue of {topic} for this member now: it reads tags 'b'" in caplog.text)
        sent = send(broker, topic)
        assert set(old.wait(len(sent))) == sent
        first.stop()
        wait_for(lambda: queues(second) == [4])
        sent = send(broker, topic, first=KEYS)
        assert set(new.wait(KEYS)) == {each for each in sent if each[0] == "b"}, "nothing runs twice"


def test_a_rollback_gives_the_queues_back_to_the_narrower_members(broker: EmbeddedBroker, topic: str) -> None:
    old, new = Inbox(), Inbox()
    with member(broker, topic, "a", old) as first:
        with member(broker, topic, "*", new) as second:
            wait_for(lambda: queues(first, second) == [0, 4])
        wait_for(lambda: queues(first) == [4])
        send(broker, topic)
        assert set(old.wait(KEYS)) == {("a", event) for event in range(KEYS)}


def test_messages_wait_for_a_member_with_more_tags_that_was_killed(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Inbox(), Inbox()
    with member(broker, topic, "a", old) as first:
        wait_for(lambda: queues(first) == [4])
        join_and_die(broker, topic, "a||b")
        wait_for(lambda: "was lost (silent, cut off or killed)" in caplog.text and queues(first) == [0])
        sent = send(broker, topic)
        with member(broker, topic, "a || b", new) as second:
            wait_for(lambda: queues(second) == [4])
            assert set(new.wait(len(sent))) == sent
        wait_for(lambda: queues(first) == [4])
    assert old.items == []


@pytest.mark.parametrize("crash", [True, False])
def test_messages_wait_for_a_member_with_more_tags_that_is_back_later_than_the_broker(
    topic: str, caplog: pytest.LogCaptureFixture, crash: bool
) -> None:
    old, new = Inbox(), Inbox()
    with EmbeddedBroker() as broker, member(broker, topic, "a", old) as first:
        with Admin(broker.address) as admin:
            admin.create_topic(topic, 4)
        wait_for(lambda: queues(first) == [4])
        join_and_die(broker, topic, "a||b")
        if crash:
            broker.kill()
        broker.restart()
        wait_for(lambda: "a member from before the broker's start, which reads" in caplog.text)
        sent = send(broker, topic)
        with member(broker, topic, "a || b", new) as second:
            wait_for(lambda: queues(first, second) == [0, 4])
            assert set(new.wait(len(sent))) == sent
        wait_for(lambda: queues(first) == [4])
    assert old.items == []


def join_and_die(broker: EmbeddedBroker, topic: str, tags: str) -> None:
    """What a broker sees of an ordered member that is killed right after its start."""
    raw = RawClient(str(broker.address))
    body = HeartbeatData.of_request(heartbeat("killed", f"g-{topic}", {topic: tags}))
    body.consumer_data_set[0].subscription_data_set[0].lane_ordered = True
    assert raw.ask(RequestCode.HEART_BEAT, {}, body.encode()).code == 0
    raw.close()


def test_a_running_handler_ends_before_the_wider_member_begins(broker: EmbeddedBroker, topic: str) -> None:
    old, new, may_end = Inbox(), Inbox(), threading.Event()
    app = App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, tags="a")
    def on_event(event: int) -> None:
        old.add(event)
        may_end.wait()

    with app:
        wait_for(lambda: queues(app) == [4])
        with Producer(broker.address) as producer:
            producer.send(topic, 1, key="k", tag="a")
            old.wait(1)
            with member(broker, topic, "*", new) as second:
                wait_for(lambda: queues(second) == [3])
                producer.send(topic, 2, key="k", tag="b")
                assert not new.items
                may_end.set()
                assert new.wait(1) == [("b", 2)], "the first message was finished, and its offset committed"


def test_a_skipped_message_does_not_come_back_behind_newer_ones_of_its_key(broker: EmbeddedBroker, topic: str) -> None:
    """Another key of the queue waits, so the committed offset is before all of them."""
    old, new, failed = Inbox(), Inbox(), threading.Event()
    app = App(broker.address, group=f"g-{topic}")

    @app.ordered(topic, tags="a")
    def on_event(event: int, message: Message) -> None:
        if message.key == "waits":
            failed.set()
            raise Retry(after=60)
        old.add(event)

    with Producer(broker.address) as producer:
        queue = producer.send(topic, 0, key="waits", tag="a").queue
        key = next(key for key in map(str, range(100)) if producer.send(topic, 0, key=key, tag="z").queue == queue)
        producer.send(topic, 1, key=key, tag="b")
        producer.send(topic, 2, key=key, tag="a")
        with app:
            assert old.wait(1) == [2]
            assert failed.wait(30)
            with member(broker, topic, "a || b", new):
                producer.send(topic, 3, key=key, tag="b")
                assert set(new.wait(2)) == {("a", 0), ("b", 3)}, "the key that waited, and what was sent since"


KILLED_IN_HANDLER = """
import os, signal, sys
from lanemq import App
from lanemq.client.consumer.turns.handler import Retry

address, topic, group, tags = sys.argv[1:]
app = App(address, group=group)

@app.ordered(topic, tags=tags)
def on_event(event: int) -> None:
    if event == 0:
        raise Retry(after=60)
    os.kill(os.getpid(), signal.SIGKILL)

app.run()
"""
"""A member that is killed before it has reported anything."""


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [True, False])
def test_what_a_killed_member_left_out_does_not_come_back_behind_newer_messages_of_its_key(
    broker: EmbeddedBroker, topic: str, waiting: bool
) -> None:
    """With and without a key that waits before it, at which the committed offset would stay."""
    new, group = Inbox(), f"g-{topic}"
    with Producer(broker.address) as producer:
        with member(broker, topic, "a", Inbox()):  # the group has an offset in the queue
            queue = producer.send(topic, -1, key="waits", tag="a").queue
            with PullConsumer(broker.address, group=group) as reader:
                wait_for(lambda: reader.committed(queue))
        producer.send(topic, 0, key="waits", tag="a" if waiting else "z")
        key = next(key for key in map(str, range(100)) if producer.send(topic, 0, key=key, tag="z").queue == queue)
        producer.send(topic, 1, key=key, tag="b")
        producer.send(topic, 2, key=key, tag="a")
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_IN_HANDLER, str(broker.address), topic, group, "a"], timeout=WAIT, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        with member(broker, topic, "a || b", new):
            producer.send(topic, 3, key=key, tag="b")
            got = new.wait(3 if waiting else 2)
        assert got.index(("a", 2)) < got.index(("b", 3))
        assert set(got) == {("a", 2), ("b", 3)} | ({("a", 0)} if waiting else set()), "1 was passed when 2 arrived"


@pytest.mark.slow
def test_what_a_killed_member_left_out_is_known_after_a_restart_of_the_broker(topic: str) -> None:
    """It is finished, and stored, as soon as the connection is lost."""
    new, group = Inbox(), f"g-{topic}"
    with EmbeddedBroker() as broker, Producer(broker.address, create=[topic]) as producer:
        with member(broker, topic, "a", Inbox()), PullConsumer(broker.address, group=group) as reader:
            queue = producer.send(topic, 0, key="k", tag="a").queue
            wait_for(lambda: reader.committed(queue))
        passed = producer.send(topic, 1, key="k", tag="b").offset
        producer.send(topic, 2, key="k", tag="a")
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_IN_HANDLER, str(broker.address), topic, group, "a"], timeout=WAIT, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        with PullConsumer(broker.address, group=group) as reader:
            wait_for(lambda: reader.committed(queue) == passed + 1)
        broker.stop()
        broker.restart()
        with member(broker, topic, "a || b", new):
            producer.send(topic, 3, key="k", tag="b")
            assert new.wait(2) == [("a", 2), ("b", 3)]


def test_members_of_which_neither_reads_all_of_the_other_are_refused_with_the_way_out(
    broker: EmbeddedBroker, topic: str
) -> None:
    with member(broker, topic, "a", Inbox()) as first:
        with pytest.raises(GroupConflict, match=r"Deploy 'a \|\| b' first, and 'b' when no member with 'a' is left"):
            member(broker, topic, "b", Inbox()).start()
        assert queues(first) == [4]
