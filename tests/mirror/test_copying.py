"""A mirror between two brokers."""

import threading

import pytest
from tests.mirror.pair import Pair, by_key, send, stored

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.producer.producer import Producer
from lanemq.mirror import copying
from lanemq.mirror.copying import Mirror
from lanemq.mirror.verifying import compare
from lanemq.model.errors import NotAllowed, OrderError, RequestTimedOut, TopicNotFound


@pytest.mark.parametrize("there", [4, 7])
def test_every_key_arrives_in_order_whatever_the_numbers_of_queues(pair: Pair, there: int) -> None:
    topic = f"to-{there}-queues"
    pair.create(topic, 4, there)
    send(pair.source, topic, 500)
    assert pair.drain(topic).copied == 500
    assert by_key(pair.target, topic) == by_key(pair.source, topic)
    assert compare(pair.options(topic)).equal


def test_a_copy_is_what_consumers_saw_at_the_source(pair: Pair) -> None:
    pair.create("alike", 2, 2)
    with Producer(pair.source) as producer:
        producer.send("alike", {"n": 1}, key="a", tag="paid", keys=["w1", "w2"], properties={"color": "red"})
        producer.send("alike", "x" * 10_000, key="a")
        producer.send("alike", b"\x00\xff", key="b")
    pair.drain("alike")

    def seen(address: str) -> list[tuple[object, ...]]:
        return [
            (
                each.key,
                each.tag,
                each.keys,
                each.body,
                each.message_id,
                each.queue.queue_id,
                each.properties.get("color"),
            )
            for each in stored(address, "alike")
        ]

    assert seen(pair.target) == seen(pair.source)


def test_messages_without_a_key_stay_in_their_queue(pair: Pair) -> None:
    pair.create("keyless", 3, 3, ordered=False)
    with Producer(pair.source) as producer:
        for number in range(30):
            producer.send("keyless", {"n": number})
    pair.drain("keyless")
    assert [(each.queue.queue_id, each.value()) for each in stored(pair.target, "keyless")] == [
        (each.queue.queue_id, each.value()) for each in stored(pair.source, "keyless")
    ]


def test_a_second_run_copies_only_what_is_new(pair: Pair) -> None:
    pair.create("twice", 4, 3)
    send(pair.source, "twice", 100)
    assert pair.drain("twice").copied == 100
    assert pair.drain("twice").copied == 0
    send(pair.source, "twice", 50, first=100)
    assert pair.drain("twice").copied == 50
    assert by_key(pair.target, "twice") == by_key(pair.source, "twice")


def test_a_running_mirror_copies_what_is_sent(pair: Pair) -> None:
    pair.create("running")
    reports = []
    seen = threading.Event()

    def tell(report: copying.MirrorReport) -> None:
        reports.append(report)
        if report.copied >= 300 and report.left == 0:
            seen.set()

    mirror = Mirror(pair.options("running"), report=tell)
    thread = threading.Thread(target=mirror.run)
    thread.start()
    try:
        send(pair.source, "running", 300)
        assert seen.wait(60)
    finally:
        mirror.stop()
        thread.join(60)
    assert by_key(pair.target, "running") == by_key(pair.source, "running")


def test_what_came_from_the_target_is_not_copied_back(pair: Pair) -> None:
    pair.create("there-and-back")
    send(pair.source, "there-and-back", 40)
    pair.drain("there-and-back")
    send(pair.target, "there-and-back", 20, first=40)
    assert pair.drain("there-and-back", back=True).copied == 20
    assert pair.drain("there-and-back").copied == 0
    assert by_key(pair.source, "there-and-back") == by_key(pair.target, "there-and-back")


def test_a_lost_answer_ends_the_session_and_the_next_one_finds_the_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lanemq.mirror.ends import TargetLink
    from lanemq.model.errors import RequestTimedOut
    from lanemq.wire.command import Command

    pair.create("lost-answer", 2, 3)
    send(pair.source, "lost-answer", 200)
    sent, real = [], TargetLink.send

    def sends(link: TargetLink, command: Command) -> Command:
        reply = real(link, command)
        sent.append(command)
        if len(sent) % 3 == 2:
            raise RequestTimedOut("the answer is lost")
        return reply

    monkeypatch.setattr(TargetLink, "send", sends)
    report = pair.drain("lost-answer")
    assert report.sessions > 1
    assert by_key(pair.target, "lost-answer") == by_key(pair.source, "lost-answer")
    assert compare(pair.options("lost-answer")).equal


def test_a_mirror_that_does_not_read_the_target_stores_messages_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of every test above that resumes."""
    pair.create("control")
    send(pair.source, "control", 100)
    pair.drain("control")
    monkeypatch.setattr("lanemq.mirror.arrivals.Arrivals.see", lambda *_: None)
    pair.drain("control")
    found = compare(pair.options("control"))
    assert len(found.differences) == 10
    assert "repeats source offset" in found.differences[0]


def test_messages_that_the_source_deleted_before_they_were_copied_are_not_skipped_silently(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.create("gap", 1, 1)
    send(pair.source, "gap", 50)
    from lanemq.mirror.ends import Side

    real = Side.read
    monkeypatch.setattr(Side, "read", lambda *given: [each for each in real(*given) if each.queue_offset >= 7])
    with pytest.raises(copying.MissingMessages, match="messages 0 to 6 were deleted at the source"):
        pair.drain("gap")


def test_a_topic_that_does_not_exist_is_an_error_at_once(pair: Pair) -> None:
    with Admin(pair.source) as admin:
        admin.create_topic("only-here", 2)
    with pytest.raises(TopicNotFound, match="only-here"):
        pair.drain("only-here")


def test_a_topic_that_refuses_sends_is_an_error_and_messages_can_still_be_read(pair: Pair) -> None:
    pair.create("sealed")
    send(pair.source, "sealed", 10)
    for address in (pair.source, pair.target):
        with Admin(address) as admin:
            admin.set_writable("sealed", writable=False)
    with Producer(pair.source, delivery_timeout=5) as producer, pytest.raises(NotAllowed):
        producer.send("sealed", {"n": 1}, key="k1")
    with pytest.raises(NotAllowed):
        pair.drain("sealed")
    with Admin(pair.target) as admin:
        admin.set_writable("sealed", writable=True)
    assert pair.drain("sealed").copied == 10


def test_a_source_topic_that_was_created_again_is_refused(pair: Pair) -> None:
    pair.create("again", 1, 1)
    send(pair.source, "again", 10)
    pair.drain("again")
    with Admin(pair.source) as admin:
        admin.delete_topic("again")
        admin.create_topic("again", 1, ordered=True)
    with pytest.raises(OrderError, match="was deleted and created again"):
        pair.drain("again")


def test_a_globally_ordered_topic_stays_so_when_it_refuses_sends(pair: Pair) -> None:
    with Admin(pair.source) as admin:
        admin.create_topic("global", ordered="global")
        admin.set_writable("global", writable=False)
        admin.set_writable("global", writable=True)
        with pytest.raises(Exception, match="globally ordered"):
            admin.create_topic("global", 2, ordered="global")


def test_a_queue_that_gives_nothing_before_its_end_is_an_error_and_not_a_short_queue(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is behind, or messages that are stored and not readable yet."""
    pair.create("stalled", 1, 1)
    send(pair.source, "stalled", 10)
    pair.drain("stalled")
    monkeypatch.setattr(PullConsumer, "_pull", lambda *_, **__: [])
    with pytest.raises(RequestTimedOut, match="has messages up to offset 10, and none can be read from offset 0 on"):
        compare(pair.options("stalled"))
