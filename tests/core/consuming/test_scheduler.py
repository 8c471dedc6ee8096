"""Runs, leases, fairness and hand-over in the lane scheduler."""

import pytest
from tests.core.consuming.scheduler_fixture import Msg, Q, R, SchedulerFixture, offsets

from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey, HoldQueue, SendBack
from lanemq.core.consuming.runs import (
    COMMIT,
    DONE,
    FAILED,
    NO_LEASE_NEEDED,
    NOT_LEASED,
    ROLL_BACK,
    STOPPED,
    LaneOptions,
    LaneRun,
    Order,
    Outcome,
    Suspend,
    Why,
)
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.units import Millis, QueueOffset

ONE = {"run_limit": 1}


# Runs


def test_failure_inside_a_run_finishes_what_succeeded_and_returns_the_rest() -> None:
    fixture = SchedulerFixture(run_limit=8)
    fixture.assign(Q, *[None] * 5)
    run = fixture.run()
    assert offsets(run) == [0, 1, 2, 3, 4]
    fixture.finish(run, FAILED, done=2)
    assert fixture.scheduler[Q].committable == 2
    fixture.idle()
    fixture.pass_time(1_000)
    repeated = fixture.run()
    assert (offsets(repeated), repeated.attempt) == ([2, 3, 4], 2)


@pytest.mark.parametrize("order", [Order.QUEUE, Order.KEY])
def test_stopped_run_returns_the_rest_uncounted_and_at_once(order: Order) -> None:
    fixture = SchedulerFixture(order=order, run_limit=8)
    fixture.assign(Q, *["k"] * 4)
    fixture.finish(fixture.run(), STOPPED, done=3)
    assert fixture.scheduler[Q].committable == 3
    again = fixture.run()
    assert (offsets(again), again.attempt) == ([3], 1)


@pytest.mark.row("A65")
@pytest.mark.parametrize("order", [Order.QUEUE, Order.KEY])
def test_returned_messages_come_before_newly_pulled_ones(order: Order) -> None:
    fixture = SchedulerFixture(order=order, run_limit=8)
    fixture.assign(Q, "k", "k")
    run = fixture.run()
    fixture.put(Q, "k")
    fixture.finish(run, STOPPED, done=1)
    assert offsets(fixture.run()) == [1, 2]


@pytest.mark.row("A75")
def test_handler_gets_one_message_at_a_time_by_default() -> None:
    assert LaneOptions().batch_size == 1


def test_run_is_cut_to_whole_batches() -> None:
    fixture = SchedulerFixture(batch_size=3, run_limit=8)
    fixture.assign(Q, *[None] * 20)
    assert len(fixture.run().messages) == 6


# Leases and permits


@pytest.mark.row("A70")
@pytest.mark.parametrize(
    ("deadline", "runs"),
    [(NO_LEASE_NEEDED, True), (Millis(501), True), (Millis(500), False), (NOT_LEASED, False)],
)
def test_a_run_needs_broadcasting_or_a_valid_lease(deadline: Millis, runs: bool) -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None)
    fixture.scheduler.set_usable_until(Q, deadline)
    fixture.pass_time(500)
    assert isinstance(fixture.scheduler.next_run(now=fixture.now), LaneRun) is runs


@pytest.mark.row("A47")
def test_nothing_runs_before_the_first_lease() -> None:
    fixture = SchedulerFixture()
    fixture.scheduler.add(Q, QueueOffset(0))
    fixture.put(Q, None)
    assert fixture.idle().until is None


@pytest.mark.row("A71")
def test_renewed_lease_lets_the_queue_go_on_where_it_stopped() -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None, None)
    fixture.scheduler.set_usable_until(Q, NOT_LEASED)
    fixture.idle()
    fixture.scheduler.set_usable_until(Q, Millis(100))
    assert offsets(fixture.run()) == [0, 1]


