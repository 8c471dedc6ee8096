"""Queues of a lost connection stay with their owner until it certainly starts no more turns."""

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.brokering.consistency import check
from tests.core.brokering.test_lock_table import live_lease, shortened

from lanemq.core.brokering.keep_alive import MARGIN, KeepAlives, keep_alive_deadline
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.consuming.queue_lease import LANE_TIMES, QueueLease
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

Q0, Q1 = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1)
TIMEOUT, GRACE = LANE_TIMES.keep_alive_timeout_ms, Millis(500)
END = TIMEOUT + TIMEOUT // MARGIN


def at(millis: int) -> Millis:
    return Millis(millis)


def take(table: LockTable, owner: str, now: int, *queues: MessageQueue) -> int:
    lease = LANE_TIMES.broker_lease_ms
    return table.acquire("g", queues or [Q0], owner, lease=lease, keep_alive_timeout=TIMEOUT, now=at(now)).serial


def ends(table: LockTable, owner: str, now: int) -> list[int]:
    return [lease.expires_at for _, lease in shortened(table, owner, grace=GRACE, now=at(now))]


def test_a_lost_connection_frees_a_queue_at_the_keep_alive_deadline_of_the_last_renewal() -> None:
    table = LockTable()
    take(table, "A", 0)
    assert ends(table, "A", 100) == [END]


def test_a_member_past_its_deadline_still_gets_the_grace() -> None:
    table = LockTable()
    take(table, "A", 0)
    assert ends(table, "A", 2_000) == [2_500]


def test_a_keep_alive_counts_like_a_renewal_for_all_queues() -> None:
    table = LockTable()
    serial = take(table, "A", 0, Q0, Q1)
    assert table.keep_alive("A", serial, now=at(700))
    assert ends(table, "A", 750) == [700 + END] * 2


def test_a_keep_alive_lengthens_no_lease() -> None:
    table = LockTable()
    serial = take(table, "A", 0)
    table.keep_alive("A", serial, now=at(4_900))
    assert live_lease(table, Q0, now=at(5_000)) is None


def test_after_a_cut_keep_alives_are_refused_until_a_renewal() -> None:
    """They would let the owner continue with a queue that it is about to lose."""
    table = LockTable()
    serial = take(table, "A", 0)
    ends(table, "A", 100)
    assert not table.keep_alive("A", serial, now=at(200))
    renewed = take(table, "A", 300)
    assert renewed != serial
    assert table.keep_alive("A", renewed, now=at(400))


def test_a_lease_that_is_renewed_before_it_is_reached_is_not_shortened() -> None:
    """The broker takes the leases of a lost connection one after the other, and serves requests in between."""
    table = LockTable()
    take(table, "A", 0, Q0, Q1)
    steps = table.disconnected("A", grace=GRACE, now=at(2_000))
    next(steps)
    serial = take(table, "A", 2_100, Q1)
    assert list(steps) == [None]
    assert [queue for queue in (Q0, Q1) if live_lease(table, queue, now=at(3_000))] == [Q1]
    assert table.keep_alive("A", serial, now=at(2_200))


def test_keep_alives_are_refused_from_the_first_shortened_lease_on() -> None:
    table = LockTable()
    serial = take(table, "A", 0, Q0, Q1)
    next(table.disconnected("A", grace=GRACE, now=at(100)))
    assert not table.keep_alive("A", serial, now=at(100))


def test_serials_are_never_reused() -> None:
    """Not even if the owner lost all queues and takes another one under the same name."""
    table = LockTable()
    serial = take(table, "A", 0)
    ends(table, "A", 0)
    take(table, "B", END)
    assert take(table, "A", END, Q1) != serial


def test_a_keep_alive_without_leases_is_refused() -> None:
    alives = KeepAlives()
    assert not alives.keep_alive("A", 1, now=at(0))
    serial = alives.serial("A")
    alives.forget("A")
    assert not alives.keep_alive("A", serial, now=at(0))


def test_a_member_that_states_no_timeout_keeps_its_whole_lease() -> None:
    table = LockTable()
    table.acquire("g", [Q0], "A", lease=at(4_000), now=at(0))
    assert ends(table, "A", 0) == []


