"""The unfinished messages of a queue, compared with a naive model, and one example per rule."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lanemq.core.consuming.process_queue import ProcessQueue
from lanemq.model.errors import UsageError
from lanemq.model.units import QueueOffset


@dataclass(frozen=True)
class Msg:
    queue_offset: int
    size: int = 10


def msgs(*offsets: int) -> list[Msg]:
    return [Msg(offset) for offset in offsets]


def offsets(messages: list[Msg]) -> list[int]:
    return [message.queue_offset for message in messages]


def filled(*numbers: int, start: int = 0) -> ProcessQueue[Msg]:
    queue: ProcessQueue[Msg] = ProcessQueue(QueueOffset(start))
    queue.put(msgs(*numbers), QueueOffset(numbers[-1] + 1))
    return queue


class AgainstNaiveModel(RuleBasedStateMachine):
    """Two sorted lists, like RocketMQ's two sorted maps; everything observable must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ProcessQueue[Msg] = ProcessQueue(QueueOffset(7))
        self.ready: list[Msg] = []
        self.flying: list[list[Msg]] = []
        self.next = 7

    @rule(gaps=st.lists(st.integers(1, 3), max_size=6), tail=st.integers(0, 3))
    def put(self, gaps: list[int], tail: int) -> None:
        batch, at = [], self.next - 1
        for gap in gaps:
            at += gap
            batch.append(Msg(at, size=at % 5 + 1))
        self.next = at + 1 + tail
        was_consuming = self.queue.consuming
        dispatch = self.queue.put(batch, QueueOffset(self.next))
        assert dispatch == (bool(batch) and not was_consuming)
        self.ready += batch

    @rule(limit=st.integers(1, 9))
    def take(self, limit: int) -> None:
        expected, self.ready = self.ready[:limit], self.ready[limit:]
        assert self.queue.take(limit) == expected
        assert self.queue.consuming == bool(expected)
        if expected:
            self.flying.append(expected)

    @rule()
    def commit(self) -> None:
        expected = self.flying[-1][-1].queue_offset + 1 if self.flying else None
        assert self.queue.commit() == expected
        self.flying = []

    @rule(below=st.integers(0, 99))
    def commit_below(self, below: int) -> None:
        done = [m for part in self.flying for m in part if m.queue_offset < below]
        assert self.queue.commit(below) == (done[-1].queue_offset + 1 if done else None)
        rest = [[m for m in part if m.queue_offset >= below] for part in self.flying]
        self.flying = [part for part in rest if part]

    @rule()
    def roll_back(self) -> None:
        self.queue.roll_back()
        self.ready = [m for part in self.flying for m in part] + self.ready
        self.flying = []

    @rule(data=st.data())
    def put_back_from_the_middle(self, data: st.DataObject) -> None:
        flat = [m for part in self.flying for m in part]
        if not flat:
            return
        cut = data.draw(st.integers(0, len(flat) - 1))
        self.queue.put_back_from(flat[cut].queue_offset)
        self.flying = [flat[:cut]] if cut else []
        self.ready = flat[cut:] + self.ready

    @invariant()
    def agrees(self) -> None:
        self.queue._check()
        unfinished = [m for part in self.flying for m in part] + self.ready
        cached = self.queue.cached()
        assert (cached.count, cached.bytes) == (len(unfinished), sum(m.size for m in unfinished))
        assert self.queue.committable == (unfinished[0].queue_offset if unfinished else self.next)
        assert self.queue.next_offset == self.next
        assert self.queue.in_flight == sum(map(len, self.flying))


AgainstNaiveModel.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestAgainstNaiveModel = pytest.mark.row("A110")(AgainstNaiveModel.TestCase)


@pytest.mark.row("A111")
def test_take_gives_the_lowest_offsets_across_pulls() -> None:
    queue = filled(0, 1, 2)
    queue.put(msgs(3, 4), QueueOffset(5))
    assert offsets(queue.take(2)) == [0, 1]
    assert offsets(queue.take(2)) == [2, 3]
    assert offsets(queue.take(2)) == [4]
    assert queue.take(2) == []


