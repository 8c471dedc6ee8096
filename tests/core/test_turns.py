"""The result matrix of orderly consumption: what each outcome does to message, lane and offset."""

import pytest
from tests.core.bench import Bench, Msg, Q, R, offsets

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
    bench = Bench(**ONE)
    bench.hold(Q, None, None)
    assert bench.finish(bench.run(), DONE).committable == 1
    assert offsets(bench.run()) == [1]


@pytest.mark.row("A93")
@pytest.mark.parametrize("outcome", [COMMIT, ROLL_BACK])
def test_auto_commit_or_roll_back_is_reported_and_taken_as_success(outcome: Outcome) -> None:
    bench = Bench(**ONE)
    bench.hold(Q, None, None)
    finished = bench.finish(bench.run(), outcome)
    assert (finished.why, finished.committable) == (Why.ILLEGAL, 1)
    assert offsets(bench.run()) == [1]


@pytest.mark.row("A94")
@pytest.mark.row("A80")
@pytest.mark.parametrize("outcome", [Suspend(), FAILED])
def test_auto_suspend_holds_the_queue_and_repeats_the_message(outcome: Outcome) -> None:
    bench = Bench(**ONE)
    bench.hold(Q, None, None)
    finished = bench.finish(bench.run(), outcome)
    assert (finished.why, finished.until) == (Why.HELD, 1_000)
    assert bench.scheduler.committable(Q) == 0
    assert bench.idle().until == 1_000
    bench.pass_time(1_000)
    repeated = bench.run()
    assert (offsets(repeated), repeated.attempt) == ([0], 2)


@pytest.mark.row("A94")
def test_auto_suspend_over_the_limit_commits_and_goes_on() -> None:
    bench = Bench(DeadLetter(skip=True, hold=HoldQueue(retries=0)), **ONE)
    bench.hold(Q, None, None)
    run = bench.run()
    assert [m.queue_offset for m in bench.finish(run, Suspend()).send_back] == [0]
    bench.idle()
    finished = bench.sent_back(run, True)
    assert (finished.why, finished.committable) == (Why.SENT_BACK, 1)
    assert offsets(bench.run()) == [1]


# The result matrix, manual commit


def manual(policy: FailurePolicy | None = None) -> Bench:
    bench = Bench(policy, auto_commit=False, run_limit=1)
    bench.hold(Q, *[None] * 5)
    return bench


@pytest.mark.row("A95")
def test_manual_done_commits_nothing() -> None:
    bench = manual()
    assert bench.finish(bench.run(), DONE).committable in (None, 0)
    assert bench.scheduler.committable(Q) == 0
    assert offsets(bench.run()) == [1]


@pytest.mark.row("A96")
def test_manual_commit_commits_everything_in_flight() -> None:
    bench = manual()
    bench.finish(bench.run(), DONE)
    bench.finish(bench.run(), DONE)
    assert bench.finish(bench.run(), COMMIT).committable == 3


@pytest.mark.row("A97")
def test_manual_roll_back_repeats_the_whole_uncommitted_run() -> None:
    bench = manual()
    for _ in range(3):
        bench.finish(bench.run(), DONE)
    assert bench.finish(bench.run(), ROLL_BACK).why is Why.ROLLED_BACK
    bench.idle()
    bench.pass_time(1_000)
    seen = []
    for _ in range(4):
        run = bench.run()
        seen += offsets(run)
        bench.finish(run, DONE)
    assert seen == [0, 1, 2, 3]
    assert bench.scheduler.committable(Q) == 0


@pytest.mark.row("A98")
def test_manual_suspend_returns_only_this_batch() -> None:
    bench = manual()
    bench.finish(bench.run(), DONE)
    bench.finish(bench.run(), Suspend())
    bench.pass_time(1_000)
    run = bench.run()
    assert offsets(run) == [1], "offset 0 stays in flight"
    assert bench.finish(run, COMMIT).committable == 2


@pytest.mark.row("A98")
def test_manual_suspend_over_the_limit_does_not_commit() -> None:
    bench = manual(DeadLetter(skip=True, hold=HoldQueue(retries=0)))
    run = bench.run()
    bench.finish(run, Suspend())
    assert bench.sent_back(run, True).why is Why.SENT_BACK
    assert bench.scheduler.committable(Q) == 0
    assert offsets(bench.run()) == [1]


