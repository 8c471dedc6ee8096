"""Promise 7: a failing key holds only itself."""

import threading

import pytest
from tests.chaos.members import LocalGroup, key_in, until
from tests.chaos.system import GROUP, TOPIC
from tests.promises.backends import COORDINATED

from lanemq.checker.verdict import Verdict
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.message import Message
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey, HoldQueue
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue

BAD = key_in(0)
GOOD = next(f"g{n}" for n in range(1000) if f"g{n}" != BAD)
QUICK = Backoff(0.01, 1.0, 0.01)


class Broken:
    """A handler that fails for the first message of one key until it is repaired."""

    def __init__(self) -> None:
        self.mended = threading.Event()
        self.failures = 0

    def handle(self, message: Message) -> None:
        if message.key == BAD and message.value() == 0 and not self.mended.is_set():
            self.failures += 1
            raise ValueError("not yet")


def send_both(group: LocalGroup) -> None:
    """Three messages of the bad key and three of a good one, all in queue 0."""
    for number in range(3):
        for key in (BAD, GOOD):
            group.producer.send(TOPIC, number, key=key, queue=0)


def done(group: LocalGroup, key: str) -> list[int]:
    return [offset for _, each, offset in group.done if each == key]


def test_other_keys_of_the_queue_continue_and_successors_wait(group: LocalGroup) -> None:
    """ "A failing key holds only itself (HoldKey, the default).\""""
    send_both(group)
    broken = Broken()
    group.member("a", broken.handle, on_fail=HoldKey(retries=1_000, backoff=QUICK))
    until("the good key is through", lambda: done(group, GOOD) == [1, 3, 5])
    until("the bad key was tried often", lambda: broken.failures > 5)
    assert done(group, BAD) == []
    broken.mended.set()
    until("the bad key is through, in order", lambda: done(group, BAD) == [0, 2, 4])


def test_a_key_whose_retries_are_used_up_still_lets_no_message_pass(group: LocalGroup) -> None:
    """It waits for an operator; `resume` continues with the same message."""
    send_both(group)
    broken = Broken()
    app = group.member("a", broken.handle, on_fail=HoldKey(retries=2, backoff=QUICK))
    until("the retries are used up", lambda: any(each.lanes.parked for each in app.snapshot().queues.values()))
    assert broken.failures == 3
    assert done(group, BAD) == []
    broken.mended.set()
    assert app.resume(TOPIC, BAD)
    until("the bad key is through, in order", lambda: done(group, BAD) == [0, 2, 4])


def test_a_parked_key_is_redriven_in_order_before_newer_messages(group: LocalGroup) -> None:
    """ "The failed message and everything behind it ... on disk before the member lets the commit pass them.\""""
    send_both(group)
    broken = Broken()
    group.member("a", broken.handle, on_fail=HoldKey(retries=0))
    queue = MessageQueue(TOPIC, "lanemq", 0)
    with ParkedAdmin(group.address) as parked, Admin(group.address) as admin:
        until("the commit has passed them", lambda: admin.committed(GROUP, queue) == 6)
        (lane,) = parked.lanes(GROUP)
        assert [record.queue_offset for record in parked.messages(lane)] == [0, 2, 4]
        group.producer.send(TOPIC, 3, key=BAD, queue=0)
        until("the newer one joined", lambda: parked.lanes(GROUP)[0].messages == 4)
        assert done(group, BAD) == []
        broken.mended.set()
        assert parked.redrive(lane)
        until("the bad key is through, in order", lambda: done(group, BAD) == [0, 2, 4, 6])
        until("nothing is parked any more", lambda: not parked.lanes(GROUP))
    assert group.judge("parked=4", "redriven").verdict is Verdict.PASS


LONG = [pytest.param(6_000, marks=pytest.mark.slow), pytest.param(20_000, marks=pytest.mark.extended)]
"""Messages behind a failing one: more than a member keeps in memory."""
OTHERS = 2_000


def send_long(group: LocalGroup, behind: int) -> None:
    """The bad key's messages come first, then those of many good keys, all in queue 0."""
    group.producer.send(TOPIC, 0, key=BAD, queue=0)
    for number in range(behind):
        group.producer.submit(TOPIC, number + 1, key=BAD, queue=0)
    for number in range(OTHERS):
        group.producer.submit(TOPIC, number, key=f"good {number % 100}", queue=0)
    group.producer.flush()


def others(group: LocalGroup) -> int:
    return sum(key != BAD for _, key, _ in group.done)