@pytest.mark.row("A72")
def test_a_run_stops_at_loss_expiry_and_drain_before_its_next_message() -> None:
    fixture = SchedulerFixture()
    for queue in (Q, R):
        fixture.assign(queue, None, None)
    run, other = fixture.run(), fixture.run()
    assert run.may_continue(now=fixture.now)
    fixture.scheduler.set_usable_until(Q, Millis(50))
    assert run.usable_until == 50
    assert not run.may_continue(now=Millis(50))
    fixture.scheduler.set_usable_until(Q, Millis(90))
    assert run.may_continue(now=Millis(50)), "a renewal extends a run in progress"
    fixture.scheduler.set_usable_until(Q, NOT_LEASED)
    assert not run.may_continue(now=fixture.now)
    fixture.scheduler.drop(R)
    assert not other.may_continue(now=fixture.now)


@pytest.mark.row("A77")
def test_emptied_queue_leaves_the_line_and_comes_back_with_the_next_pull() -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None)
    fixture.finish(fixture.run(), DONE)
    assert fixture.idle().until is None
    fixture.put(Q, None)
    assert offsets(fixture.run()) == [1]


@pytest.mark.row("A64")
def test_a_burst_of_pulls_gives_one_run_at_a_time() -> None:
    fixture = SchedulerFixture(**ONE)
    fixture.assign(Q, None)
    fixture.put(Q, None)
    running = fixture.run()
    fixture.put(Q, None)
    fixture.idle()
    fixture.finish(running, DONE)
    fixture.run()
    fixture.idle()


@pytest.mark.row("A74")
def test_a_queue_that_ran_for_a_minute_pauses_for_the_others() -> None:
    fixture = SchedulerFixture(**ONE)
    fixture.assign(Q, *[None] * 9)
    for _ in range(2):
        run = fixture.run()
        fixture.pass_time(30_000)
        fixture.finish(run, DONE)
    run = fixture.run()
    assert run.may_continue(now=fixture.now)
    fixture.pass_time(1)
    assert not run.may_continue(now=fixture.now)
    fixture.finish(run, DONE)
    assert fixture.idle().until == fixture.now + 10
    fixture.pass_time(10)
    assert fixture.run().may_continue(now=Millis(fixture.now + 60_000)), "a new slice began"


@pytest.mark.row("A66")
def test_lanes_and_queues_take_turns() -> None:
    fixture = SchedulerFixture(order=Order.KEY, run_limit=1)
    fixture.assign(Q, "a", "a", "b")
    fixture.assign(R, "c", "c")
    seen = []
    for _ in range(5):
        run = fixture.run()
        seen.append((run.queue.queue_id, run.key))
        fixture.finish(run, DONE)
    assert seen == [(0, "a"), (1, "c"), (0, "b"), (1, "c"), (0, "a")]


# Giving a queue up


@pytest.mark.row("A99")
def test_nothing_is_committable_after_a_drop() -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None)
    run = fixture.run()
    fixture.scheduler.drop(Q)
    finished = fixture.finish(run, DONE)
    assert (finished.why, Q in fixture.scheduler) == (Why.QUEUE_GONE, False)


@pytest.mark.row("A99")
def test_message_sent_back_after_a_drop_commits_nothing() -> None:
    fixture = SchedulerFixture(SendBack(), Order.NONE)
    fixture.assign(Q, None)
    run = fixture.run()
    fixture.finish(run, FAILED)
    fixture.scheduler.drop(Q)
    assert fixture.sent_back(run, True).why is Why.QUEUE_GONE


@pytest.mark.row("A50")
@pytest.mark.row("A117")
def test_a_queue_assigned_again_waits_for_the_run_of_its_former_assignment() -> None:
    """The handler of the lost assignment still runs; running its message again in parallel breaks the order."""
    fixture = SchedulerFixture()
    fixture.assign(Q, None, None)
    stale = fixture.run()
    fixture.scheduler.drop(Q)
    fixture.assign(Q, None, None)
    fixture.idle()
    fixture.finish(stale, DONE)
    assert fixture.scheduler[Q].committable == 0
    fresh = fixture.run()
    assert offsets(fresh) == [0, 1], "replayed from the committed offset, without a gap"
    fixture.finish(fresh, DONE)
    assert fixture.scheduler[Q].committable == 2


