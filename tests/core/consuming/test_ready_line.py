"""Queues are served in turn; one that may not run is skipped, and none waits for the backlog of another."""

from tests.core.consuming.scheduler_fixture import Msg, Q, R

from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.ready_line import ReadyLine
from lanemq.core.consuming.retry_policy import Again
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, NOT_LEASED, Lane, LaneOptions, Order
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

NOW = Millis(100)


def home(queue: MessageQueue = Q) -> LaneQueue[Msg]:
    """A queue with one message."""
    made: LaneQueue[Msg] = LaneQueue(queue, QueueOffset(0), NO_LEASE_NEEDED, LaneOptions(order=Order.QUEUE))
    made.put([Msg(0)], QueueOffset(1))
    return made


def lane_of(home: LaneQueue[Msg]) -> Lane[Msg]:
    lane = home.lane(None)
    assert lane is not None
    return lane


def line_of(*homes: LaneQueue[Msg]) -> ReadyLine[Msg]:
    line: ReadyLine[Msg] = ReadyLine()
    for each in homes:
        line.enlist(each)
    return line


def test_a_queue_is_in_line_once() -> None:
    only = home()
    line = line_of(only, only)
    assert line.next(NOW) is only
    assert line.next(NOW) is None


def test_a_queue_that_was_served_goes_to_the_end() -> None:
    first, second = home(Q), home(R)
    line = line_of(first, second)
    served = []
    for _ in range(4):
        found = line.next(NOW)
        assert found is not None
        served.append(found)
        line.enlist(found)
    assert served == [first, second, first, second]


def test_a_queue_without_a_lease_leaves_the_line_and_delays_no_other() -> None:
    first, second = home(Q), home(R)
    first.usable_until = NOT_LEASED
    line = line_of(first, second)
    assert line.next(NOW) is second
    first.usable_until = NO_LEASE_NEEDED
    line.enlist(first)
    assert line.next(NOW) is first


def test_a_queue_waits_for_the_runs_of_its_former_assignment() -> None:
    only = home()
    line = line_of(only)
    line.stale[Q] = 2
    assert line.next(NOW) is None
    assert not line.stale_ended(Q)
    assert line.stale_ended(Q), "the last one"
    line.enlist(only)
    assert line.next(NOW) is only


def test_a_lane_on_a_timer_is_ready_in_time_and_not_before() -> None:
    only = home()
    only.ready.clear()
    lane = lane_of(only)
    line: ReadyLine[Msg] = ReadyLine()
    assert line.pause(only, lane, Again(Millis(10), whole_queue=False), NOW) == 110
    assert line.next_timer() == 110
    assert line.next(Millis(109)) is None
    assert line.next(Millis(110)) is only
    assert list(only.ready) == [lane]


def test_timers_are_listed_earliest_first() -> None:
    first, second = home(Q), home(R)
    line: ReadyLine[Msg] = ReadyLine()
    line.pause(first, lane_of(first), Again(Millis(20), whole_queue=False), NOW)
    line.pause(second, lane_of(second), Again(Millis(10), whole_queue=False), NOW)
    assert [(until, each.queue) for until, each, _ in line.timers()] == [(110, R), (120, Q)]
