"""The result matrix of orderly consumption: what each outcome does to message, lane and offset."""

import pytest
from tests.core.consuming.scheduler_fixture import Msg, Q, R, SchedulerFixture, offsets

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey, HoldQueue, SendBack
from lanemq.core.consuming.runs import (
    COMMIT,
    DONE,
    FAILED,
    HOPELESS,
    ROLL_BACK,
    LaneRun,
    Order,
    Outcome,
    Suspend,
    Why,
)
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

ONE = {"run_limit": 1}


# The result matrix, automatic commit


@pytest.mark.row("A92")
def test_auto_done_commits_and_goes_on() -> None:
    fixture = SchedulerFixture(**ONE)
    fixture.assign(Q, None, None)
    fixture.finish(fixture.run(), DONE)
    assert fixture.scheduler[Q].committable == 1
    assert offsets(fixture.run()) == [1]


@pytest.mark.row("A93")
@pytest.mark.parametrize("outcome", [COMMIT, ROLL_BACK])
def test_auto_commit_or_roll_back_is_reported_and_taken_as_success(outcome: Outcome) -> None:
    fixture = SchedulerFixture(**ONE)
    fixture.assign(Q, None, None)
    finished = fixture.finish(fixture.run(), outcome)
    assert (finished.why, fixture.scheduler[Q].committable) == (Why.ILLEGAL, 1)
    assert offsets(fixture.run()) == [1]


@pytest.mark.row("A94")
@pytest.mark.row("A80")
@pytest.mark.parametrize("outcome", [Suspend(), FAILED])
def test_auto_suspend_holds_the_queue_and_repeats_the_message(outcome: Outcome) -> None:
    fixture = SchedulerFixture(**ONE)
    fixture.assign(Q, None, None)
    finished = fixture.finish(fixture.run(), outcome)
    assert (finished.why, finished.until) == (Why.HELD, 1_000)
    assert fixture.scheduler[Q].committable == 0
    assert fixture.idle().until == 1_000
    fixture.pass_time(1_000)
    repeated = fixture.run()
    assert (offsets(repeated), repeated.attempt) == ([0], 2)


@pytest.mark.row("A94")
def test_auto_suspend_over_the_limit_commits_and_goes_on() -> None:
    fixture = SchedulerFixture(DeadLetter(skip=True, hold=HoldQueue(retries=0)), **ONE)
    fixture.assign(Q, None, None)
    run = fixture.run()
    assert [m.queue_offset for m in fixture.finish(run, Suspend()).send_back] == [0]
    fixture.idle()
    finished = fixture.sent_back(run, True)
    assert (finished.why, fixture.scheduler[Q].committable) == (Why.SENT_BACK, 1)
    assert offsets(fixture.run()) == [1]


# The result matrix, manual commit


def manual(policy: FailurePolicy | None = None) -> SchedulerFixture:
    fixture = SchedulerFixture(policy, auto_commit=False, run_limit=1)
    fixture.assign(Q, *[None] * 5)
    return fixture


@pytest.mark.row("A95")
def test_manual_done_commits_nothing() -> None:
    fixture = manual()
    fixture.finish(fixture.run(), DONE)
    assert fixture.scheduler[Q].committable == 0
    assert fixture.scheduler[Q].committable == 0
    assert offsets(fixture.run()) == [1]


@pytest.mark.row("A96")
def test_manual_commit_commits_everything_in_flight() -> None:
    fixture = manual()
    fixture.finish(fixture.run(), DONE)
    fixture.finish(fixture.run(), DONE)
    fixture.finish(fixture.run(), COMMIT)
    assert fixture.scheduler[Q].committable == 3


@pytest.mark.row("A97")
def test_manual_roll_back_repeats_the_whole_uncommitted_run() -> None:
    fixture = manual()
    for _ in range(3):
        fixture.finish(fixture.run(), DONE)
    assert fixture.finish(fixture.run(), ROLL_BACK).why is Why.ROLLED_BACK
    fixture.idle()
    fixture.pass_time(1_000)
    seen = []
    for _ in range(4):
        run = fixture.run()
        seen += offsets(run)
        fixture.finish(run, DONE)
    assert seen == [0, 1, 2, 3]
    assert fixture.scheduler[Q].committable == 0


@pytest.mark.row("A98")
def test_manual_suspend_returns_only_this_batch() -> None:
    fixture = manual()
    fixture.finish(fixture.run(), DONE)
    fixture.finish(fixture.run(), Suspend())
    fixture.pass_time(1_000)
    run = fixture.run()
    assert offsets(run) == [1], "offset 0 stays in flight"
    fixture.finish(run, COMMIT)
    assert fixture.scheduler[Q].committable == 2