@pytest.mark.row("A90")
def test_drained_means_no_handler_is_running() -> None:
    fixture = SchedulerFixture(DeadLetter(skip=True, hold=HoldQueue(retries=0)), **ONE)
    fixture.assign(Q, None, None)
    run = fixture.run()
    fixture.scheduler.drain(Q, now=Millis(0))
    assert not fixture.scheduler.is_drained(Q)
    fixture.finish(run, FAILED)
    assert not fixture.scheduler.is_drained(Q), "a dead letter is on its way"
    fixture.sent_back(run, True)
    assert fixture.scheduler.is_drained(Q)
    fixture.idle()
    assert fixture.scheduler[Q].committable == 1
    fixture.scheduler.reopen(Q)
    assert offsets(fixture.run()) == [1]


def test_drained_waits_for_handlers_of_a_former_assignment_too() -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None)
    stale = fixture.run()
    fixture.scheduler.drop(Q)
    fixture.assign(Q, None)
    fixture.scheduler.drain(Q, now=Millis(0))
    assert not fixture.scheduler.is_drained(Q)
    fixture.finish(stale, DONE)
    assert fixture.scheduler.is_drained(Q)


def test_a_late_pull_of_a_former_assignment_is_refused() -> None:
    """It would be newer than the new start, and everything between would be skipped."""
    fixture = SchedulerFixture()
    fixture.assign(Q, start=100)
    fixture.scheduler.drop(Q)
    late = [Msg(100)]
    assert not fixture.scheduler.put(Q, late, QueueOffset(101), pulled_from=QueueOffset(100))
    fixture.assign(Q, start=50)
    assert not fixture.scheduler.put(Q, late, QueueOffset(101), pulled_from=QueueOffset(100))
    fixture.idle()


@pytest.mark.row("A17")
@pytest.mark.row("A61")
@pytest.mark.parametrize("order", list(Order))
def test_filtered_messages_do_not_stall_the_offset(order: Order) -> None:
    fixture = SchedulerFixture(order=order)
    fixture.assign(Q)
    assert fixture.scheduler.put(Q, [Msg(2)], QueueOffset(6), pulled_from=QueueOffset(0))
    assert fixture.scheduler[Q].committable == 2
    fixture.finish(fixture.run(), DONE)
    assert fixture.scheduler[Q].committable == 6
    assert fixture.scheduler.put(Q, [], QueueOffset(9), pulled_from=QueueOffset(6))
    assert fixture.scheduler[Q].committable == 9


def test_finished_ranges_are_the_finished_offsets_above_the_first_unfinished() -> None:
    fixture = SchedulerFixture(HoldKey(), Order.KEY)
    fixture.assign(Q, "stuck", "b", "c", "late", "e")
    runs = {bench_turn.key: bench_turn for bench_turn in [fixture.run() for _ in range(5)]}
    for key in ("b", "c", "e"):
        fixture.finish(runs[key], DONE)
    assert fixture.scheduler[Q].committable == 0
    assert fixture.scheduler[Q].finished_ranges().ranges() == [(1, 3), (4, 5)]
    assert fixture.scheduler[Q].cached().count == 2
    assert fixture.scheduler[Q].cached().span == 5
    fixture.finish(runs["stuck"], DONE)
    assert fixture.scheduler[Q].committable == 3


# Misuse


def test_a_second_end_of_a_run_changes_nothing() -> None:
    """Another caller may have ended it in place of its worker."""
    fixture = SchedulerFixture()
    fixture.assign(Q, None, None)
    run = fixture.run()
    fixture.finish(run, STOPPED, done=1)
    assert fixture.finish(run, DONE).why is Why.QUEUE_GONE
    assert fixture.scheduler[Q].committable == 1
    assert offsets(fixture.run()) == [1]


def test_a_run_that_waits_for_sent_back_takes_no_other_outcome() -> None:
    fixture = SchedulerFixture(SendBack(), Order.NONE)
    fixture.assign(Q, None)
    run = fixture.run()
    with pytest.raises(UsageError, match="sent_back answers"):
        fixture.sent_back(run, True)
    fixture.finish(run, FAILED)
    with pytest.raises(UsageError, match="sent_back"):
        fixture.finish(run, DONE)
    with pytest.raises(UsageError, match="one value each"):
        fixture.sent_back(run, True, True)