@pytest.mark.row("A112")
def test_commit_returns_highest_in_flight_plus_one() -> None:
    queue = filled(0, 1, 5)
    queue.take(1)
    queue.take(2)
    assert queue.commit() == 6


@pytest.mark.row("A112")
def test_commit_with_nothing_in_flight_commits_nothing() -> None:
    """RocketMQ's ProcessQueue asks an empty sorted map for its last key, which raises."""
    queue = filled(0, 1)
    assert queue.commit() is None
    assert queue.committable == 0


@pytest.mark.row("A113")
def test_roll_back_returns_every_uncommitted_batch_in_order() -> None:
    queue = filled(0, 1, 2, 3)
    queue.take(1)
    queue.take(2)
    queue.roll_back()
    assert offsets(queue.take(9)) == [0, 1, 2, 3]


@pytest.mark.row("A114")
def test_a_batch_that_is_put_back_leaves_those_before_it_in_flight() -> None:
    queue = filled(0, 1, 2, 3)
    queue.take(2)
    queue.put_back_from(queue.take(1)[0].queue_offset)
    assert queue.in_flight == 2
    assert offsets(queue.take(9)) == [2, 3]


@pytest.mark.row("A17")
@pytest.mark.row("A61")
def test_fully_filtered_pull_moves_the_committable_offset() -> None:
    queue: ProcessQueue[Msg] = ProcessQueue(QueueOffset(0))
    assert not queue.put([], QueueOffset(40))
    assert (queue.committable, queue.next_offset) == (40, 40)


@pytest.mark.row("A17")
def test_filtered_tail_is_passed_only_when_everything_below_is_done() -> None:
    queue: ProcessQueue[Msg] = ProcessQueue(QueueOffset(0))
    queue.put(msgs(3, 5), QueueOffset(9))
    assert queue.committable == 3
    queue.take(1)
    queue.commit()
    assert queue.committable == 5
    queue.take(1)
    queue.commit()
    assert queue.committable == 9


@pytest.mark.row("A116")
def test_only_the_first_put_asks_for_a_consumer() -> None:
    """Two consumers of one queue would break its order; none would stall it."""
    queue: ProcessQueue[Msg] = ProcessQueue(QueueOffset(0))
    assert queue.put(msgs(0), QueueOffset(1))
    assert not queue.put(msgs(1), QueueOffset(2))
    queue.take(9)
    assert not queue.put(msgs(2), QueueOffset(3)), "still in charge: it will take again"
    queue.take(9)
    assert queue.take(9) == []
    assert queue.put(msgs(3), QueueOffset(4)), "the last one left with an empty take"


def test_pull_answered_twice_changes_nothing() -> None:
    queue = filled(0, 1, 2)
    queue.take(1)
    assert not queue.put(msgs(0, 1, 2, 3), QueueOffset(4))
    assert offsets(queue.take(9)) == [1, 2, 3]
    assert not queue.put(msgs(2), QueueOffset(3))
    assert queue.next_offset == 4


def test_pull_that_ends_before_its_last_message_is_misuse() -> None:
    queue: ProcessQueue[Msg] = ProcessQueue(QueueOffset(0))
    with pytest.raises(UsageError, match="cannot end at 2"):
        queue.put(msgs(1, 2), QueueOffset(2))


@pytest.mark.row("A99")
@pytest.mark.row("A50")
def test_dropped_queue_commits_takes_and_accepts_nothing() -> None:
    queue = filled(0, 1, 2)
    queue.take(1)
    queue.drop()
    assert queue.commit() is None
    assert queue.take(9) == []
    assert not queue.put(msgs(3), QueueOffset(4))
    assert queue.cached().count == 0
    assert queue.committable == 0, "what was unfinished stays unfinished"
