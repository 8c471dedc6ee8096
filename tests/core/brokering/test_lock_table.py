"""One owner per group and queue, and epochs that only grow."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.brokering.consistency import check

from lanemq.core.brokering import lock_table
from lanemq.core.brokering.lock_table import Current, Lease, LockTable, Refusal, SavedLease, Stale, Unowned, Verdict
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis

Q0, Q1 = MessageQueue("orders", "a", 0), MessageQueue("orders", "a", 1)
LANE, TIMEOUT = Millis(5_000), Millis(800)


def at(seconds: float) -> Millis:
    return Millis(round(seconds * 1000))


def take(
    table: LockTable,
    owner: str,
    now: Millis,
    *,
    queue: MessageQueue = Q0,
    lease: Millis | None = None,
    group: str = "g",
    timeout: Millis = TIMEOUT,
) -> Lease | Refusal:
    grant = table.acquire(group, [queue], owner, lease=lease, keep_alive_timeout=timeout, now=now)
    return grant.granted[0] if grant.granted else grant.refused[0]


def live_lease(table: LockTable, queue: MessageQueue, *, now: Millis, group: str = "g") -> Lease | None:
    lease = table.latest(group, queue)
    return lease if lease is not None and now < lease.expires_at else None


def shortened(table: LockTable, owner: str, *, grace: Millis, now: Millis) -> tuple[tuple[str, Lease], ...]:
    """The leases that the end of a connection shortens, all at once."""
    return tuple(each for each in table.disconnected(owner, grace=grace, now=now) if each is not None)


def epoch_of(answer: Lease | Refusal) -> Epoch:
    assert isinstance(answer, Lease), answer
    return answer.epoch


@pytest.mark.row("A37")
@pytest.mark.row("A41")
def test_a_free_queue_is_granted_for_sixty_seconds() -> None:
    assert take(LockTable(), "A", at(0)) == Lease(Q0, "A", Epoch(1), at(60), changed=True)


@pytest.mark.row("A38")
def test_an_owner_that_asks_again_renews_its_lease_and_keeps_its_epoch() -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert take(table, "A", at(20)) == Lease(Q0, "A", Epoch(1), at(80), changed=False)


@pytest.mark.row("A40")
def test_held_queue_is_refused_with_holder_and_time_left() -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert take(table, "B", at(31)) == Refusal(Q0, "A", Millis(29_000))


@pytest.mark.row("A39")
def test_an_expired_lease_goes_to_the_next_member_that_asks() -> None:
    """Not one millisecond earlier, and with a new epoch."""
    table = LockTable()
    take(table, "A", at(0))
    assert take(table, "B", at(59.999)) == Refusal(Q0, "A", Millis(1))
    assert take(table, "B", at(60.001)) == Lease(Q0, "B", Epoch(2), at(120.001), changed=True)


@pytest.mark.row("A42")
@pytest.mark.parametrize(("lost_renewals", "kept"), [(2, True), (3, False)])
def test_two_lost_renewals_are_survived_and_three_are_not(lost_renewals: int, kept: bool) -> None:
    """Renewal every 20 s, lease 60 s; the rival asks just before the first renewal that arrives."""
    table = LockTable()
    take(table, "A", at(0))
    just_before_next = at(20 * (lost_renewals + 1)) - 1
    assert isinstance(take(table, "B", Millis(just_before_next)), Refusal) is kept


@pytest.mark.row("A33")
def test_partial_grant_names_what_was_granted_and_what_was_not() -> None:
    table = LockTable()
    take(table, "A", at(0), queue=Q0)
    grant = table.acquire("g", [Q0, Q1], "B", lease=None, now=at(1))
    assert [lease.queue for lease in grant.granted] == [Q1]
    assert [refusal.queue for refusal in grant.refused] == [Q0]


@pytest.mark.row("A34")
def test_groups_do_not_see_each_other() -> None:
    table = LockTable()
    assert epoch_of(take(table, "A", at(0), group="g")) == 1
    assert epoch_of(take(table, "B", at(0), group="h")) == 1


@pytest.mark.row("A36")
def test_of_many_members_that_ask_exactly_one_gets_the_queue() -> None:
    table = LockTable()
    answers = [take(table, f"C{number}", at(0)) for number in range(64)]
    assert sum(isinstance(answer, Lease) for answer in answers) == 1


@pytest.mark.row("A35")
def test_renewals_cost_no_memory() -> None:
    """Members renew every few seconds for months."""
    table = LockTable()
    for second in range(1000):
        take(table, "A", at(second))
    assert len(table._ends) == 1


def test_renewal_with_a_shorter_lease_never_shortens_the_lock() -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert take(table, "A", at(1), lease=LANE) == Lease(Q0, "A", Epoch(1), at(60))


def test_lease_longer_than_the_stock_one_is_cut() -> None:
    """One client must not be able to block its group for a day."""
    assert take(LockTable(), "A", at(0), lease=at(86_400)) == Lease(Q0, "A", Epoch(1), at(60), changed=True)


def test_a_late_renewal_keeps_the_epoch_if_the_queue_had_no_other_owner() -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert take(table, "A", at(100)) == Lease(Q0, "A", Epoch(1), at(160))


def test_owner_that_comes_back_after_another_gets_a_new_epoch() -> None:
    table = LockTable()
    answers = [take(table, "A", at(0)), take(table, "B", at(61)), take(table, "A", at(122))]
    assert [epoch_of(answer) for answer in answers] == [1, 2, 3]


def test_lock_request_without_client_id_changes_nothing() -> None:
    """The empty client id stands for "no owner" and must never be granted anything."""
    table = LockTable()
    with pytest.raises(InvalidOption, match="client id"):
        take(table, "", at(0))
    assert not table.holds_any("g", now=at(0))


def test_a_lease_without_length_is_refused() -> None:
    with pytest.raises(InvalidOption, match="1 ms or more"):
        take(LockTable(), "A", at(0), lease=Millis(0))


def test_released_queue_can_be_taken_at_once_with_a_new_epoch() -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert table.release("g", [Q0, Q1], "A", epoch=None, now=at(1)) == (
        SavedLease("g", Q0, "", Epoch(1), Millis(60_000), True),
    )
    assert epoch_of(take(table, "B", at(1))) == 2


def test_a_release_by_another_client_does_nothing() -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert table.release("g", [Q0], "B", epoch=None, now=at(1)) == ()
    assert isinstance(take(table, "B", at(1)), Refusal)


def test_late_release_of_a_former_lease_does_not_end_the_new_one() -> None:
    """RocketMQ's delayed unlock names only the client, and frees a lease that was granted in between."""
    table = LockTable()
    old = epoch_of(take(table, "A", at(0), lease=LANE))
    table.release("g", [Q0], "A", epoch=old, now=at(1))
    new = epoch_of(take(table, "A", at(2), lease=LANE))
    assert new > old
    assert table.release("g", [Q0], "A", epoch=old, now=at(3)) == ()
    assert isinstance(take(table, "B", at(3)), Refusal)


