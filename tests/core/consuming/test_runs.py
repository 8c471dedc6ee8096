"""A run that stands for its lane keeps order, holds and time slices as if the lane had existed from the start."""

from tests.core.consuming.scheduler_fixture import Msg, Q, SchedulerFixture, offsets

from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.consuming.runs import DONE, FAILED, SLICE_PAUSE, STOPPED, LaneRun, Order, Why
from lanemq.core.consuming.views import LaneActivity


def fixture(**options: object) -> SchedulerFixture:
    return SchedulerFixture(HoldKey(), Order.KEY, **options)


def taken(made: SchedulerFixture, most: int) -> list[LaneRun[Msg]]:
    return made.scheduler.next_runs(most, now=made.now)


def test_a_message_behind_a_running_single_one_waits_for_it() -> None:
    made = fixture()
    made.assign(Q, "a")
    (run,) = taken(made, 100)
    made.put(Q, "a")
    assert taken(made, 100) == []
    made.scheduler.finish_done([run], now=made.now)
    assert [offsets(each) for each in taken(made, 100)] == [[1]]


def test_a_message_behind_a_waiting_single_one_joins_its_run() -> None:
    made = fixture()
    made.assign(Q, "a", "b")
    made.put(Q, "a")
    assert [offsets(each) for each in taken(made, 100)] == [[0, 2], [1]]


def test_a_single_message_that_fails_holds_what_comes_after_it() -> None:
    made = fixture()
    made.assign(Q, "a")
    (run,) = taken(made, 100)
    assert made.finish(run, FAILED).why is Why.HELD
    made.put(Q, "a", "b")
    assert [offsets(each) for each in taken(made, 100)] == [[2]]
    made.pass_time(10_000)
    (again,) = taken(made, 100)
    assert (offsets(again), again.attempt) == ([0, 1], 2)


def test_a_single_message_that_was_not_begun_runs_in_a_new_run() -> None:
    """A late worker may still refer to the old run."""
    made = fixture()
    made.assign(Q, "a")
    (run,) = taken(made, 100)
    made.finish(run, STOPPED)
    (other,) = taken(made, 100)
    assert other is not run
    made.scheduler.finish_done([run], now=made.now)
    made.finish(run, DONE)
    assert made.scheduler[Q].committable == 0


def test_a_single_message_uses_up_the_slice_of_the_lane_that_grows_behind_it() -> None:
    made = fixture(max_continuous=50)
    made.assign(Q, "a")
    (run,) = taken(made, 100)
    made.put(Q, "a")
    made.pass_time(51)
    made.scheduler.finish_done([run], now=made.now)
    assert taken(made, 100) == []
    made.pass_time(SLICE_PAUSE)
    assert [offsets(each) for each in taken(made, 100)] == [[1]]


def test_viewing_a_single_message_changes_nothing() -> None:
    made = fixture()
    made.assign(Q, "a", "b")
    asked = made.scheduler.view_lane(Q, "a", now=made.now)
    assert asked is not None
    assert (asked.state, asked.head, asked.waiting) == (LaneActivity.READY, 0, 1)
    runs = taken(made, 100)
    assert [offsets(each) for each in runs] == [[0], [1]]
    for key in "ab":
        running = made.scheduler.view_lane(Q, key, now=made.now)
        assert running is not None
        assert (running.state, running.waiting) == (LaneActivity.RUNNING, 1)
    made.scheduler.finish_done(runs, now=made.now)
    assert (made.scheduler[Q].committable, taken(made, 100)) == (2, [])


def test_a_key_that_has_run_leaves_nothing_behind() -> None:
    made = fixture()
    made.assign(Q, *(f"key-{n}" for n in range(100)))
    made.scheduler.finish_done(taken(made, 1_000), now=made.now)
    view = made.scheduler.view_lane(Q, "key-7", now=made.now)
    assert view is not None
    assert view.state is LaneActivity.EMPTY