@pytest.mark.parametrize("behind", LONG)
def test_a_held_key_blocks_only_itself_however_long_its_backlog(group: LocalGroup, behind: int) -> None:
    """Default settings: the lane waits at the broker, and continues by itself when its message succeeds."""
    send_long(group, behind)
    broken = Broken()
    group.member("a", broken.handle)
    until("all others are through", lambda: others(group) == OTHERS)
    with Admin(group.address) as admin, ParkedAdmin(group.address) as parked:
        queue = MessageQueue(TOPIC, "lanemq", 0)
        until("the commit passes the held lane", lambda: admin.committed(GROUP, queue) == behind + 1 + OTHERS)
        (lane,) = parked.lanes(GROUP)
        assert (lane.status, lane.messages, lane.first) == (LaneStatus.HELD, behind + 1, 0)
        assert done(group, BAD) == []
        broken.mended.set()
        until("the bad key is through", lambda: len(done(group, BAD)) == behind + 1)
        assert done(group, BAD) == list(range(behind + 1))
        until("the lane is gone", lambda: not parked.lanes(GROUP))
    assert group.judge("parked", "redriven").verdict is Verdict.PASS


@pytest.mark.parametrize("behind", LONG)
def test_a_parked_key_blocks_only_itself_however_long_its_backlog(group: LocalGroup, behind: int) -> None:
    send_long(group, behind)
    broken = Broken()
    group.member("a", broken.handle, on_fail=HoldKey(retries=1))
    until("all others are through", lambda: others(group) == OTHERS)
    with ParkedAdmin(group.address) as parked:
        until("all are parked", lambda: [lane.messages for lane in parked.lanes(GROUP)] == [behind + 1])
        (lane,) = parked.lanes(GROUP)
        assert lane.status is LaneStatus.PARKED
        broken.mended.set()
        assert parked.redrive(lane)
        until("the bad key is through", lambda: len(done(group, BAD)) == behind + 1)
        assert done(group, BAD) == list(range(behind + 1))
        until("the lane is gone", lambda: not parked.lanes(GROUP))
    assert group.judge("parked", "redriven").verdict is Verdict.PASS


def test_a_lane_that_is_not_set_aside_blocks_its_queue(group: LocalGroup) -> None:
    """Negative control: the messages behind the failing one fill the member's cache."""
    send_long(group, 6_000)
    broken = Broken()
    app = group.member("a", broken.handle, on_fail=HoldKey(keep=1_000_000))
    full = 900 if COORDINATED else 4_000  # a member reads less ahead at an Apache broker
    until("the cache is full", lambda: sum(each.lanes.cached.count for each in app.snapshot().queues.values()) > full)
    until("it was tried again", lambda: broken.failures > 3)
    assert others(group) == 0
    assert done(group, BAD) == []


def test_hold_queue_holds_everything_behind_the_failure(group: LocalGroup) -> None:
    """ "HoldQueue is RocketMQ's suspend": what the default avoids."""
    send_both(group)
    broken = Broken()
    group.member("a", broken.handle, on_fail=HoldQueue(retries=1_000, suspend=0.01))
    until("it was tried often", lambda: broken.failures > 5)
    assert group.done == []
    broken.mended.set()
    until("all are through", lambda: [offset for _, _, offset in group.done] == [0, 1, 2, 3, 4, 5])


@pytest.mark.row("A109")
def test_only_dead_letter_with_skip_lets_successors_pass(group: LocalGroup) -> None:
    """ "DeadLetter(skip=True) is the only policy that lets successors pass, and its name says so.\""""
    send_both(group)
    broken = Broken()
    group.member("a", broken.handle, on_fail=DeadLetter(skip=True, hold=HoldKey(retries=2, backoff=QUICK)))
    until("the successors pass", lambda: done(group, BAD) == [2, 4])
    assert broken.failures == 3


def test_a_handler_that_swallows_its_errors_lets_successors_overtake(group: LocalGroup) -> None:
    """Negative control: without a policy, people log the error and continue."""
    send_both(group)
    broken = Broken()
    failed: list[int] = []

    def careless(message: Message) -> None:
        try:
            broken.handle(message)
        except ValueError:
            failed.append(message.queue_offset)

    group.member("a", careless)
    until("all were handled", lambda: len(group.done) == 6)
    assert failed == [0]
    assert done(group, BAD) == [0, 2, 4], "its successors ran although it never succeeded"
