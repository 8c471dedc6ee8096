"""Each held pull is answered exactly once: by a message or at its deadline."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.brokering.consistency import check

from lanemq.core.brokering.long_poll import LongPolls
from lanemq.model.units import Millis, QueueOffset

PAID, SHIPPED = 11, 22


def hold(
    polls: LongPolls[str],
    poll_id: str,
    *,
    offset: int = 5,
    tags: frozenset[int] | None = None,
    deadline: int = 15_000,
    queue_id: int = 0,
) -> bool:
    return polls.hold(poll_id, "t", queue_id, QueueOffset(offset), tags, Millis(deadline))


def arrive(polls: LongPolls[str], max_offset: int, tags: set[int] | None = None, *, queue_id: int = 0) -> list[str]:
    return [each for each in polls.arrived("t", queue_id, QueueOffset(max_offset), tags) if each is not None]


def expire(polls: LongPolls[str], now: int) -> list[str]:
    return list(polls.expire(now=Millis(now)))


def test_arrival_answers_a_waiting_pull_once() -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a")
    assert arrive(polls, 6, {PAID}) == ["a"]
    assert arrive(polls, 7, {PAID}) == []
    assert expire(polls, 15_000) == []


def test_arrival_below_the_asked_offset_answers_nothing() -> None:
    """The offset asked for is the next one to read, so a maximum equal to it means nothing new."""
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a", offset=5)
    assert arrive(polls, 5) == []
    assert len(polls) == 1


def test_arrival_in_another_queue_answers_nothing() -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a", queue_id=0)
    assert arrive(polls, 6, queue_id=1) == []


@pytest.mark.parametrize(
    ("wanted", "came", "woken"),
    [
        (None, {PAID}, True),
        (frozenset({PAID}), {PAID, SHIPPED}, True),
        (frozenset({PAID}), {SHIPPED}, False),
        (frozenset({PAID}), None, True),
    ],
)
def test_a_held_pull_is_answered_by_matching_tags_only(
    wanted: frozenset[int] | None, came: set[int] | None, woken: bool
) -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a", tags=wanted)
    assert bool(arrive(polls, 6, came)) is woken


def test_deadline_answers_a_pull_once() -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "late", deadline=2_000)
    hold(polls, "soon", deadline=1_000)
    assert polls.next_deadline() == 1_000
    assert expire(polls, 999) == []
    assert expire(polls, 2_000) == ["soon", "late"]
    assert expire(polls, 9_000) == []
    assert arrive(polls, 6) == []
    assert polls.next_deadline() is None


def test_pulls_of_a_closed_connection_are_never_answered() -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a")
    hold(polls, "b")
    polls.forget(["a", "never held"])
    assert arrive(polls, 6) == ["b"]


def test_a_reused_id_is_not_ended_by_its_former_deadline() -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a", deadline=1_000)
    arrive(polls, 6)
    hold(polls, "a", offset=6, deadline=9_000)
    assert polls.next_deadline() == 9_000
    assert expire(polls, 1_000) == []


def test_holding_an_id_twice_is_refused_and_changes_nothing() -> None:
    polls: LongPolls[str] = LongPolls()
    hold(polls, "a", offset=5)
    with pytest.raises(ValueError, match="is held already"):
        hold(polls, "a", offset=99)
    assert arrive(polls, 6) == ["a"]


def test_a_full_table_holds_no_further_pull() -> None:
    polls: LongPolls[str] = LongPolls(capacity=1)
    assert hold(polls, "a")
    assert not hold(polls, "b")
    arrive(polls, 6)
    assert hold(polls, "b")


def test_deadlines_of_answered_pulls_are_removed() -> None:
    """The pulls of a busy queue are answered long before their deadlines; the heap must not keep them all."""
    polls: LongPolls[str] = LongPolls()
    for number in range(10_000):
        hold(polls, f"p{number}", offset=number)
        arrive(polls, number + 1)
    assert len(polls._deadlines) < 100


class LongPollMachine(RuleBasedStateMachine):
    """Compares with a simple, slow version: a dictionary that is scanned."""

    def __init__(self) -> None:
        super().__init__()
        self.polls: LongPolls[int] = LongPolls()
        self.waiting: dict[int, tuple[int, int, frozenset[int] | None, int]] = {}
        self.now = 0
        self.next_id = 0

    @rule(
        queue_id=st.integers(0, 1),
        offset=st.integers(0, 5),
        tags=st.none() | st.frozensets(st.integers(0, 2)),
        wait=st.integers(0, 10),
        reuse=st.booleans(),
    )
    def hold(self, queue_id: int, offset: int, tags: frozenset[int] | None, wait: int, reuse: bool) -> None:
        poll_id = 0 if reuse and 0 not in self.waiting else self.next_id
        self.next_id += poll_id == self.next_id
        if poll_id in self.waiting:
            return
        deadline = self.now + wait
        assert self.polls.hold(poll_id, "t", queue_id, QueueOffset(offset), tags, Millis(deadline))
        self.waiting[poll_id] = (queue_id, offset, tags, deadline)

    @rule(queue_id=st.integers(0, 1), top=st.integers(0, 6), tags=st.none() | st.sets(st.integers(0, 2)))
    def arrive(self, queue_id: int, top: int, tags: set[int] | None) -> None:
        expected = {
            poll_id
            for poll_id, (where, offset, wanted, _) in self.waiting.items()
            if where == queue_id and offset < top and (wanted is None or tags is None or wanted & tags)
        }
        arrived = self.polls.arrived("t", queue_id, QueueOffset(top), tags)
        self._answered([each for each in arrived if each is not None], expected)

    @rule(passed=st.integers(0, 6))
    def tick(self, passed: int) -> None:
        self.now += passed
        expected = {poll_id for poll_id, (*_, deadline) in self.waiting.items() if deadline <= self.now}
        self._answered(list(self.polls.expire(now=Millis(self.now))), expected)

    @invariant()
    def deadline_is_the_earliest(self) -> None:
        earliest = min((deadline for *_, deadline in self.waiting.values()), default=None)
        assert self.polls.next_deadline() == earliest
        check(self.polls)

    def _answered(self, answered: list[int], expected: set[int]) -> None:
        assert sorted(answered) == sorted(expected)
        for poll_id in answered:
            del self.waiting[poll_id]


TestLongPollMachine = LongPollMachine.TestCase
TestLongPollMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