@pytest.mark.parametrize(("outcome", "done"), [(FAILED, 2), (STOPPED, 3), (COMMIT, -1)])
def test_done_must_fit_the_run(outcome: Outcome, done: int) -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None, None)
    with pytest.raises(UsageError, match="done="):
        fixture.finish(fixture.run(), outcome, done=done)


@pytest.mark.row("A52")
def test_an_assigned_queue_cannot_be_added_twice() -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q)
    with pytest.raises(UsageError, match="assigned already"):
        fixture.assign(Q)


def test_pull_with_other_offsets_is_misuse() -> None:
    fixture = SchedulerFixture(order=Order.KEY)
    fixture.assign(Q, start=5)
    with pytest.raises(UsageError, match="other offsets"):
        fixture.scheduler.put(Q, [Msg(4)], QueueOffset(6), pulled_from=QueueOffset(5))
    with pytest.raises(UsageError, match="other offsets"):
        fixture.scheduler.put(Q, [Msg(6)], QueueOffset(6), pulled_from=QueueOffset(5))


@pytest.mark.parametrize("option", ["batch_size", "run_limit", "max_continuous"])
def test_options_below_one_are_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match=option):
        LaneOptions(**{option: 0})  # type: ignore[arg-type]


# whether the loop continues


MANUAL = {"auto_commit": False}


@pytest.mark.row("A82")
@pytest.mark.parametrize(
    ("policy", "options", "outcome", "why", "committable", "goes_on"),
    [
        (HoldQueue(), {}, DONE, Why.DONE, 2, [2, 3]),
        (HoldQueue(), {}, STOPPED, Why.STOPPED, 0, [0, 1, 2, 3]),
        (HoldQueue(), {}, COMMIT, Why.ILLEGAL, 1, [1, 2, 3]),
        (HoldQueue(), {}, ROLL_BACK, Why.ILLEGAL, 1, [1, 2, 3]),
        (HoldQueue(), {}, FAILED, Why.HELD, 0, 1_000),
        (HoldQueue(), {}, Suspend(None), Why.HELD, 0, 1_000),
        (HoldQueue(), {}, Suspend(Millis(70)), Why.HELD, 0, 70),
        (HoldKey(retries=0), {}, FAILED, Why.PARKED, 0, None),
        (DeadLetter(skip=True, hold=HoldQueue(retries=0)), {}, FAILED, Why.SEND_BACK, 0, None),
        (HoldQueue(), MANUAL, DONE, Why.DONE, 0, [2, 3]),
        (HoldQueue(), MANUAL, COMMIT, Why.COMMITTED, 1, [1, 2, 3]),
        (HoldQueue(), MANUAL, ROLL_BACK, Why.ROLLED_BACK, 0, 1_000),
        (HoldQueue(), MANUAL, FAILED, Why.HELD, 0, 1_000),
    ],
)
def test_after_every_outcome_the_next_step_is_known(
    policy: FailurePolicy,
    options: dict[str, object],
    outcome: Outcome,
    why: Why,
    committable: int,
    goes_on: list[int] | int | None,
) -> None:
    """The next messages run at once or at a known time, or nothing runs by itself."""
    fixture = SchedulerFixture(policy, run_limit=2, **options)
    fixture.assign(Q, "k", "k")
    run = fixture.run()
    fixture.put(Q, "k", "k")
    finished = fixture.finish(run, outcome)
    assert (finished.why, fixture.scheduler[Q].committable) == (why, committable)
    assert finished.until == (goes_on if isinstance(goes_on, int) else None)
    if isinstance(goes_on, list):
        assert offsets(fixture.run()) == goes_on[:2]
        return
    assert fixture.idle().until == goes_on
    if goes_on is not None:
        fixture.pass_time(goes_on)
        assert offsets(fixture.run()) == [0, 1]


@pytest.mark.row("A82")
@pytest.mark.parametrize("outcome", [DONE, STOPPED, COMMIT, ROLL_BACK, FAILED, Suspend(None)])
def test_every_outcome_of_a_dropped_queue_is_ignored(outcome: Outcome) -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, "k", "k")
    run = fixture.run()
    fixture.scheduler.drop(Q)
    assert fixture.finish(run, outcome) == (Why.QUEUE_GONE, (), None)
    assert fixture.idle().until is None