@pytest.mark.row("A98")
def test_manual_suspend_over_the_limit_does_not_commit() -> None:
    fixture = manual(DeadLetter(skip=True, hold=HoldQueue(retries=0)))
    run = fixture.run()
    fixture.finish(run, Suspend())
    assert fixture.sent_back(run, True).why is Why.SENT_BACK
    assert fixture.scheduler[Q].committable == 0
    assert offsets(fixture.run()) == [1]


@pytest.mark.row("A105")
def test_manual_roll_back_does_not_repeat_a_dead_letter() -> None:
    fixture = manual(DeadLetter(skip=True, hold=HoldQueue(retries=0)))
    run = fixture.run()
    fixture.finish(run, FAILED)
    fixture.sent_back(run, True)
    fixture.finish(fixture.run(), ROLL_BACK)
    fixture.pass_time(1_000)
    assert offsets(fixture.run()) == [1]


def test_manual_commit_needs_queue_order() -> None:
    with pytest.raises(InvalidOption, match="whole queue"):
        SchedulerFixture(order=Order.KEY, auto_commit=False)


# Counting, sending back


@pytest.mark.row("A100")
@pytest.mark.parametrize(("asked", "waits"), [(5, 10), (60_000, 60_000), (250, 250)])
def test_a_lane_waits_as_long_as_its_handler_asks(asked: int, waits: int) -> None:
    fixture = SchedulerFixture()
    fixture.assign(Q, None)
    assert fixture.finish(fixture.run(), Suspend(Millis(asked))).until == waits


@pytest.mark.row("A102")
def test_rocketmqs_default_retries_for_ever_in_the_scheduler() -> None:
    fixture = SchedulerFixture(HoldQueue())
    fixture.assign(Q, None)
    for _ in range(100):
        assert fixture.finish(fixture.run(), FAILED).why is Why.HELD
        fixture.pass_time(30_000)
    assert fixture.run().attempt == 101


@pytest.mark.row("A103")
def test_a_message_is_sent_back_after_its_retries_and_held_if_that_fails() -> None:
    fixture = SchedulerFixture(DeadLetter(skip=True, hold=HoldQueue(retries=2)))
    fixture.assign(Q, None)
    for attempt in (1, 2):
        run = fixture.run()
        assert run.attempt == attempt
        assert fixture.finish(run, FAILED).why is Why.HELD
        fixture.pass_time(1_000)
    run = fixture.run()
    assert fixture.finish(run, FAILED).why is Why.SEND_BACK
    finished = fixture.sent_back(run, False)
    assert (finished.why, fixture.scheduler[Q].committable) == (Why.HELD, 0)
    fixture.pass_time(1_000)
    assert fixture.run().attempt == 4


@pytest.mark.parametrize(
    ("policy", "why"), [(HoldKey(), Why.PARKED), (DeadLetter(skip=True), Why.SEND_BACK), (HoldQueue(), Why.HELD)]
)
def test_a_hopeless_message_uses_no_retries(policy: FailurePolicy, why: Why) -> None:
    fixture = SchedulerFixture(policy)
    fixture.assign(Q, None)
    assert fixture.finish(fixture.run(), HOPELESS).why is why


def mixed_batch() -> tuple[SchedulerFixture, LaneRun[Msg]]:
    """Offset 0 failed once alone; then offset 1 arrives and both run as one batch: 0 is over the limit."""
    fixture = SchedulerFixture(DeadLetter(skip=True, hold=HoldQueue(retries=1)), batch_size=2, run_limit=2)
    fixture.assign(Q, None)
    fixture.finish(fixture.run(), FAILED)
    fixture.put(Q, None, None)
    fixture.pass_time(1_000)
    run = fixture.run()
    assert offsets(run) == [0, 1]
    return fixture, run


@pytest.mark.row("A104")
def test_batch_passes_only_when_every_message_of_it_is_gone() -> None:
    fixture, run = mixed_batch()
    assert [m.queue_offset for m in fixture.finish(run, FAILED).send_back] == [0]
    assert fixture.sent_back(run, True).why is Why.HELD
    fixture.idle()


@pytest.mark.row("A105")
def test_mixed_batch_dead_letters_each_message_once() -> None:
    fixture, run = mixed_batch()
    fixture.finish(run, FAILED)
    fixture.sent_back(run, True)
    fixture.pass_time(1_000)
    again = fixture.run()
    assert offsets(again) == [1, 2], "offset 0 is at the broker already: neither handled nor sent again"
    fixture.finish(again, DONE)
    assert fixture.scheduler[Q].committable == 3


