"""What a run has finished so far is committable while it runs, and is counted once."""

import pytest
from tests.core.consuming.scheduler_fixture import Q, SchedulerFixture, offsets

from lanemq.core.consuming.retry_policy import DeadLetter, HoldKey, HoldQueue
from lanemq.core.consuming.runs import DONE, FAILED, ONE_BY_ONE, STOPPED, LaneRun, Order, Outcome, Why
from lanemq.core.finished_ranges import FinishedRanges

ORDERS = [Order.KEY, Order.QUEUE]


def running(order: Order, done: int, **options: object) -> tuple[SchedulerFixture, LaneRun]:
    """A run of five messages, `done` of which are finished and counted."""
    fixture = SchedulerFixture(HoldKey() if order is Order.KEY else HoldQueue(), order, **options)
    fixture.assign(Q, *"kkkkk")
    run = fixture.run()
    assert len(run.messages) == 5
    run.done = done
    assert fixture.scheduler.note_progress(run) is bool(done)
    return fixture, run


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_run_has_finished_is_committable_before_it_ends(order: Order) -> None:
    fixture, run = running(order, 3)
    assert fixture.scheduler[Q].committable == 3
    assert fixture.scheduler[Q].cached().count == 2
    assert not fixture.scheduler.note_progress(run), "nothing is new"
    run.done = 4
    assert fixture.scheduler.note_progress(run)
    assert fixture.scheduler[Q].committable == 4
    fixture.idle()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("outcome", "done", "committable"), [(DONE, 0, 5), (STOPPED, 4, 4), (FAILED, 3, 3)])
def test_the_end_of_a_run_counts_only_the_rest(order: Order, outcome: Outcome, done: int, committable: int) -> None:
    fixture, run = running(order, 3)
    fixture.finish(run, outcome, done)
    assert fixture.scheduler[Q].committable == committable
    cached = fixture.scheduler[Q].cached()
    assert (cached.count, cached.bytes) == (5 - committable, 5 - committable)
    fixture.pass_time(60_000)
    if committable < 5:
        assert offsets(fixture.run()) == list(range(committable, 5))


def test_runs_that_end_together_count_only_their_rest() -> None:
    fixture, run = running(Order.KEY, 3)
    fixture.scheduler.finish_done([run], now=fixture.now)
    assert fixture.scheduler[Q].committable == 5
    assert fixture.scheduler[Q].cached().count == 0


def test_progress_above_an_unfinished_message_is_a_finished_range() -> None:
    fixture = SchedulerFixture(HoldKey(), Order.KEY)
    fixture.assign(Q, *"abbb")
    fixture.run()
    run = fixture.run()
    run.done = 2
    assert fixture.scheduler.note_progress(run)
    assert fixture.scheduler[Q].committable == 0
    assert fixture.scheduler[Q].finished_ranges() == FinishedRanges((1, 3))


@pytest.mark.parametrize("order", ORDERS)
def test_a_dropped_queue_has_no_progress(order: Order) -> None:
    fixture, run = running(order, 0)
    fixture.scheduler.drop(Q)
    run.done = 3
    assert not fixture.scheduler.note_progress(run)
    assert Q not in fixture.scheduler


def test_manual_commit_has_no_progress_inside_a_run() -> None:
    fixture = SchedulerFixture(HoldQueue(), Order.QUEUE, auto_commit=False)
    fixture.assign(Q, *"kkk")
    run = fixture.run()
    run.done = 2
    fixture.scheduler.note_progress(run)
    assert fixture.scheduler[Q].committable == 0


# --- batches that fail


@pytest.mark.parametrize("order", [*ORDERS, Order.NONE])
def test_a_batch_that_fails_as_a_whole_runs_one_by_one_at_once_and_counts_no_attempt(order: Order) -> None:
    fixture = SchedulerFixture(HoldQueue() if order is Order.QUEUE else HoldKey(), order, batch_size=3, run_limit=6)
    fixture.assign(Q, *"kkkkkk")
    run = fixture.run()
    assert fixture.finish(run, ONE_BY_ONE).why is Why.DIVIDED
    if order is Order.NONE:
        fixture.run()  # the other batch
    for alone in range(3):
        run = fixture.run()
        assert (offsets(run), run.attempt) == ([alone], 1)
        fixture.finish(run, DONE)
    if order is not Order.NONE:
        assert offsets(fixture.run()) == [3, 4, 5]
    assert not fixture.scheduler[Q].alone


def test_the_batches_before_and_after_a_divided_one_stay_whole() -> None:
    fixture = SchedulerFixture(HoldKey(), Order.KEY, batch_size=2, run_limit=6)
    fixture.assign(Q, *"kkkkkk")
    fixture.finish(fixture.run(), ONE_BY_ONE, 2)
    assert fixture.scheduler[Q].committable == 2
    for alone in (2, 3):
        run = fixture.run()
        assert offsets(run) == [alone]
        fixture.finish(run, DONE)
    assert offsets(fixture.run()) == [4, 5]


@pytest.mark.parametrize("order", ORDERS)
def test_a_failure_that_concerns_one_message_of_a_batch_counts_for_no_other(order: Order) -> None:
    policy = HoldKey(retries=1) if order is Order.KEY else HoldQueue(retries=1)
    fixture = SchedulerFixture(policy, order, batch_size=4, run_limit=4)
    fixture.assign(Q, *"kkkk")
    fixture.scheduler.finish(fixture.run(), FAILED, done=1, concerned=1, now=fixture.now)
    assert fixture.scheduler[Q].committable == 1
    assert fixture.scheduler[Q].failures == {1: 1}
    fixture.pass_time(60_000)
    run = fixture.run()
    assert (offsets(run), run.attempt) == ([1, 2, 3], 2)


def test_only_the_message_that_failed_goes_to_the_broker() -> None:
    policy = DeadLetter(skip=True, hold=HoldKey(retries=0))
    fixture = SchedulerFixture(policy, Order.KEY, batch_size=4, run_limit=4)
    fixture.assign(Q, *"kkkk")
    run = fixture.run()
    finished = fixture.scheduler.finish(run, FAILED, done=1, concerned=1, now=fixture.now)
    assert [message.queue_offset for message in finished.send_back] == [1]
    fixture.sent_back(run, True)
    assert fixture.scheduler[Q].committable == 2
    assert offsets(fixture.run()) == [2, 3]