def test_a_shorter_timeout_does_not_undo_a_longer_one() -> None:
    """The owner relies on the former answer until it receives the new one."""
    table = LockTable()
    table.acquire("g", [Q0], "A", lease=at(5_000), keep_alive_timeout=at(3_000), now=at(0))
    take(table, "A", 100)
    assert ends(table, "A", 100) == [keep_alive_deadline(at(0), at(3_000))]


class TwoMembers(RuleBasedStateMachine):
    """Two members never start turns of one queue at the same time, whatever happens to requests, answers and
    connections."""

    def __init__(self) -> None:
        super().__init__()
        self.now = at(0)
        self.table = LockTable()
        self.leases = {name: {queue: QueueLease(LANE_TIMES.client_lease_ms) for queue in (Q0, Q1)} for name in "AB"}
        self.asked: list[tuple[str, Any, Millis]] = []
        self.answers: list[tuple[str, Any, Any, Millis]] = []
        self.shortening: list[Iterator[object]] = []

    names = st.sampled_from("AB")
    queues = st.sampled_from([(Q0, Q1), (Q0,), (Q1,)])
    which = st.integers(0, 3)
    prompt = st.sampled_from([True, True, True, False])

    @rule(name=names, queues=queues, prompt=prompt)
    def renew(self, name: str, queues: tuple[MessageQueue, ...], prompt: bool) -> None:
        self.asked.append((name, queues, self.now))
        if prompt:
            self.hear(-1)
            self.get_answer(-1)

    @rule(name=names, queue=st.sampled_from([Q0, Q1]), prompt=prompt)
    def keep_alive(self, name: str, queue: MessageQueue, prompt: bool) -> None:
        self.asked.append((name, self.leases[name][queue].serial, self.now))
        if prompt:
            self.hear(-1)
            self.get_answer(-1)

    @precondition(lambda self: self.asked)
    @rule(which=which)
    def hear(self, which: int) -> None:
        name, about, asked_at = self.asked.pop(which % len(self.asked))
        if isinstance(about, int):
            answer: Any = self.table.keep_alive(name, about, now=self.now)
        else:
            lease = LANE_TIMES.broker_lease_ms
            answer = self.table.acquire("g", about, name, lease=lease, keep_alive_timeout=TIMEOUT, now=self.now)
        self.answers.append((name, about, answer, asked_at))

    @precondition(lambda self: self.answers)
    @rule(which=which)
    def get_answer(self, which: int) -> None:
        name, about, answer, asked_at = self.answers.pop(which % len(self.answers))
        leases = self.leases[name]
        if isinstance(about, int):
            for lease in leases.values() if answer else ():
                lease.kept_alive(about, asked_at=asked_at)
            return
        for refusal in answer.refused:
            leases[refusal.queue].lost()
        for granted in answer.granted:
            lease = leases[granted.queue]
            lease.granted(granted.epoch, asked_at=asked_at, keep_alive_timeout=TIMEOUT, serial=answer.serial)

    @precondition(lambda self: self.answers)
    @rule(which=which)
    def lose_answer(self, which: int) -> None:
        self.answers.pop(which % len(self.answers))

    @rule(name=names)
    def broker_finds_the_connection_lost(self, name: str) -> None:
        self.shortening.append(self.table.disconnected(name, grace=GRACE, now=self.now))
        self.shorten_the_next_lease(-1)

    @precondition(lambda self: self.shortening)
    @rule(which=which)
    def shorten_the_next_lease(self, which: int) -> None:
        next(self.shortening[which % len(self.shortening)], None)

    @rule(name=names, queues=queues)
    def another_takes_over_as_soon_as_it_can(self, name: str, queues: tuple[MessageQueue, ...]) -> None:
        ends = [lease.expires_at for queue in queues if (lease := live_lease(self.table, queue, now=self.now))]
        self.now = max([self.now, *ends])
        self.renew(name, queues, prompt=True)

    @rule(passed=st.sampled_from([1, 100, 250, 400, 500, 700]))
    def wait(self, passed: int) -> None:
        self.now = at(self.now + passed)

    @invariant()
    def one_starts_turns(self) -> None:
        for queue in (Q0, Q1):
            assert sum(leases[queue].usable(now=self.now) for leases in self.leases.values()) <= 1

    @invariant()
    def indexes_agree(self) -> None:
        check(self.table)


TestTwoMembers = TwoMembers.TestCase
TestTwoMembers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