@pytest.mark.row("A105")
def test_mixed_batch_of_a_key_dead_letters_each_message_once() -> None:
    fixture = SchedulerFixture(DeadLetter(skip=True, hold=HoldKey(retries=1)), Order.KEY, batch_size=2, run_limit=2)
    fixture.assign(Q, "a")
    fixture.finish(fixture.run(), FAILED)
    fixture.put(Q, "a")
    fixture.pass_time(1_000)
    run = fixture.run()
    assert [m.queue_offset for m in fixture.finish(run, FAILED).send_back] == [0]
    fixture.sent_back(run, True)
    assert fixture.scheduler[Q].committable == 1
    fixture.pass_time(30_000)
    assert offsets(fixture.run()) == [1]


def test_concurrent_failure_is_sent_back_and_retried_here_only_if_that_fails() -> None:
    fixture = SchedulerFixture(SendBack(), Order.NONE)
    fixture.assign(Q, None, None)
    first, second = fixture.run(), fixture.run()
    assert fixture.finish(first, FAILED).send_back == first.messages
    fixture.finish(second, DONE)
    assert fixture.scheduler[Q].committable == 0
    finished = fixture.sent_back(first, False)
    assert finished.until == 5_000
    fixture.pass_time(5_000)
    retried = fixture.run()
    assert offsets(retried) == [0]
    fixture.finish(retried, FAILED)
    fixture.sent_back(retried, True)
    assert fixture.scheduler[Q].committable == 2


# Holding and parking


def test_failing_key_holds_only_itself() -> None:
    fixture = SchedulerFixture(HoldKey(backoff=Backoff(0.1)), Order.KEY)
    fixture.assign(Q, "bad", "good", "bad", "good")
    bad, good = fixture.run(), fixture.run()
    assert (offsets(bad), offsets(good)) == ([0, 2], [1, 3])
    assert fixture.finish(bad, FAILED).until == 100
    fixture.finish(good, DONE)
    fixture.put(Q, "good", "bad")
    assert offsets(fixture.run()) == [4]
    assert fixture.idle().until == 100
    fixture.pass_time(100)
    assert offsets(fixture.run()) == [0, 2, 5], "everything of the key waits behind its failed message"


def test_key_hold_backs_off_longer_each_time() -> None:
    fixture = SchedulerFixture(HoldKey(backoff=Backoff(0.1)), Order.KEY)
    fixture.assign(Q, "bad")
    waits = []
    for _ in range(4):
        until = fixture.finish(fixture.run(), FAILED).until
        waits.append(until - fixture.now)
        fixture.pass_time(waits[-1])
    assert waits == [100, 200, 400, 800]


def test_queue_hold_stops_every_key_of_the_queue_and_no_other_queue() -> None:
    fixture = SchedulerFixture(HoldQueue(), Order.KEY)
    fixture.assign(Q, "bad", "good")
    fixture.assign(R, "other")
    fixture.finish(fixture.run(), FAILED)
    assert fixture.run().queue == R
    assert fixture.idle().until == 1_000
    fixture.pass_time(1_000)
    assert [offsets(fixture.run()), offsets(fixture.run())] == [[0], [1]]


def test_shorter_hold_does_not_shorten_a_longer_one() -> None:
    fixture = SchedulerFixture(HoldQueue(), Order.KEY)
    fixture.assign(Q, "a", "b")
    first, second = fixture.run(), fixture.run()
    fixture.finish(first, FAILED)
    fixture.finish(second, Suspend(Millis(10)))
    fixture.pass_time(999)
    fixture.idle()
    fixture.pass_time(1)
    fixture.run()


def test_a_lane_without_retries_left_is_parked_until_resumed() -> None:
    fixture = SchedulerFixture(HoldKey(retries=1), Order.KEY)
    fixture.assign(Q, "bad", "good", "bad")
    assert fixture.finish(fixture.run(), FAILED).why is Why.HELD
    fixture.finish(fixture.run(), DONE)
    fixture.pass_time(100)
    assert fixture.finish(fixture.run(), FAILED).why is Why.PARKED
    fixture.pass_time(10**9)
    assert fixture.idle().until is None
    assert fixture.scheduler.view(Q).parked == ("bad",)
    assert fixture.scheduler[Q].committable == 0
    assert not fixture.scheduler.resume(Q, "good")
    assert fixture.scheduler.resume(Q, "bad")
    run = fixture.run()
    assert (offsets(run), run.attempt) == ([0, 2], 1)