@pytest.mark.row("A105")
def test_manual_roll_back_does_not_repeat_a_dead_letter() -> None:
    bench = manual(DeadLetter(skip=True, hold=HoldQueue(retries=0)))
    run = bench.run()
    bench.finish(run, FAILED)
    bench.sent_back(run, True)
    bench.finish(bench.run(), ROLL_BACK)
    bench.pass_time(1_000)
    assert offsets(bench.run()) == [1]


def test_manual_commit_needs_queue_order() -> None:
    bench = Bench(order=Order.KEY, auto_commit=False)
    with pytest.raises(InvalidOption, match="manual commit"):
        bench.hold(Q)


# Counting, sending back


@pytest.mark.row("A100")
@pytest.mark.parametrize(("asked", "waits"), [(5, 10), (60_000, 30_000), (250, 250)])
def test_asked_delay_is_clamped(asked: int, waits: int) -> None:
    bench = Bench()
    bench.hold(Q, None)
    assert bench.finish(bench.run(), Suspend(Millis(asked))).until == waits


@pytest.mark.row("A102")
def test_rocketmqs_default_never_gives_a_message_up() -> None:
    bench = Bench(HoldQueue())
    bench.hold(Q, None)
    for _ in range(100):
        assert bench.finish(bench.run(), FAILED).why is Why.HELD
        bench.pass_time(30_000)
    assert bench.run().attempt == 101


@pytest.mark.row("A103")
def test_message_counts_up_to_the_limit_then_goes_and_comes_back_if_that_fails() -> None:
    bench = Bench(DeadLetter(skip=True, hold=HoldQueue(retries=2)))
    bench.hold(Q, None)
    for attempt in (1, 2):
        run = bench.run()
        assert run.attempt == attempt
        assert bench.finish(run, FAILED).why is Why.HELD
        bench.pass_time(1_000)
    run = bench.run()
    assert bench.finish(run, FAILED).why is Why.GIVE
    finished = bench.sent_back(run, False)
    assert (finished.why, finished.committable) == (Why.HELD, None)
    bench.pass_time(1_000)
    assert bench.run().attempt == 4


@pytest.mark.parametrize(
    ("policy", "why"), [(HoldKey(), Why.PARKED), (DeadLetter(skip=True), Why.GIVE), (HoldQueue(), Why.HELD)]
)
def test_a_hopeless_message_uses_no_retries(policy: FailurePolicy, why: Why) -> None:
    bench = Bench(policy)
    bench.hold(Q, None)
    assert bench.finish(bench.run(), HOPELESS).why is why


def mixed_batch() -> tuple[Bench, LaneRun[Msg]]:
    """Offset 0 failed once alone; then offset 1 arrives and both run as one batch: 0 is over the limit."""
    bench = Bench(DeadLetter(skip=True, hold=HoldQueue(retries=1)), batch_size=2, run_limit=2)
    bench.hold(Q, None)
    bench.finish(bench.run(), FAILED)
    bench.put(Q, None, None)
    bench.pass_time(1_000)
    run = bench.run()
    assert offsets(run) == [0, 1]
    return bench, run


@pytest.mark.row("A104")
def test_batch_passes_only_when_every_message_of_it_is_gone() -> None:
    bench, run = mixed_batch()
    assert [m.queue_offset for m in bench.finish(run, FAILED).send_back] == [0]
    assert bench.sent_back(run, True).why is Why.HELD
    bench.idle()


@pytest.mark.row("A105")
def test_mixed_batch_dead_letters_each_message_once() -> None:
    bench, run = mixed_batch()
    bench.finish(run, FAILED)
    bench.sent_back(run, True)
    bench.pass_time(1_000)
    again = bench.run()
    assert offsets(again) == [1], "offset 0 is at the broker already: neither handled nor sent again"
    assert bench.finish(again, DONE).committable == 2
    assert offsets(bench.run()) == [2]
    assert not bench.scheduler._queues[Q]._gone, "offsets of finished messages would pile up"


