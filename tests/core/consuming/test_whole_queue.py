"""A queue that is one lane, with manual commit, compared with a naive model, and one example per rule."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.consuming.scheduler_fixture import Msg, Q, SchedulerFixture, offsets

from lanemq.core.consuming.retry_policy import DeadLetter, HoldQueue
from lanemq.core.consuming.runs import COMMIT, DONE, FAILED, ROLL_BACK, STOPPED, LaneRun, Order, Plain, Why
from lanemq.model.units import QueueOffset

PAUSE = 1_000


class Whole(SchedulerFixture):
    """One queue in order, from offset 7 on. A run takes what there is, a commit or a roll back ends a batch of it."""

    def __init__(self, batch_size: int = 1, run_limit: int = 4, *, start: int = 0) -> None:
        policy = DeadLetter(skip=True, hold=HoldQueue(suspend=PAUSE / 1000, retries=0))
        super().__init__(policy, Order.QUEUE, batch_size=batch_size, run_limit=run_limit, auto_commit=False)
        self.assign(Q, start=start)

    def pull(self, *at: int, until: int | None = None) -> None:
        start = self.scheduler[Q].next_offset
        messages = [Msg(offset, size=offset % 5 + 1) for offset in at]
        end = QueueOffset(until if until is not None else at[-1] + 1)
        assert self.scheduler.put(Q, messages, end, pulled_from=start)

    @property
    def committable(self) -> int:
        return self.scheduler[Q].committable


def filled(*numbers: int, batch_size: int = 1, run_limit: int = 4) -> Whole:
    whole = Whole(batch_size, run_limit)
    whole.pull(*numbers)
    return whole


class AgainstNaiveModel(RuleBasedStateMachine):
    """Two sorted lists, like RocketMQ's two sorted maps; everything observable must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = Whole(batch_size=3, run_limit=6, start=7)
        self.ready: list[int] = []
        self.flying: list[int] = []
        self.handed_over: list[int] = []
        self.run: LaneRun[Msg] | None = None
        self.next = 7

    @rule(gaps=st.lists(st.integers(1, 3), max_size=6), tail=st.integers(0, 3))
    def pull(self, gaps: list[int], tail: int) -> None:
        batch, at = [], self.next - 1
        for gap in gaps:
            at += gap
            batch.append(at)
        self.next = at + 1 + tail
        self.whole.pull(*batch, until=self.next)
        self.ready += batch

    @rule()
    def take(self) -> None:
        if self.run is not None:
            self.whole.idle()
            return
        found = self.whole.scheduler.next_run(now=self.whole.now)
        if isinstance(found, LaneRun):
            self.run = found
            expected, self.ready = self.ready[:6], self.ready[6:]
            assert offsets(found) == expected
        else:
            assert not self.ready or found.until is not None

    @rule(outcome=st.sampled_from([DONE, STOPPED, COMMIT, ROLL_BACK, FAILED]), data=st.data())
    def end(self, outcome: Plain, data: st.DataObject) -> None:
        if self.run is None:
            return
        run, self.run = self.run, None
        taken = offsets(run)
        done = len(taken) if outcome is DONE else data.draw(st.integers(0, len(taken) - 1))
        upto = done + 3 if outcome in (COMMIT, FAILED) else done
        finished = self.whole.finish(run, outcome, 0 if outcome is DONE else done)
        if outcome is FAILED:
            assert finished.why is Why.SEND_BACK
            taken_back = data.draw(st.booleans())
            self.whole.sent_back(run, *[taken_back] * len(finished.send_back))
            self.handed_over += taken[done:upto] if taken_back else []
            upto = upto if taken_back else done
        self.flying += [at for at in taken[:upto] if at not in self.handed_over]
        self.ready[:0] = taken[upto:]
        if outcome is COMMIT:
            self.flying, self.handed_over = [], []
        elif outcome is ROLL_BACK:
            self.ready[:0], self.flying = self.flying, []

    @rule()
    def wait(self) -> None:
        self.whole.pass_time(PAUSE)

    @invariant()
    def agrees(self) -> None:
        running = offsets(self.run) if self.run is not None else []
        unfinished = [*self.flying, *self.handed_over, *running, *self.ready]
        cached = self.whole.scheduler[Q].cached()
        assert (cached.count, cached.bytes) == (len(unfinished), sum(at % 5 + 1 for at in unfinished))
        assert self.whole.committable == min(unfinished, default=self.next)
        assert self.whole.scheduler[Q].next_offset == self.next


