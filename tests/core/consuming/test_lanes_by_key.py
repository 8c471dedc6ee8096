"""A queue with a lane per key knows exactly what is finished, however that is reported."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.consuming.scheduler_fixture import Msg, Q, SchedulerFixture, offsets

from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.consuming.runs import DONE, NO_LEASE_NEEDED, LaneOptions, LaneRun, Order
from lanemq.model.units import QueueOffset


def fixture(order: Order = Order.KEY, **options: object) -> SchedulerFixture:
    return SchedulerFixture(HoldKey(), order, **options)


def taken(made: SchedulerFixture, most: int) -> list[LaneRun[Msg]]:
    return made.scheduler.next_runs(most, now=made.now)


def test_a_worker_gets_lanes_until_it_has_enough_messages() -> None:
    made = fixture()
    made.assign(Q, "a", "b", "a", "c", "d")
    assert [offsets(run) for run in taken(made, 3)] == [[0, 2], [1]]
    assert [offsets(run) for run in taken(made, 100)] == [[3], [4]]


def test_a_run_is_no_longer_than_its_limit_however_much_is_asked_for() -> None:
    made = fixture(run_limit=2)
    made.assign(Q, "a", "a", "a")
    (run,) = taken(made, 100)
    assert offsets(run) == [0, 1]
    made.scheduler.finish_done([run], now=made.now)
    assert [offsets(run) for run in taken(made, 100)] == [[2]]


def test_a_lane_with_a_run_is_not_given_to_another_worker() -> None:
    made = fixture()
    made.assign(Q, "a", "b")
    taken(made, 100)
    made.put(Q, "a", "b", "c")
    assert [offsets(run) for run in taken(made, 100)] == [[4]]


def test_without_order_every_message_is_a_run_of_its_own() -> None:
    made = fixture(Order.NONE)
    made.assign(Q, "a", "a", "a")
    assert [offsets(run) for run in taken(made, 2)] == [[0], [1]]


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
@given(keys=st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), ends=st.randoms(use_true_random=False))
def test_runs_reported_together_have_the_same_effect_as_reported_one_by_one(
    order: Order, keys: list[str], ends: Random
) -> None:
    together, singly = fixture(order), fixture(order)
    for each in (together, singly):
        each.assign(Q, *keys)
    runs, same = taken(together, 100), taken(singly, 100)
    chosen = ends.sample(range(len(runs)), ends.randint(0, len(runs)))
    together.scheduler.finish_done([runs[at] for at in chosen], now=together.now)
    for at in chosen:
        singly.finish(same[at], DONE)
    one, other = together.scheduler[Q], singly.scheduler[Q]
    assert (one.progress(), one.cached(), one.next_offset) == (other.progress(), other.cached(), other.next_offset)
    assert together.scheduler.view(Q) == singly.scheduler.view(Q)


def test_runs_of_a_dropped_queue_are_ignored() -> None:
    made = fixture()
    made.assign(Q, "a", "b")
    runs = taken(made, 100)
    made.scheduler.drop(Q)
    made.assign(Q, "a", "b")
    assert taken(made, 100) == [], "runs of the former assignment are still under way"
    made.scheduler.finish_done(runs, now=made.now)
    assert made.scheduler[Q].committable == 0
    assert [offsets(run) for run in taken(made, 100)] == [[0], [1]]


def test_a_message_that_arrives_during_a_run_waits_behind_what_returns() -> None:
    home: LaneQueue[Msg] = LaneQueue(Q, QueueOffset(0), NO_LEASE_NEEDED, LaneOptions())
    home.put([Msg(0, "a"), Msg(1, "a")], QueueOffset(2))
    home.ready.popleft()
    lane = home.lane("a")
    assert lane is not None
    taken = home.take(lane, 32)
    lane.run = LaneRun(Q, "a", tuple(taken), 1, 1, home, 0, lane)
    home.put([Msg(2, "a")], QueueOffset(3))
    assert home.end_run(lane, 1, commit=True)
    assert [message.queue_offset for message in home.take(lane, 32)] == [1, 2]