def test_disconnect_ends_a_lane_lease_after_the_grace_only() -> None:
    table = LockTable()
    take(table, "A", at(0), lease=LANE)
    assert shortened(table, "A", grace=at(1), now=at(2)) == (("g", Lease(Q0, "A", Epoch(1), at(3))),)
    assert take(table, "B", at(2.5)) == Refusal(Q0, "A", Millis(500))
    assert epoch_of(take(table, "B", at(3))) == 2


def test_disconnect_never_lengthens_a_lease() -> None:
    table = LockTable()
    take(table, "A", at(0), lease=LANE)
    assert shortened(table, "A", grace=at(30), now=at(2)) == ()
    assert epoch_of(take(table, "B", at(5))) == 2


def test_disconnect_leaves_a_stock_lease_alone() -> None:
    """A stock client uses its lock for 30 s, connected or not."""
    table = LockTable()
    take(table, "A", at(0))
    assert shortened(table, "A", grace=at(0), now=at(1)) == ()
    assert isinstance(take(table, "B", at(59)), Refusal)


def test_reconnected_owner_renews_within_the_grace() -> None:
    table = LockTable()
    take(table, "A", at(0), lease=LANE)
    shortened(table, "A", grace=at(1), now=at(1))
    assert take(table, "A", at(1.5), lease=LANE) == Lease(Q0, "A", Epoch(1), at(6.5))


def test_disconnect_touches_only_queues_still_owned() -> None:
    table = LockTable()
    take(table, "A", at(0), lease=LANE)
    take(table, "B", at(5), lease=LANE)
    assert shortened(table, "A", grace=at(0), now=at(6)) == ()
    assert isinstance(take(table, "A", at(7)), Refusal)


