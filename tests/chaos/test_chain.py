"""The steps that keep a key in order, and what weaker ways of consuming do to it."""

import threading

import pytest
from tests.chaos.members import TIMEOUT, LocalGroup, key_in, owns, until
from tests.chaos.system import GROUP, TOPIC, complaint

from lanemq.checker.verdict import Verdict
from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.push_consumer import PushConsumer
from lanemq.client.consumer.turns.handler import ConcurrentlyContext, ConcurrentlyStatus, Retry
from lanemq.client.message import Message
from lanemq.core.consuming.queue_lease import LeaseTimes
from lanemq.core.consuming.retry_policy import HoldQueue


@pytest.mark.row("A2")
@pytest.mark.row("A6")
@pytest.mark.row("A16")
def test_every_step_keeps_the_order_of_a_key_but_not_between_keys(group: LocalGroup) -> None:
    """Send, store, fetch, handle: 10 orders with 10 steps each, sent round robin as in RocketMQ's sample."""
    seen: list[Message] = []
    receipts = [
        group.producer.send(TOPIC, {"step": n // 10}, key=f"order-{n % 10}", tag="ABCDE"[n % 5]) for n in range(100)
    ]
    group.member("a", seen.append)
    until("all are done", lambda: len(group.done) == 100)
    for number in range(10):
        key = f"order-{number}"
        own = [each for each in receipts if each.key == key]
        assert len({each.queue for each in own}) == 1, "one key, one queue"
        offsets = [each.offset for each in own]
        assert offsets == sorted(offsets), "stored as sent"
        handled = [each for each in seen if each.key == key]
        assert [each.queue_offset for each in handled] == offsets, "fetched and begun as stored"
        assert [each.value()["step"] for each in handled] == list(range(10))
        assert [offset for _, k, offset in group.done if k == key] == offsets, "ended as begun"
    assert [each.key for each in seen] != [each.key for each in receipts], "between keys nothing is promised"


@pytest.mark.row("A1")
def test_one_queue_is_one_order(group: LocalGroup) -> None:
    """Global order: one queue, one sender, one lane, and nothing in parallel."""
    for number in range(500):
        group.producer.send_oneway(TOPIC, number, key=f"k{number % 7}", queue=0)
    group.producer.flush()
    seen: list[int] = []
    group.member("a", lambda message: seen.append(message.value()), on_fail=HoldQueue())
    until("all are done", lambda: len(seen) == 500)
    assert seen == list(range(500))


@pytest.mark.row("A3")
@pytest.mark.parametrize("queue_of_the_other", [0, 1], ids=["same queue", "another queue"])
def test_a_slow_key_does_not_delay_another(group: LocalGroup, queue_of_the_other: int) -> None:
    slow, go = key_in(0), threading.Event()
    other = next(f"o{n}" for n in range(1000) if f"o{n}" != slow and _queue(group, f"o{n}") == queue_of_the_other)

    def handle(message: Message) -> None:
        assert message.key != slow or go.wait(TIMEOUT)

    group.producer.send(TOPIC, 0, key=slow)
    group.member("a", handle)
    for number in range(50):
        group.producer.send(TOPIC, number, key=other)
    until("the other key is through", lambda: sum(key == other for _, key, _ in group.done) >= 50)
    assert slow not in {key for _, key, _ in group.done}
    go.set()


def _queue(group: LocalGroup, key: str) -> int:
    return group.producer.send(TOPIC, "which queue?", key=key).queue.queue_id


@pytest.mark.row("A4")
@pytest.mark.row("A44")
def test_members_run_their_queues_in_parallel_and_never_two_handlers_of_one_queue(group: LocalGroup) -> None:
    """Order by queue only prevents concurrency within a queue."""
    together, active = threading.Barrier(4), dict.fromkeys(range(4), 0)
    lock, crowded = threading.Lock(), []

    def handle(message: Message) -> None:
        number = message.queue.queue_id
        if message.value() == "makes the topic":
            return
        with lock:
            active[number] += 1
            if active[number] > 1:
                crowded.append(message.queue_offset)
        together.wait(TIMEOUT)
        with lock:
            active[number] -= 1

    group.producer.send(TOPIC, "makes the topic", key="k")
    members = [group.member(name, handle, on_fail=HoldQueue()) for name in "abcd"]
    until("every member has its queue", lambda: all(owns(app, n) for n, app in enumerate(members)))
    keys = [key_in(number) for number in range(4)]
    for number, key in enumerate(keys):
        for _ in range(5):
            assert group.producer.send(TOPIC, 0, key=key).queue.queue_id == number
    until("all are done", lambda: len(group.done) == 21)
    assert not crowded
    assert [sum(name == each for name, _, _ in group.done[1:]) for each in "abcd"] == [5, 5, 5, 5]


@pytest.mark.row("A21")
@pytest.mark.parametrize(("threads", "expected"), [(4, [1, 0]), (1, [0, 1])], ids=["inverts", "keeps order"])
def test_a_concurrent_listener_keeps_order_only_with_one_thread(
    group: LocalGroup, threads: int, expected: list[int]
) -> None:
    second, ended = threading.Event(), []

    def listener(messages: object, context: ConcurrentlyContext) -> ConcurrentlyStatus:
        (message,) = messages  # type: ignore[misc]
        if message.value() == 0:
            second.wait(0.3 if threads == 1 else TIMEOUT)
        ended.append(message.value())
        second.set()
        return ConcurrentlyStatus.CONSUME_SUCCESS

    for number in range(2):
        group.producer.send(TOPIC, number, key="k")
    consumer = PushConsumer(group.address, group="stock", consume_threads=threads, start=StartFrom.FIRST)
    consumer.subscribe(TOPIC)
    consumer.register_concurrent(listener)
    consumer.start()
    try:
        until("both are done", lambda: len(ended) == 2)
    finally:
        consumer.shutdown()
    assert ended == expected


@pytest.mark.row("A101")
def test_a_handler_can_wait_for_what_must_come_first(group: LocalGroup) -> None:
    """A handler retries "shipped" until "paid", which has another key, has arrived."""
    paid, tries = threading.Event(), []

    def handle(message: Message) -> None:
        if message.value() == "paid":
            paid.set()
        elif message.value() == "shipped":
            tries.append(message.queue_offset)
            if not paid.is_set():
                raise Retry(after=0.01)

    shipped = group.producer.send(TOPIC, "shipped", key=key_in(0))
    behind = group.producer.send(TOPIC, "behind", key=key_in(0))
    group.member("a", handle)
    until("it was tried in vain", lambda: len(tries) > 1)
    assert not group.done
    group.producer.send(TOPIC, "paid", key=key_in(1))
    until("all are done", lambda: len(group.done) == 3)
    own = [offset for _, key, offset in group.done if key == key_in(0)]
    assert own == [shipped.offset, behind.offset]


@pytest.mark.row("A91")
def test_after_a_close_the_other_member_owns_everything_at_once(group: LocalGroup) -> None:
    """No lease and no timer could end so soon."""
    group.producer.send(TOPIC, 0, key="k")
    slow = {"lease_times": LeaseTimes(1, 50, 60)}
    a, b = group.member("a", **slow), group.member("b", **slow)
    until("both have their share", lambda: owns(a, 0) and owns(b, 3))
    a.stop()
    with Admin(group.address) as admin:
        assert "a" not in {lease.owner for lease in admin.locks(GROUP)}, "they are given back, not left to expire"
    until("b has all", lambda: all(owns(b, number) for number in range(4)), seconds=40)


@pytest.mark.row("A8")
@pytest.mark.row("A117")
def test_after_a_crash_a_queue_is_replayed_from_its_committed_offset_without_a_gap(group: LocalGroup) -> None:
    """Duplicates are contiguous from the committed offset on; then new messages follow in order, without a gap."""
    for number in range(200):
        group.producer.send_oneway(TOPIC, number, key=f"k{number % 5}", queue=0)
    group.producer.flush()
    stop, seen = threading.Event(), dict[str, list[int]](a=[], b=[])

    def slow(message: Message) -> None:
        seen["a"].append(message.queue_offset)
        if len(seen["a"]) > 100:
            stop.wait(TIMEOUT)

    a = group.member("a", slow, on_fail=HoldQueue())
    until("a hangs at the 101st", lambda: len(seen["a"]) == 101)
    a.stop(now=True)
    group.member("b", lambda message: seen["b"].append(message.queue_offset), on_fail=HoldQueue())
    until("b is through", lambda: 199 in seen["b"])
    assert seen["a"] == list(range(101))
    assert seen["b"] == list(range(seen["b"][0], 200))
    assert seen["b"][0] <= 100, "what was not finished is not skipped"
    report = group.judge()
    stop.set()
    assert report.verdict is Verdict.PASS, complaint(report)


def test_a_clean_stop_redelivers_nothing_although_a_key_is_slow(group: LocalGroup) -> None:
    """The second message of the slow key is the first unfinished one; twenty behind it are finished."""
    slow = key_in(0)
    for number in range(2):
        group.producer.send(TOPIC, number, key=slow, queue=0)
    for number in range(20):
        group.producer.send(TOPIC, number, key="quick", queue=0)
    go = threading.Event()

    def handle(message: Message) -> None:
        assert message.key != slow or go.wait(TIMEOUT)

    a = group.member("a", handle)
    until("the quick key is through", lambda: len(group.done) == 20)
    stopping = threading.Thread(target=a.stop)
    stopping.start()
    until("a drains", lambda: any(each.lanes.draining for each in a.snapshot().queues.values()))
    go.set()
    stopping.join(TIMEOUT)
    group.member("b")
    until("the lagging key is through", lambda: ("b", slow, 1) in group.done)
    last = group.producer.send(TOPIC, "behind all", key="last", queue=0).offset
    until("b is through", lambda: ("b", "last", last) in group.done)
    assert [each for each in group.done if each[1] == "quick" and each[0] == "b"] == []


def test_a_member_stopped_at_once_starts_nothing_more(group: LocalGroup) -> None:
    """Its handler cannot be interrupted, but the rest of its run belongs to the next owner."""
    for number in range(50):
        group.producer.send_oneway(TOPIC, number, key="k")
    group.producer.flush()
    go, inside, began = threading.Event(), threading.Event(), []

    def handle(message: Message) -> None:
        began.append(message.queue_offset)
        inside.set()
        go.wait(TIMEOUT)

    before = set(threading.enumerate())
    a = group.member("a", handle)
    until("a is inside", inside.is_set)
    workers = [each for each in set(threading.enumerate()) - before if each.name.startswith(f"lanemq-{TOPIC}")]
    a.stop(now=True)
    go.set()
    for worker in workers:
        worker.join(TIMEOUT)
    assert began == [0]
