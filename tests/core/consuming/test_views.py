"""What is shown of a lane, and what a stuck lane costs."""

import pytest
from tests.core.consuming.scheduler_fixture import Msg, Q

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.lane_queue import FOLD_AT
from lanemq.core.consuming.retry_policy import FailurePolicy, HoldKey, HoldQueue, Park
from lanemq.core.consuming.runs import DONE, FAILED, NO_LEASE_NEEDED, NOT_LEASED, LaneOptions, LaneRun, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.consuming.views import LaneActivity, LaneView
from lanemq.model.units import Millis, QueueOffset

NOW = Millis(1_000)
SLOW = HoldKey(backoff=Backoff(0.5))


def laid(policy: FailurePolicy = SLOW, order: Order = Order.KEY, keys: str = "aab") -> LaneScheduler[Msg]:
    scheduler: LaneScheduler[Msg] = LaneScheduler(LaneOptions(policy=policy, order=order, run_limit=1))
    scheduler.add(Q, QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    messages = [Msg(offset, key) for offset, key in enumerate(keys)]
    assert scheduler.put(Q, messages, QueueOffset(len(keys)), pulled_from=QueueOffset(0))
    return scheduler


def begin(scheduler: LaneScheduler[Msg]) -> LaneRun[Msg]:
    run = scheduler.next_run(now=NOW)
    assert isinstance(run, LaneRun)
    return run


def seen(scheduler: LaneScheduler[Msg], key: str, now: int = NOW) -> LaneView:
    view = scheduler.view_lane(Q, key, now=Millis(now))
    assert view is not None
    return view


def test_a_lane_is_ready_then_running_then_held_then_empty() -> None:
    scheduler = laid()
    assert (seen(scheduler, "a").state, seen(scheduler, "a").waiting) == (LaneActivity.READY, 2)
    run = begin(scheduler)
    assert (seen(scheduler, "a").state, seen(scheduler, "a").head) == (LaneActivity.RUNNING, 0)
    scheduler.finish(run, FAILED, now=NOW)
    held = seen(scheduler, "a")
    assert (held.state, held.head, held.attempts, held.until) == (LaneActivity.HELD, 0, 1, 1_500)
    assert seen(scheduler, "b").state is LaneActivity.READY, "no other lane waits"
    assert seen(scheduler, "never-sent").state is LaneActivity.EMPTY


def test_a_lane_is_ready_as_soon_as_its_hold_is_over() -> None:
    scheduler = laid()
    scheduler.finish(begin(scheduler), FAILED, now=NOW)
    assert seen(scheduler, "a", NOW + 500).state is LaneActivity.READY


def test_a_parked_lane_is_shown_as_parked() -> None:
    scheduler = laid(HoldKey(retries=0, then=Park(at_broker=False)))
    scheduler.finish(begin(scheduler), FAILED, now=NOW)
    view = seen(scheduler, "a")
    assert (view.state, view.head, view.attempts) == (LaneActivity.PARKED, 0, 1)


def test_with_order_by_queue_every_key_shows_the_one_lane() -> None:
    scheduler = laid(HoldQueue(suspend=0.7), Order.QUEUE)
    scheduler.finish(begin(scheduler), FAILED, now=NOW)
    view = seen(scheduler, "b")
    assert (view.state, view.head, view.until, view.waiting) == (LaneActivity.HELD, 0, 1_700, 3)


@pytest.mark.parametrize("what", ["lease", "hand-over"])
def test_a_lane_shows_why_its_queue_may_not_run(what: str) -> None:
    scheduler = laid()
    if what == "lease":
        scheduler.set_usable_until(Q, NOT_LEASED)
    else:
        scheduler.drain(Q, now=Millis(0))
    assert seen(scheduler, "a").state is (LaneActivity.UNLEASED if what == "lease" else LaneActivity.LEAVING)


def test_a_queue_that_is_not_assigned_has_no_view() -> None:
    scheduler = laid()
    scheduler.drop(Q)
    assert scheduler.view_lane(Q, "a", now=NOW) is None


def test_a_stuck_key_costs_memory_per_range_not_per_message() -> None:
    """The finished ranges and the count stay exact, however often finished offsets were folded into ranges."""
    scheduler = laid(keys="s")
    stuck = begin(scheduler)
    count, at = 5 * FOLD_AT, 1
    while at < count:
        messages = [Msg(offset, str(offset)) for offset in range(at, at + 500)]
        assert scheduler.put(Q, messages, QueueOffset(at + 500), pulled_from=QueueOffset(at))
        at += 500
        while isinstance(run := scheduler.next_run(now=NOW), LaneRun):
            scheduler.finish(run, DONE, now=NOW)
    assert scheduler[Q].finished_ranges().ranges() == [(1, at)]
    assert scheduler[Q].cached().count == 1
    assert scheduler[Q].committable == 0
    kept = scheduler[Q]._unfinished
    assert (len(kept), kept.finished_count <= FOLD_AT) == (1, True)
    scheduler.finish(stuck, DONE, now=NOW)
    assert scheduler[Q].committable == at
    assert not scheduler[Q].finished_ranges()
