"""Members join and leave on purpose: nothing is delivered twice, and queues that stay do not pause."""

import threading
from functools import partial
from itertools import pairwise

import pytest
from tests.chaos.members import TIMEOUT, LocalGroup, key_in, until
from tests.chaos.system import TOPIC, Child, SystemUnderTest, complaint

from lanemq.checker.verdict import Report, Verdict
from lanemq.client.message import Message
from lanemq.model.queue import MessageQueue

MAX_WAIT_SECONDS = 10.0
"""Time from a stored message to its turn. An idle machine takes milliseconds (`benchmarks.lanes_restart`), a busy one
seconds; a timer would take twenty."""


def all_own_something(system: SystemUnderTest, *names: str) -> bool:
    return set(names) == set(system.owners().values())


def works(system: SystemUnderTest, name: str, after: int = 0) -> bool:
    return len(system.seen("turn", name, after)) > 20


def has_all_again(system: SystemUnderTest, after: int) -> bool:
    return all_own_something(system, "a") and works(system, "a", after)


def settle(system: SystemUnderTest, producer: Child, *consumers: Child) -> Report:
    """Waits until everything is done, stops all processes, and returns the checker's report."""
    system.finish(producer)
    system.until("everything is done", system.is_drained)
    system.finish(*consumers)
    return system.judge("rebalance")


@pytest.mark.slow
@pytest.mark.row("A8")
@pytest.mark.row("A91")
@pytest.mark.parametrize(
    "whole_queue",
    [pytest.param(True, id="order by queue", marks=pytest.mark.extended), pytest.param(False, id="order by key")],
)
def test_rolling_restarts_keep_order_and_redeliver_nothing(system: SystemUnderTest, whole_queue: bool) -> None:
    """A clean stop costs neither order nor duplicates."""
    system.broker(default_queues=4)
    producer = system.producer(pause_ms=2, keys=60)
    system.until("something is stored", lambda: system.seen("acked"))
    running = {n: system.consumer(f"{n}-0", work_ms=2, whole_queue=whole_queue) for n in "abc"}
    for n in "abc":
        system.until(f"{n} works", lambda n=n: works(system, f"{n}-0"))
    for round in (1, 2):
        for n in "abc":
            system.finish(running[n])
            running[n] = system.consumer(f"{n}-{round}", work_ms=2, whole_queue=whole_queue)
            system.until(f"{n} is back", lambda n=n, round=round: works(system, f"{n}-{round}"))
    report = settle(system, producer, *running.values())
    assert report.verdict is Verdict.PASS, complaint(report)
    assert report.coverage["rebalance"] >= 6
    assert report.groups["chaos"].redelivered == {}


@pytest.mark.slow
@pytest.mark.row("A53")
def test_queues_that_stay_do_not_pause_while_members_join_and_leave(system: SystemUnderTest) -> None:
    system.broker(default_queues=4)
    producer = system.producer(pause_ms=2, keys=40)
    system.until("something is stored", lambda: system.seen("acked"))
    first = system.consumer("a")
    system.until("a works", lambda: works(system, "a"))
    for name in ("b", "c", "b-again"):
        guest = system.consumer(name)
        system.until(f"{name} works", lambda name=name: works(system, name))
        system.finish(guest)
        gone_at = system.seen("turn_end")[-1]["t"]
        system.until("a has everything again", partial(has_all_again, system, gone_at))
    kept = kept_by(system, "a")
    assert kept, "no queue stayed: the test shows nothing"
    waits = {queue: longest_wait(system, "a", queue) for queue in kept}
    report = settle(system, producer, first)
    assert report.verdict is Verdict.PASS, complaint(report)
    assert max(waits.values()) < MAX_WAIT_SECONDS, waits


def kept_by(system: SystemUnderTest, name: str) -> set[int]:
    """Queues that this member was granted once and never released."""
    granted = [e["queue"] for e in system.seen("lease_granted", name) if e["topic"] == "orders"]
    return {queue for queue in granted if granted.count(queue) == 1}


def longest_wait(system: SystemUnderTest, name: str, queue: int) -> float:
    """The longest time in seconds between a stored message and its turn; a slow disk or sender is no pause."""
    stored = {e["offset"]: e["t"] for e in system.seen("acked") if e["queue"] == queue}
    turns = [(e["t"], stored.get(e["offset"], e["t"])) for e in system.seen("turn", name) if e["queue"] == queue]
    return max(began - max(before, stored) for (before, _), (began, stored) in pairwise(turns)) / 1e9


def test_a_queue_that_stays_goes_on_while_the_hand_over_of_another_is_stuck(group: LocalGroup) -> None:
    """The same without a clock: while its handler is blocked, a queue cannot be released."""
    moving, staying = key_in(3), key_in(0)
    inside, go = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.key == moving:
            inside.set()
            assert go.wait(TIMEOUT)

    group.producer.send(TOPIC, 0, key=moving)
    a = group.member("a", handle)
    until("a is inside", inside.is_set)
    group.member("b", handle)
    leaving = MessageQueue(TOPIC, "lanemq", 3)
    until("a gives the queue up", lambda: a.snapshot().queues[leaving].lanes.draining)
    for number in range(20):
        group.producer.send(TOPIC, number, key=staying)
    until("the other queue is through", lambda: [key for _, key, _ in group.done] == [staying] * 20)
    assert {name for name, _, _ in group.done} == {"a"}
    go.set()
    until("the handler has ended", lambda: len(group.done) == 21)