@pytest.mark.parametrize(
    ("owner", "epoch", "now", "expected"),
    [
        ("A", 1, 1, Current(Epoch(1))),
        ("A", 1, 999, Current(Epoch(1))),  # expired, but granted to no other since
        ("A", 0, 1, Stale("A", Epoch(1))),
        ("A", 2, 1, Stale("A", Epoch(1))),  # an epoch that was never granted
        ("B", 1, 1, Stale("A", Epoch(1))),
        ("B", 1, 999, Stale("", Epoch(1))),
        ("A", None, 1, Current(Epoch(1))),
        ("A", None, 999, Current(Epoch(1))),
        ("B", None, 1, Stale("A", Epoch(1))),
        ("B", None, 999, Unowned()),
    ],
)
def test_verdict_on_a_granted_queue(owner: str, epoch: int | None, now: int, expected: Verdict) -> None:
    table = LockTable()
    take(table, "A", at(0))
    assert table.verdict("g", Q0, owner, None if epoch is None else Epoch(epoch), now=at(now)) == expected


def test_frozen_owner_is_stale_once_another_was_granted() -> None:
    table = LockTable()
    old = epoch_of(take(table, "A", at(0), lease=LANE))
    take(table, "B", at(6), lease=LANE)
    assert table.verdict("g", Q0, "A", old, now=at(7)) == Stale("B", Epoch(2))
    assert table.verdict("g", Q0, "A", old, now=at(999)) == Stale("", Epoch(2))


def test_release_ends_the_epoch_for_good() -> None:
    table = LockTable()
    epoch = epoch_of(take(table, "A", at(0), lease=LANE))
    table.release("g", [Q0], "A", epoch=epoch, now=at(1))
    assert table.verdict("g", Q0, "A", epoch, now=at(1)) == Stale("", Epoch(1))


def test_verdict_on_a_queue_that_was_never_locked() -> None:
    """An epoch that the broker does not know means that its state was lost: the client must lock again."""
    assert LockTable().verdict("g", Q0, "A", None, now=at(0)) == Unowned()
    assert LockTable().verdict("g", Q0, "A", Epoch(3), now=at(0)) == Stale("", Epoch(0))


def test_a_group_holds_a_lock_until_its_lease_ends() -> None:
    table = LockTable()
    lease = take(table, "A", at(0))
    assert isinstance(lease, Lease)
    assert live_lease(table, Q0, now=at(59.999)) == lease._replace(changed=False)
    assert table.holds_any("g", now=at(59.999))
    assert live_lease(table, Q0, now=at(60)) is None
    assert not table.holds_any("g", now=at(60))


def test_each_expired_lease_is_reported_once() -> None:
    table = LockTable()
    take(table, "A", at(0), lease=LANE)
    assert table.expire(now=at(4.999)) == ()
    assert table.expire(now=at(5)) == (("g", Lease(Q0, "A", Epoch(1), at(5))),)
    assert table.expire(now=at(6)) == ()


def test_many_leases_that_end_together_are_reported_in_several_calls_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One call for all of a hundred thousand would hold the event loop; the queues are free in any case."""
    monkeypatch.setattr(lock_table, "MAX_LOOKS", 4)
    table, queues = LockTable(), [MessageQueue("orders", "a", number) for number in range(10)]
    table.acquire("g", queues, "A", lease=LANE, now=at(0))
    calls = [table.expire(now=at(5)) for _ in range(4)]
    assert [len(each) for each in calls] == [4, 4, 2, 0]
    assert [lease.queue for call in calls for _, lease in call] == queues
    check(table)


def test_expiry_follows_renewal_and_release() -> None:
    table = LockTable()
    take(table, "A", at(0), lease=LANE)
    take(table, "A", at(3), lease=LANE)
    assert table.expire(now=at(7.999)) == ()
    assert len(table.expire(now=at(8))) == 1
    take(table, "A", at(9), lease=LANE)
    table.release("g", [Q0], "A", epoch=None, now=at(10))
    assert table.expire(now=at(99)) == ()


def test_a_short_lease_after_a_released_long_one_expires_in_time() -> None:
    table = LockTable()
    take(table, "A", at(0))
    table.release("g", [Q0], "A", epoch=None, now=at(1))
    take(table, "B", at(1), lease=LANE)
    assert table.expire(now=at(5.999)) == ()
    assert [lease.owner for _, lease in table.expire(now=at(6))] == ["B"]


def test_only_changes_must_be_saved() -> None:
    table = LockTable()
    first = table.acquire("g", [Q0], "A", lease=LANE, now=at(0))
    assert first.changes == (SavedLease("g", Q0, "A", Epoch(1), LANE, False),)
    assert table.acquire("g", [Q0], "A", lease=LANE, now=at(1)).changes == ()
    longer = table.acquire("g", [Q0], "A", lease=None, now=at(2))
    assert longer.changes == (SavedLease("g", Q0, "A", Epoch(1), Millis(60_000), True),)


def test_restart_protects_the_owner_for_a_full_lease() -> None:
    """In RocketMQ, the first member that asks after a restart gets the queue while the old owner still runs."""
    table = LockTable()
    table.restore([SavedLease("g", Q0, "A", Epoch(7), LANE, False)], now=at(100))
    assert take(table, "B", at(104.999)) == Refusal(Q0, "A", Millis(1))
    assert take(table, "A", at(104.999), lease=LANE) == Lease(Q0, "A", Epoch(7), at(109.999))
    assert epoch_of(take(table, "B", at(110))) == 8


def test_restart_remembers_the_epoch_of_a_released_queue() -> None:
    table = LockTable()
    table.restore([SavedLease("g", Q0, "", Epoch(7), LANE, False)], now=at(100))
    assert not table.holds_any("g", now=at(100))
    assert epoch_of(take(table, "B", at(100))) == 8


def test_a_disconnect_shortens_a_restored_lease_only_after_its_full_length() -> None:
    """The owner's keep-alive timeout from before the restart is unknown."""
    table = LockTable()
    table.restore([SavedLease("g", Q0, "A", Epoch(7), LANE, False)], now=at(0))
    assert shortened(table, "A", grace=at(1), now=at(0)) == ()
    take(table, "A", at(4.5), lease=LANE)
    assert shortened(table, "A", grace=at(1), now=at(4.6)) != ()


