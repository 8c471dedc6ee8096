"""Finished ranges as sets of offsets, and owners that crash at any point of using them."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lanemq.core.backoff import Backoff
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import CommitKind, Committed
from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.consuming.runs import DONE, FAILED, NO_LEASE_NEEDED, STOPPED, LaneOptions, LaneRun, Order, Outcome
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import MAX_RANGES, NOTHING_FINISHED, FinishedRanges
from lanemq.model.errors import RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("orders", "broker-a", 0)
END = 40
offset_sets = st.sets(st.integers(0, END - 1))


def covered(finished: FinishedRanges) -> set[int]:
    return {offset for start, end in finished.ranges() for offset in range(start, end)}


@settings(max_examples=200, deadline=None)
@given(offset_sets, offset_sets, st.integers(0, END))
def test_ranges_are_a_set_of_offsets(some: set[int], others: set[int], at: int) -> None:
    finished = FinishedRanges.of_offsets(sorted(some))
    assert covered(finished) == {offset for offset in range(END) if offset in finished} == some
    assert covered(finished.above(at)) == {offset for offset in some if offset > at}
    assert covered(finished.below(at)) == {offset for offset in some if offset < at}
    assert finished.past(QueueOffset(at)) == next(offset for offset in range(at, END + 2) if offset not in some)
    both = finished.joined(FinishedRanges.of_offsets(sorted(others)))
    assert both == FinishedRanges.of_offsets(sorted(some | others)), (
        "whatever touches is one range: equal sets, equal maps"
    )
    assert bool(finished) == bool(some)


@settings(max_examples=200, deadline=None)
@given(offset_sets, st.integers(0, END), st.integers(0, 5))
def test_ranges_survive_their_text_form_and_are_cut_at_the_upper_end(some: set[int], at: int, most: int) -> None:
    finished = FinishedRanges.of_offsets(sorted(some)).above(at)
    assert FinishedRanges.decode(finished.encode(at), at) == finished
    kept = finished.lowest(most)
    assert len(kept.ranges()) == min(most, len(finished.ranges()))
    dropped = covered(finished) - covered(kept)
    assert not dropped or max(covered(kept), default=-1) < min(dropped)


def test_ranges_at_or_below_the_offset_are_not_written() -> None:
    assert FinishedRanges.of([(1, 4), (6, 8)]).encode(2) == "1,1,2,2"
    assert FinishedRanges.of([(1, 4)]).encode(5) == ""


@pytest.mark.parametrize(
    "text",
    ["1", "1,2,3", "0,1", "1,0", "2,-1", "1,x", "1,", ",", "1,2;3,4", f"1,{2**63}", "1," * 2 * MAX_RANGES + "1,1"],
    ids=lambda text: text[:12],
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="finished ranges"):
        FinishedRanges.decode(text, 7)


def test_the_text_of_the_most_ranges_fits_into_a_megabyte() -> None:
    step = (2**63 - 1) // (2 * MAX_RANGES + 1)
    finished = FinishedRanges(tuple(step * n for n in range(1, 2 * MAX_RANGES + 1)))
    assert len(finished.encode(0)) < 1_000_000
    assert FinishedRanges.decode(finished.encode(0), 0) == finished


# A queue through the hands of many owners


@dataclass(frozen=True)
class Msg:
    queue_offset: int
    size: int = 1

    @property
    def key(self) -> str:
        return "abcde"[self.queue_offset * 7 % 11 % 5]


def wanted(start: int, end: int) -> list[int]:
    """The offsets that the group's filter accepts."""
    return [at for at in range(start, end) if at % 13 != 4]


@dataclass
class Owner:
    """One member that owns the queue; it may crash at any moment."""

    scheduler: LaneScheduler[Msg]
    running: list[LaneRun[Msg]] = field(default_factory=list)