AgainstNaiveModel.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestAgainstNaiveModel = pytest.mark.row("A110")(AgainstNaiveModel.TestCase)


@pytest.mark.row("A111")
def test_a_run_takes_the_lowest_offsets_across_pulls() -> None:
    whole = filled(0, 1, 2, run_limit=2)
    whole.pull(3, 4)
    taken = []
    for _ in range(3):
        run = whole.run()
        taken.append(offsets(run))
        whole.finish(run, DONE)
    assert taken == [[0, 1], [2, 3], [4]]
    whole.idle()


@pytest.mark.row("A112")
def test_a_commit_passes_everything_that_ran() -> None:
    whole = filled(0, 1, 5, run_limit=1)
    whole.finish(whole.run(), DONE)
    whole.finish(whole.run(), DONE)
    assert whole.committable == 0
    whole.finish(whole.run(), COMMIT)
    assert whole.committable == 6


@pytest.mark.row("A112")
def test_without_a_commit_nothing_is_committable() -> None:
    """RocketMQ's ProcessQueue asks an empty sorted map for its last key, which raises."""
    whole = filled(0, 1)
    assert whole.committable == 0
    whole.finish(whole.run(), DONE)
    assert whole.committable == 0


@pytest.mark.row("A113")
def test_a_roll_back_returns_every_uncommitted_batch_in_order() -> None:
    whole = filled(0, 1, 2, 3, run_limit=2)
    whole.finish(whole.run(), DONE)
    whole.finish(whole.run(), ROLL_BACK)
    whole.pass_time(PAUSE)
    assert offsets(whole.run()) == [0, 1]


@pytest.mark.row("A114")
def test_messages_that_return_leave_those_before_them_uncommitted() -> None:
    whole = filled(0, 1, 2, 3)
    whole.finish(whole.run(), STOPPED, done=2)
    again = whole.run()
    assert (offsets(again), whole.committable) == ([2, 3], 0)
    whole.finish(again, COMMIT)
    assert whole.committable == 3


@pytest.mark.row("A17")
@pytest.mark.row("A61")
def test_fully_filtered_pull_moves_the_committable_offset() -> None:
    whole = Whole()
    whole.pull(until=40)
    assert (whole.committable, whole.scheduler[Q].next_offset) == (40, 40)
    whole.idle()


@pytest.mark.row("A17")
def test_filtered_tail_is_passed_only_when_everything_below_is_done() -> None:
    whole = Whole(run_limit=1)
    whole.pull(3, 5, until=9)
    committable = [whole.committable]
    for _ in range(2):
        whole.finish(whole.run(), COMMIT)
        committable.append(whole.committable)
    assert committable == [3, 5, 9]


@pytest.mark.row("A116")
def test_a_queue_is_offered_once_however_many_pulls_arrive() -> None:
    """Two consumers of one queue would break its order; none would stall it."""
    whole = filled(0)
    whole.pull(1)
    run = whole.run()
    assert offsets(run) == [0, 1]
    whole.pull(2)
    whole.idle()
    whole.finish(run, DONE)
    whole.finish(whole.run(), DONE)
    whole.idle()
    whole.pull(3)
    assert offsets(whole.run()) == [3], "a queue that was empty is offered again"


def test_a_pull_that_is_answered_twice_changes_nothing() -> None:
    whole = filled(0, 1, 2, run_limit=1)
    whole.run()
    messages = [Msg(at) for at in range(4)]
    assert not whole.scheduler.put(Q, messages, QueueOffset(4), pulled_from=QueueOffset(0))
    assert (whole.scheduler[Q].cached().count, whole.scheduler[Q].next_offset) == (3, 3)


@pytest.mark.row("A99")
@pytest.mark.row("A50")
def test_a_dropped_queue_commits_takes_and_accepts_nothing() -> None:
    whole = filled(0, 1, 2)
    run = whole.run()
    whole.scheduler.drop(Q)
    assert whole.finish(run, COMMIT).why is Why.QUEUE_GONE
    whole.idle()
    assert not whole.scheduler.put(Q, [Msg(3)], QueueOffset(4), pulled_from=QueueOffset(3))
    assert Q not in whole.scheduler