@pytest.mark.row("A105")
def test_mixed_batch_of_a_key_dead_letters_each_message_once() -> None:
    bench = Bench(DeadLetter(skip=True, hold=HoldKey(retries=1)), Order.KEY, batch_size=2, run_limit=2)
    bench.hold(Q, "a")
    bench.finish(bench.run(), FAILED)
    bench.put(Q, "a")
    bench.pass_time(1_000)
    run = bench.run()
    assert [m.queue_offset for m in bench.finish(run, FAILED).send_back] == [0]
    assert bench.sent_back(run, True).committable == 1
    bench.pass_time(30_000)
    assert offsets(bench.run()) == [1]


def test_concurrent_failure_is_sent_back_and_retried_here_only_if_that_fails() -> None:
    bench = Bench(SendBack(), Order.NONE)
    bench.hold(Q, None, None)
    first, second = bench.run(), bench.run()
    assert bench.finish(first, FAILED).send_back == first.messages
    assert bench.finish(second, DONE).committable in (None, 0)
    finished = bench.sent_back(first, False)
    assert finished.until == 5_000
    bench.pass_time(5_000)
    retried = bench.run()
    assert offsets(retried) == [0]
    bench.finish(retried, FAILED)
    assert bench.sent_back(retried, True).committable == 2


# Holding and parking


def test_failing_key_holds_only_itself() -> None:
    bench = Bench(HoldKey(backoff=Backoff(0.1)), Order.KEY)
    bench.hold(Q, "bad", "good", "bad", "good")
    bad, good = bench.run(), bench.run()
    assert (offsets(bad), offsets(good)) == ([0, 2], [1, 3])
    assert bench.finish(bad, FAILED).until == 100
    bench.finish(good, DONE)
    bench.put(Q, "good", "bad")
    assert offsets(bench.run()) == [4]
    assert bench.idle().until == 100
    bench.pass_time(100)
    assert offsets(bench.run()) == [0, 2, 5], "everything of the key waits behind its failed message"


def test_key_hold_backs_off_longer_each_time() -> None:
    bench = Bench(HoldKey(backoff=Backoff(0.1)), Order.KEY)
    bench.hold(Q, "bad")
    waits = []
    for _ in range(4):
        until = bench.finish(bench.run(), FAILED).until
        waits.append(until - bench.now)
        bench.pass_time(waits[-1])
    assert waits == [100, 200, 400, 800]


def test_queue_hold_stops_every_key_of_the_queue_and_no_other_queue() -> None:
    bench = Bench(HoldQueue(), Order.KEY)
    bench.hold(Q, "bad", "good")
    bench.hold(R, "other")
    bench.finish(bench.run(), FAILED)
    assert bench.run().queue == R
    assert bench.idle().until == 1_000
    bench.pass_time(1_000)
    assert [offsets(bench.run()), offsets(bench.run())] == [[0], [1]]


def test_shorter_hold_does_not_shorten_a_longer_one() -> None:
    bench = Bench(HoldQueue(), Order.KEY)
    bench.hold(Q, "a", "b")
    first, second = bench.run(), bench.run()
    bench.finish(first, FAILED)
    bench.finish(second, Suspend(Millis(10)))
    bench.pass_time(999)
    bench.idle()
    bench.pass_time(1)
    bench.run()


def test_used_up_hold_parks_the_lane_until_a_person_resumes_it() -> None:
    bench = Bench(HoldKey(retries=1), Order.KEY)
    bench.hold(Q, "bad", "good", "bad")
    assert bench.finish(bench.run(), FAILED).why is Why.HELD
    bench.finish(bench.run(), DONE)
    bench.pass_time(100)
    assert bench.finish(bench.run(), FAILED).why is Why.PARKED
    bench.pass_time(10**9)
    assert bench.idle().until is None
    assert bench.scheduler.snapshot()[Q].parked == ("bad",)
    assert bench.scheduler.committable(Q) == 0
    assert not bench.scheduler.resume(Q, "good")
    assert bench.scheduler.resume(Q, "bad")
    run = bench.run()
    assert (offsets(run), run.attempt) == ([0, 2], 1)
