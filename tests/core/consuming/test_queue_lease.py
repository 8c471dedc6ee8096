"""A member stops using a queue before the broker could grant it to another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.consuming.queue_lease import LANE_TIMES, ROCKETMQ_TIMES, Grant, LeaseTimes, QueueLease
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Epoch, Millis


def lease(asked_at: int = 0, epoch: int = 1, client_lease: int = 30_000) -> QueueLease:
    fresh = QueueLease(Millis(client_lease))
    fresh.granted(Epoch(epoch), asked_at=Millis(asked_at))
    return fresh


@pytest.mark.row("A43")
def test_a_disconnected_member_stops_before_the_broker_grants_the_queue_again() -> None:
    """The request is sent at 0 and arrives later: the member stops at 30 s, a rival gets the queue at 60 s or later."""
    held = lease(asked_at=0)
    assert held.usable(now=Millis(29_999))
    assert not held.usable(now=Millis(30_000))
    assert held.usable_until is not None
    assert held.usable_until < ROCKETMQ_TIMES.broker_lease_ms


@pytest.mark.row("A43")
@given(
    asked_at=st.integers(0, 10**6),
    delay=st.integers(0, 10**6),
    now=st.integers(0, 3 * 10**6),
    renew=st.integers(1, 10_000),
    more=st.tuples(st.integers(1, 10_000), st.integers(1, 10_000)),
)
def test_a_lease_is_never_usable_when_the_broker_may_grant_the_queue_to_another(
    asked_at: int, delay: int, now: int, renew: int, more: tuple[int, int]
) -> None:
    times = LeaseTimes(renew / 1000, (renew + more[0]) / 1000, (renew + sum(more)) / 1000)
    held = QueueLease(times.client_lease_ms)
    held.granted(Epoch(1), asked_at=Millis(asked_at))
    broker_may_regrant_at = asked_at + delay + times.broker_lease_ms
    assert not (held.usable(now=Millis(now)) and now >= broker_may_regrant_at)


@pytest.mark.row("A42")
@pytest.mark.parametrize("times", [ROCKETMQ_TIMES, LANE_TIMES])
def test_the_broker_keeps_a_lease_over_two_lost_renewals(times: LeaseTimes) -> None:
    """The third renewal arrives in time and shows that no other member owned the queue."""
    assert 3 * times.renew_every_ms <= times.broker_lease_ms
    held = lease(client_lease=times.client_lease_ms)
    assert held.granted(Epoch(1), asked_at=Millis(3 * times.renew_every_ms)) is Grant.RENEWED


def test_a_lost_lease_is_unusable_at_once() -> None:
    held = lease()
    held.lost()
    assert not held.usable(now=Millis(1))
    assert held.usable_until is None


@pytest.mark.row("A57")
def test_a_new_epoch_means_the_offset_must_be_read_again() -> None:
    held = QueueLease(Millis(3_000))
    assert held.granted(Epoch(4), asked_at=Millis(0)) is Grant.NEW
    assert held.granted(Epoch(4), asked_at=Millis(1_000)) is Grant.RENEWED
    assert held.granted(Epoch(6), asked_at=Millis(2_000)) is Grant.NEW


def test_renewal_after_own_expiry_is_unbroken_only_if_the_epoch_says_so() -> None:
    with_epochs, without = lease(epoch=1), lease(epoch=0)
    assert with_epochs.granted(Epoch(1), asked_at=Millis(40_000)) is Grant.RENEWED
    assert without.granted(Epoch(0), asked_at=Millis(40_000)) is Grant.NEW


def test_late_answers_neither_shorten_nor_restore_a_lease() -> None:
    held = lease(asked_at=5_000, epoch=3)
    assert held.granted(Epoch(3), asked_at=Millis(1_000)) is Grant.STALE
    assert held.usable_until == 35_000
    held.lost()
    assert held.granted(Epoch(2), asked_at=Millis(6_000)) is Grant.STALE
    assert not held.usable(now=Millis(6_001))


def test_a_lease_after_a_loss_is_new() -> None:
    held = lease(epoch=0)
    held.lost()
    assert held.granted(Epoch(0), asked_at=Millis(10)) is Grant.NEW


@pytest.mark.parametrize(
    ("times", "names"),
    [
        ((20, 20, 60), "renew_every"),
        ((20, 60, 60), "client_lease"),
        ((0, 30, 60), "positive"),
        ((60, 50, 40), "renew_every.*client_lease"),
    ],
)
def test_lease_times_that_allow_two_owners_are_refused(times: tuple[int, int, int], names: str) -> None:
    with pytest.raises(InvalidOption, match=names):
        LeaseTimes(*(each / 1000 for each in times))


def test_keep_alives_that_are_rarer_than_the_timeout_are_refused() -> None:
    with pytest.raises(InvalidOption, match="keep_alive_every"):
        LeaseTimes(1, 3, 5, keep_alive_timeout=0.25, keep_alive_every=0.25)


def test_the_keep_alive_timeout_is_never_longer_than_the_lease() -> None:
    assert LeaseTimes(0.15, 0.7, 1.4).keep_alive_timeout_ms == 700


def test_turns_start_before_the_keep_alive_deadline_which_keep_alives_move_up_to_the_end_of_the_lease() -> None:
    held = QueueLease(Millis(3_000))
    held.granted(Epoch(1), asked_at=Millis(0), keep_alive_timeout=Millis(800), serial=7)
    assert held.usable_until == 800
    held.kept_alive(7, asked_at=Millis(500))
    assert held.usable_until == 1_300
    held.kept_alive(8, asked_at=Millis(900))
    assert held.usable_until == 1_300, "another grant was meant"
    held.kept_alive(7, asked_at=Millis(2_900))
    assert held.usable_until == 3_000


def test_a_keep_alive_deadline_that_passed_is_not_a_loss() -> None:
    held = QueueLease(Millis(3_000))
    held.granted(Epoch(1), asked_at=Millis(0), keep_alive_timeout=Millis(800), serial=7)
    assert not held.usable(now=Millis(800))
    assert held.granted(Epoch(1), asked_at=Millis(9_000), keep_alive_timeout=Millis(800), serial=9) is Grant.RENEWED
    assert held.usable(now=Millis(9_799))


def test_without_a_serial_the_lease_itself_counts() -> None:
    """A broker that gives no serial does not wait for keep-alives."""
    held = QueueLease(Millis(3_000))
    held.granted(Epoch(1), asked_at=Millis(0), keep_alive_timeout=Millis(800))
    assert held.usable_until == 3_000