class Owners(RuleBasedStateMachine):
    """Random finish order, commits now and then, crashes at any point; the group's table is the broker's.

    Checked at every start of a message, by a world that sees everything: nothing earlier of its key is
    unfinished, and it is a repeat only if it had not been reported.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = ProgressTable(serial=1)
        self.now = Millis(0)
        self.stored = 20
        self.finished: set[int] = set()
        self.reported: set[int] = set()
        self.take_over()

    def take_over(self) -> None:
        """A new owner starts with what the lock's answer contains."""
        progress = self.table.at("g", Q)
        start = progress.offset or QueueOffset(0)
        done = FinishedRanges.decode(progress.finished, start)
        options = LaneOptions(policy=HoldKey(retries=9, backoff=Backoff(0.005)), run_limit=3)
        self.owner = Owner(LaneScheduler(options))
        self.owner.scheduler.add(Q, start, usable_until=NO_LEASE_NEEDED, finished=done)
        assert self.owner.scheduler[Q].finished_ranges() == done, "an owner that did nothing has nothing to report"

    @rule(count=st.integers(1, 8))
    def send(self, count: int) -> None:
        self.stored += count

    @rule(most=st.integers(3, 12))
    def pull(self, most: int) -> None:
        start = self.owner.scheduler[Q].next_offset
        end = min(start + most, self.stored)
        if start < end:
            messages = [Msg(at) for at in wanted(start, end)]
            assert self.owner.scheduler.put(Q, messages, QueueOffset(end), pulled_from=start)

    @rule(count=st.integers(2, 5))
    def begin(self, count: int) -> None:
        for _ in range(count):
            run = self.owner.scheduler.next_run(now=self.now)
            if isinstance(run, LaneRun):
                self.check_start(run)
                self.owner.running.append(run)

    def check_start(self, run: LaneRun[Msg]) -> None:
        first = run.messages[0]
        run = [message.queue_offset for message in run.messages]
        earlier = {at for at in wanted(0, run[0]) if Msg(at).key == first.key}
        assert earlier <= self.finished, f"{first} started before {earlier - self.finished}"
        line = [at for at in wanted(run[0], run[-1] + 1) if Msg(at).key == first.key]
        assert run == line, "a run leaves nothing of its key out"
        assert not self.reported & set(run), "repeated although it was reported"

    @rule(picks=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def end_well(self, picks: list[int]) -> None:
        for pick in picks:
            self.end(pick, DONE, 0)

    @rule(pick=st.integers(0, 4), outcome=st.sampled_from([STOPPED, FAILED]), part=st.integers(0, 2))
    def end(self, pick: int, outcome: Outcome, part: int) -> None:
        if not self.owner.running:
            return
        run = self.owner.running.pop(pick % len(self.owner.running))
        done = len(run.messages) if outcome is DONE else min(part, len(run.messages) - 1)
        self.owner.scheduler.finish(run, outcome, done=done, now=self.now)
        self.finished |= {m.queue_offset for m in run.messages[:done]}

    @rule()
    def wait(self) -> None:
        self.now = Millis(self.now + 50)

    @rule(most=st.sampled_from([0, 1, 2, MAX_RANGES, MAX_RANGES]))
    def commit(self, most: int) -> None:
        """`most`: how many ranges are reported."""
        offset = self.owner.scheduler[Q].committable
        assert offset is not None
        finished = self.owner.scheduler[Q].finished_ranges().lowest(most)
        outcome = self.table.at("g", Q).commit(offset, kind=CommitKind.FORWARD, finished=finished)
        assert isinstance(outcome, Committed)
        reported = covered(finished) & set(wanted(0, self.stored))
        assert reported <= self.finished
        self.reported = reported | set(wanted(0, offset))

    @rule()
    def crash(self) -> None:
        self.take_over()

    @rule()
    def restart_broker(self) -> None:
        rows, self.table = self.table.take_unsaved(), ProgressTable(serial=1)  # never saved before, so all of them
        self.table.restore(rows)
        self.table.not_saved(rows)

    @invariant()
    def finished_messages_of_a_key_are_its_first_ones(self) -> None:
        done = covered(self.owner.scheduler[Q].finished_ranges()) | set(range(self.owner.scheduler[Q].committable or 0))
        for key in "abcde":
            line = [at in done for at in wanted(0, self.stored) if Msg(at).key == key]
            assert line == sorted(line, reverse=True), f"{key}: {line}"

    def teardown(self) -> None:
        """Nothing is lost: the last owner finishes everything that the others left."""
        for run in self.owner.running:
            self.owner.scheduler.finish(run, DONE, now=self.now)
            self.finished |= {m.queue_offset for m in run.messages}
        self.take_over()
        while True:
            start = self.owner.scheduler[Q].next_offset
            if start is None or start >= self.stored:
                break
            self.pull(6)
            while isinstance(run := self.owner.scheduler.next_run(now=self.now), LaneRun):
                self.check_start(run)
                self.owner.scheduler.finish(run, DONE, now=self.now)
                self.finished |= {m.queue_offset for m in run.messages}
        assert self.finished == set(wanted(0, self.stored))
        assert self.owner.scheduler[Q].committable == self.stored
        assert self.owner.scheduler[Q].finished_ranges() == NOTHING_FINISHED


Owners.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestOwners = Owners.TestCase


def keyed(start: int, done: FinishedRanges) -> LaneScheduler[Msg]:
    scheduler: LaneScheduler[Msg] = LaneScheduler(LaneOptions(policy=HoldKey(), run_limit=1))
    scheduler.add(Q, QueueOffset(start), usable_until=NO_LEASE_NEEDED, finished=done)
    return scheduler


def test_messages_that_former_owners_finished_are_not_run() -> None:
    scheduler = keyed(0, FinishedRanges.of([(1, 3), (4, 5)]))
    assert scheduler.put(Q, [Msg(at) for at in range(6)], QueueOffset(6), pulled_from=QueueOffset(0))
    seen = []
    while isinstance(run := scheduler.next_run(now=Millis(0)), LaneRun):
        seen += [message.queue_offset for message in run.messages]
        scheduler.finish(run, DONE, now=Millis(0))
    assert sorted(seen) == [0, 3, 5]
    assert scheduler[Q].committable == 6


def test_a_range_that_former_owners_finished_is_not_pulled() -> None:
    scheduler = keyed(0, FinishedRanges.of([(2, 30)]))
    assert scheduler.put(Q, [Msg(0), Msg(1)], QueueOffset(2), pulled_from=QueueOffset(0))
    assert scheduler[Q].next_offset == 30
    assert scheduler[Q].cached().count == 2
    assert scheduler[Q].finished_ranges().ranges() == [(2, 30)]


def test_filtered_messages_are_finished_once_a_later_message_has_arrived() -> None:
    """A next owner with more tags would run them after newer messages of their keys."""
    scheduler = keyed(0, NOTHING_FINISHED)
    assert scheduler.put(Q, [Msg(0), Msg(1), Msg(5)], QueueOffset(8), pulled_from=QueueOffset(0))
    unfinished = scheduler.next_run(now=Millis(0))
    while isinstance(run := scheduler.next_run(now=Millis(0)), LaneRun):
        scheduler.finish(run, DONE, now=Millis(0))
    assert isinstance(unfinished, LaneRun)
    assert scheduler[Q].finished_ranges().ranges() == [(1, 6)]


def test_a_repeat_that_is_left_out_is_the_newest_finished_message() -> None:
    """Nothing finished is above its mark: if the log loses the repeat, its offset gets a new message."""
    scheduler: LaneScheduler[Msg] = LaneScheduler(LaneOptions(policy=HoldKey(), run_limit=1))
    scheduler.add(Q, QueueOffset(0), usable_until=NO_LEASE_NEEDED, keeps_newest=True)
    scheduler[Q].leave_out([Msg(2), Msg(3)])
    assert scheduler.put(Q, [Msg(0), Msg(1)], QueueOffset(4), pulled_from=QueueOffset(0))
    run = scheduler.next_run(now=Millis(0))
    assert isinstance(run, LaneRun)
    scheduler.finish(run, DONE, now=Millis(0))
    assert scheduler[Q].newest_finished == Msg(3)


def test_with_the_whole_queue_in_order_there_are_no_finished_ranges_and_none_are_taken_over() -> None:
    scheduler: LaneScheduler[Msg] = LaneScheduler(LaneOptions(order=Order.QUEUE, run_limit=1))
    scheduler.add(Q, QueueOffset(0), usable_until=NO_LEASE_NEEDED, finished=FinishedRanges.of([(1, 2)]))
    assert scheduler.put(Q, [Msg(0), Msg(1)], QueueOffset(2), pulled_from=QueueOffset(0))
    seen = []
    while isinstance(run := scheduler.next_run(now=Millis(0)), LaneRun):
        seen += [message.queue_offset for message in run.messages]
        assert scheduler[Q].finished_ranges() == NOTHING_FINISHED
        scheduler.finish(run, DONE, now=Millis(0))
    assert seen == [0, 1]


@pytest.mark.parametrize(("text", "again"), [("1,2,3,4", "1,2,3,4"), ("01, 2,+3,4", "1,2,3,4"), ("1_0,1", "10,1")])
def test_decoded_ranges_are_written_as_ranges_are_whatever_the_text_was(text: str, again: str) -> None:
    """Text that is as `encode` writes it is kept, because writing many ranges takes milliseconds."""
    decoded = FinishedRanges.decode(text, 5)
    assert decoded.encode(5) == again
    assert decoded == FinishedRanges(decoded.bounds)
    assert decoded.below(100).encode(5) == again
    assert decoded.below(decoded.bounds[-1] - 1).encode(5) != again
    assert decoded.encode(6) == FinishedRanges(decoded.bounds).encode(6)