def test_leases_of_a_deleted_topic_leave_only_their_highest_epoch() -> None:
    table = LockTable()
    other = MessageQueue("bills", "a", 0)
    take(table, "A", at(0))
    take(table, "B", at(61))
    take(table, "A", at(61), queue=other)
    assert [*table.forget_topic("orders").steps] == [SavedLease("g", Q0, "B", Epoch(2), at(60), True)]
    assert isinstance(table.verdict("g", Q0, "B", Epoch(2), now=at(62)), Stale)
    assert table.verdict("g", other, "A", Epoch(1), now=at(62)) == Current(Epoch(1))
    assert epoch_of(take(table, "B", at(62), group="another")) == 3, "for any group"
    assert table.forget_topic("bills").groups == ("g",)
    assert table._groups.keys() == {"another"}


def test_an_owner_that_locks_again_while_its_old_leases_are_freed_keeps_the_new_ones() -> None:
    """The new lease has a higher epoch, ends when its owner disconnects, and keeps its keep-alives."""
    table = LockTable()
    ask: Any = {"lease": LANE, "keep_alive_timeout": TIMEOUT}
    old = table.acquire("g", [Q0, Q1], "A", now=at(0), **ask)
    freeing = table.forget_group("g").steps
    assert isinstance(table.verdict("g", Q0, "A", old.granted[0].epoch, now=at(1)), Stale), "before anything is freed"
    assert table.count("g") == 0
    new = table.acquire("g", [Q0], "A", now=at(1), **ask)
    assert epoch_of(new.granted[0]) > max(lease.epoch for lease in old.granted)
    rows = [*freeing]
    assert {row.queue for row in rows if row is not None} == {Q0, Q1}
    check(table)
    assert table.count("g") == 1
    assert table.keep_alive("A", new.serial, now=at(1))
    assert [lease.queue for _, lease in shortened(table, "A", grace=at(1), now=at(1))] == [Q0]


def test_a_disconnect_does_not_shorten_a_lease_that_was_forgotten_and_is_not_freed_yet() -> None:
    table = LockTable()
    table.acquire("g", [Q0], "A", lease=LANE, keep_alive_timeout=TIMEOUT, now=at(0))
    freeing = table.forget_topic("orders").steps
    assert shortened(table, "A", grace=at(1), now=at(0)) == ()
    assert len([*freeing]) == 1
    assert table._by_owner == {}


def test_a_deleted_topic_costs_by_the_groups_that_had_it() -> None:
    table = LockTable()
    take(table, "A", at(0))
    take(table, "A", at(0), queue=MessageQueue("bills", "a", 0), group="another")
    table._groups = Unwalkable(table._groups)
    assert table.forget_topic("orders").groups == ("g",)
    assert table.forget_topic("orders").groups == ()


