"""The promises of the lane scheduler, under random pulls, outcomes, leases, drops and re-gains."""

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.consuming.scheduler_fixture import Msg, Q, R

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.retry_policy import FailurePolicy, HoldKey, HoldQueue
from lanemq.core.consuming.runs import (
    DONE,
    FAILED,
    NO_LEASE_NEEDED,
    STOPPED,
    LaneOptions,
    LaneRun,
    Order,
    Outcome,
    Suspend,
    Wait,
    Why,
)
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset


class Promises(RuleBasedStateMachine):
    """Random pulls, outcomes, leases, drops and re-gains over two queues and three keys."""

    order = Order.KEY
    policy: FailurePolicy = HoldKey(retries=3, backoff=Backoff(0.005))

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: LaneScheduler[Msg] = LaneScheduler(
            LaneOptions(policy=self.policy, order=self.order, run_limit=4)
        )
        self.now = Millis(0)
        self.running: list[LaneRun[Msg]] = []
        self.committed: dict[MessageQueue, int] = {Q: 0, R: 0}
        self.leased: dict[MessageQueue, int] = {}
        # Offsets that succeeded in the current assignment, and how far it was pulled.
        self.ended: dict[MessageQueue, set[int]] = defaultdict(set)
        self.pulled: dict[MessageQueue, int] = {}
        self.gain(Q)

    def lane(self, queue: MessageQueue, message: Msg) -> object:
        whole = {Order.QUEUE: None, Order.KEY: message.key, Order.NONE: message.queue_offset}
        return queue, whole[self.order]

    @rule(queue=st.sampled_from([Q, R]))
    def gain_if_lost(self, queue: MessageQueue) -> None:
        if queue not in self.leased:
            self.gain(queue)

    def gain(self, queue: MessageQueue) -> None:
        self.leased[queue] = self.now + 200
        start, until = QueueOffset(self.committed[queue]), Millis(self.now + 200)
        self.scheduler.add(queue, start, usable_until=until)
        self.pulled[queue] = self.committed[queue]
        self.ended[queue] = set()

    @rule(queue=st.sampled_from([Q, R]), count=st.integers(0, 6), tail=st.integers(0, 2))
    def pull(self, queue: MessageQueue, count: int, tail: int) -> None:
        start = self.pulled.get(queue)
        if queue not in self.leased or start is None:
            return
        messages = [Msg(at, key=[None, "a", "b"][at % 3]) for at in range(start, start + count)]
        end = start + count + tail
        self.ended[queue].update(range(start + count, end))
        assert self.scheduler.put(queue, messages, QueueOffset(end), pulled_from=QueueOffset(start))
        self.pulled[queue] = end

    @rule(queue=st.sampled_from([Q, R]), span=st.sampled_from([-5, 20, 500, 500]))
    def lease(self, queue: MessageQueue, span: int) -> None:
        if queue in self.leased:
            self.leased[queue] = self.now + span
            self.scheduler.set_usable_until(queue, Millis(self.now + span))

    @rule(queue=st.sampled_from([Q, R]), really=st.sampled_from([False, False, False, True]))
    def lose(self, queue: MessageQueue, really: bool) -> None:
        if really and queue in self.leased:
            del self.leased[queue]
            self.scheduler.drop(queue)

    @rule(span=st.integers(1, 30))
    def tick(self, span: int) -> None:
        self.now = Millis(self.now + span)

    @rule(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.begin_one()

    @rule(most=st.integers(1, 12))
    def begin_visit(self, most: int) -> None:
        """Several runs for one worker keep the same promises as runs for several workers."""
        runs = self.scheduler.next_runs(most, now=self.now)
        assert sum(len(run.messages) for run in runs[:-1]) < most, "no run beyond what was asked for"
        for run in runs:
            self.begun(run)

    def begin_one(self) -> None:
        run = self.scheduler.next_run(now=self.now)
        if isinstance(run, Wait):
            assert run.until is None or run.until > self.now
            return
        self.begun(run)

    def begun(self, run: LaneRun[Msg]) -> None:
        assert self.now < self.leased[run.queue]
        assert list(run.messages) == sorted(run.messages, key=lambda m: m.queue_offset), "a run is in order"
        busy = {self.lane(t.queue, m) for t in self.running for m in t.messages}
        for message in run.messages:
            lane = self.lane(run.queue, message)
            assert lane not in busy or self.order is Order.NONE, "one run in progress per lane"
            self.nothing_earlier_is_open(run.queue, message, run)
        self.running.append(run)

    def nothing_earlier_is_open(self, queue: MessageQueue, message: Msg, run: LaneRun[Msg]) -> None:
        for earlier in range(self.committed[queue], message.queue_offset):
            other = Msg(earlier, key=[None, "a", "b"][earlier % 3])
            if earlier not in self.ended[queue] and other not in run.messages:
                assert self.lane(queue, other) != self.lane(queue, message), f"{message} passed {other}"

    @rule(data=st.data(), outcome=st.sampled_from([DONE, DONE, STOPPED, FAILED, Suspend(Millis(10))]))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        if not self.running:
            return
        run = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        most = len(run.messages) - (outcome not in (DONE, STOPPED))
        done = len(run.messages) if outcome is DONE else data.draw(st.integers(0, most))
        finished = self.scheduler.finish(run, outcome, done=done, now=self.now)
        if finished.why is Why.QUEUE_GONE:
            return
        self.ended[run.queue].update(m.queue_offset for m in run.messages[:done])
        self.committed[run.queue] = self.scheduler[run.queue].committable or 0

    @rule(data=st.data(), again=st.booleans())
    def end_many(self, data: st.DataObject, again: bool) -> None:
        """Runs of all queues, also dropped ones, are reported together; a second report changes nothing."""
        runs = data.draw(st.lists(st.sampled_from(self.running), unique_by=id)) if self.running else []
        self.scheduler.finish_done(runs, now=self.now)
        assert not any(run.running for run in runs)
        for run in runs:
            self.running.remove(run)
            if run.queue in self.leased and not run.permit.dropped:
                self.ended[run.queue].update(m.queue_offset for m in run.messages)
        if again:
            self.scheduler.finish_done(runs, now=self.now)

    @invariant()
    def committable_is_the_first_unfinished(self) -> None:
        for queue in self.leased:
            at = self.scheduler[queue].committable
            assert at is not None
            assert set(range(self.committed[queue], at)) <= self.ended[queue]
            assert at not in self.ended[queue] or at == self.pulled[queue]
            finished = {o for start, end in self.scheduler[queue].finished_ranges().ranges() for o in range(start, end)}
            assert finished <= self.ended[queue]

    def teardown(self) -> None:
        """Nothing is forgotten: with time, leases and handlers that succeed, every queue is finished."""
        for run in self.running:
            self.scheduler.finish(run, DONE, now=self.now)
        for queue in self.leased:
            self.scheduler.set_usable_until(queue, NO_LEASE_NEEDED)
            for key in self.scheduler.view(queue).parked:
                assert self.scheduler.resume(queue, key)
        while True:
            run = self.scheduler.next_run(now=self.now)
            if isinstance(run, LaneRun):
                self.scheduler.finish(run, DONE, now=self.now)
            elif run.until is None:
                break
            else:
                self.now = run.until
        for queue in self.leased:
            assert self.scheduler[queue].committable == self.pulled[queue]
            assert self.scheduler[queue].cached() == Cached(0, 0, 0)
            lane_queue = self.scheduler[queue]
            lane_queue._forget_failures()  # which it does when there are many
            assert not lane_queue.failures, "counts of finished messages would pile up"


class QueuePromises(Promises):
    order = Order.QUEUE
    policy = HoldQueue(suspend=0.01)


class NonePromises(Promises):
    order = Order.NONE


for machine in (Promises, QueuePromises, NonePromises):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestKeyPromises = Promises.TestCase
TestQueuePromises = QueuePromises.TestCase
TestNonePromises = NonePromises.TestCase