class Unwalkable(dict[str, Any]):
    """A table in which single entries can be looked up."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all groups are looked at")


def test_an_empty_lock_request_leaves_nothing_behind() -> None:
    table = LockTable()
    table.acquire("g", [], "A", lease=None, now=at(0))
    assert table._groups == {}


class LockTableMachine(RuleBasedStateMachine):
    """Any schedule of asking, releasing, losing connections, waiting, deleting the topic and restarting."""

    owners = st.sampled_from("ABC")
    queues = st.lists(st.sampled_from([Q0, Q1]), min_size=1, max_size=2, unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.table = LockTable()
        self.floor = Epoch(0)
        self.now = Millis(0)
        self.disk: dict[tuple[str, MessageQueue], SavedLease] = {}
        self.granted: dict[MessageQueue, list[tuple[Epoch, str]]] = {Q0: [], Q1: []}
        self.freeing: list[Iterator[object]] = []

    @rule(owner=owners, queues=queues, lease=st.sampled_from([None, 1_000, 5_000, 90_000]))
    def ask(self, owner: str, queues: list[MessageQueue], lease: int | None) -> None:
        before = {queue: live_lease(self.table, queue, now=self.now) for queue in queues}
        wish = None if lease is None else Millis(lease)
        grant = self.table.acquire("g", queues, owner, lease=wish, keep_alive_timeout=TIMEOUT, now=self.now)
        self._persist(grant.changes)
        answered = [lease.queue for lease in grant.granted] + [refusal.queue for refusal in grant.refused]
        assert sorted(answered) == sorted(queues)
        for refusal in grant.refused:
            held = before[refusal.queue]
            assert held is not None
            assert held.owner == refusal.holder != owner
        for given in grant.granted:
            held = before[given.queue]
            assert held is None or (held.owner == owner and given.expires_at >= held.expires_at)
            self._note(given)

    @rule(owner=owners, queues=queues, back=st.sampled_from([None, 0, 1]))
    def release(self, owner: str, queues: list[MessageQueue], back: int | None) -> None:
        history = self.granted[queues[0]]
        epoch = None if back is None or not history else Epoch(history[-1][0] - back)
        for row in self.table.release("g", queues, owner, epoch=epoch, now=self.now):
            assert epoch in (None, row.epoch)
            assert live_lease(self.table, row.queue, now=self.now) is None
            self._persist([row])

    @rule(owner=owners, grace=st.sampled_from([0, 1_000]))
    def lose_connection(self, owner: str, grace: int) -> None:
        shortened(self.table, owner, grace=Millis(grace), now=self.now)

    @rule(passed=st.sampled_from([1, 999, 1_000, 4_999, 5_000, 60_000]))
    def wait(self, passed: int) -> None:
        self.now = Millis(self.now + passed)

    @rule()
    def expire(self) -> None:
        for group, lease in self.table.expire(now=self.now):
            assert live_lease(self.table, lease.queue, group=group, now=self.now) is None
        assert self.table.expire(now=self.now) == ()

    @precondition(lambda self: self.disk)
    @rule()
    def restart(self) -> None:
        self.table = LockTable()
        self.table.restore(self.disk.values(), floor=self.floor, now=self.now)
        self.freeing.clear()

    @rule(steps=st.integers(1, 3))
    def free(self, steps: int) -> None:
        for each in self.freeing:
            for _ in islice(each, steps):
                pass

    @rule(topic=st.booleans())
    def delete(self, topic: bool) -> None:
        self.freeing.append((self.table.forget_topic("orders") if topic else self.table.forget_group("g")).steps)
        self.floor = self.table.floor
        self.disk.clear()
        assert all(live_lease(self.table, queue, now=self.now) is None for queue in (Q0, Q1))

    @invariant()
    def no_live_lease_without_a_deadline(self) -> None:
        for queue in (Q0, Q1):
            if (lease := live_lease(self.table, queue, now=self.now)) is not None:
                wake_at = self.table._groups["g"]["orders"][queue].wake_at
                assert wake_at is not None
                assert wake_at <= lease.expires_at

    @invariant()
    def only_the_last_grant_is_ever_current(self) -> None:
        for queue, history in self.granted.items():
            for epoch, owner in history[:-1]:
                if epoch < history[-1][0]:
                    assert isinstance(self.table.verdict("g", queue, owner, epoch, now=self.now), Stale)

    @invariant()
    def indexes_agree(self) -> None:
        check(self.table)

    def _persist(self, rows: tuple[SavedLease, ...] | list[SavedLease]) -> None:
        self.disk.update({(row.group, row.queue): row for row in rows})

    def _note(self, lease: Lease) -> None:
        history = self.granted[lease.queue]
        if lease.changed or not history:
            assert not history or lease.epoch > history[-1][0]
            history.append((lease.epoch, lease.owner))
        assert history[-1] == (lease.epoch, lease.owner)


TestLockTableMachine = LockTableMachine.TestCase
TestLockTableMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
