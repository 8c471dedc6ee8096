"""Leases of a query: what a batch may read, when a queue may leave, when the query is the stale one."""

import pytest

from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.model.errors import LeaseLost
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.spark.group.holdings import Claim, Holdings

A = MessageQueue("orders", "a", 0)
B = MessageQueue("orders", "a", 1)
SOON = Millis(1)


def grant(holdings: Holdings, queue: MessageQueue, epoch: int, at: int, floor: int = 0) -> None:
    holdings.granted(queue, Epoch(epoch), QueueOffset(floor), LANE_TIMES, asked_at=Millis(at))


@pytest.fixture
def holdings() -> Holdings:
    held = Holdings()
    grant(held, A, 1, 0, floor=5)
    grant(held, B, 1, 0)
    return held


def test_a_batch_reads_what_is_owned_from_the_groups_offset_on(holdings: Holdings) -> None:
    assert holdings.take([A], now=SOON) == {A: Claim(Epoch(1), QueueOffset(5))}


def test_a_lease_that_ran_out_gives_no_claim(holdings: Holdings) -> None:
    assert holdings.take([A, B], now=LANE_TIMES.client_lease_ms) == {}


def test_a_busy_queue_is_not_given_back_before_its_batch_is_done(holdings: Holdings) -> None:
    holdings.take([A], now=SOON)
    holdings.want([])
    assert holdings.leaving() == [B]
    holdings.finished()
    assert holdings.leaving() == [A, B]


def test_an_unwanted_queue_is_not_read_any_more(holdings: Holdings) -> None:
    holdings.want([B])
    assert set(holdings.usable(now=SOON)) == {B}


def test_a_lease_lost_under_a_batch_ends_the_query(holdings: Holdings) -> None:
    holdings.take([A], now=SOON)
    holdings.refused(A)
    assert A not in holdings.usable(now=SOON)
    with pytest.raises(LeaseLost, match="orders/a/0"):
        holdings.finished()


def test_a_new_epoch_under_a_batch_ends_the_query_too(holdings: Holdings) -> None:
    """The lease came back, but somebody had it in between."""
    holdings.take([A], now=SOON)
    grant(holdings, A, 3, 10)
    with pytest.raises(LeaseLost):
        holdings.finished()


def test_a_lease_lost_between_batches_is_only_a_queue_less(holdings: Holdings) -> None:
    holdings.take([A], now=SOON)
    holdings.finished()
    holdings.refused(A)
    holdings.finished()
    assert holdings.queues() == [B]


def test_a_renewal_keeps_the_floor_and_a_new_grant_brings_a_new_one(holdings: Holdings) -> None:
    grant(holdings, A, 1, 100, floor=9)
    assert holdings.usable(now=SOON)[A] == 5
    grant(holdings, A, 2, 200, floor=9)
    assert holdings.usable(now=SOON)[A] == 9


def test_only_what_the_broker_does_not_know_is_stored(holdings: Holdings) -> None:
    assert holdings.to_store({A: QueueOffset(5), B: QueueOffset(2)}) == {B: 2}
    holdings.stored(B, QueueOffset(2))
    assert holdings.to_store({B: QueueOffset(2)}) == {}


def test_nothing_is_stored_for_a_queue_that_was_lost(holdings: Holdings) -> None:
    holdings.take([A], now=SOON)
    holdings.refused(A)
    assert holdings.to_store({A: QueueOffset(50)}) == {}


def test_a_query_goes_back_only_over_what_was_left_out_and_nobody_did(holdings: Holdings) -> None:
    ahead = {A: QueueOffset(9), B: QueueOffset(9)}
    assert holdings.behind(ahead, {}) == {}, "a batch that is done and not stored yet is not repeated"
    assert holdings.behind(ahead, {A: QueueOffset(5), B: QueueOffset(0)}) == {}, "the group is past it"
    assert holdings.behind(ahead, {A: QueueOffset(6)}) == {A: QueueOffset(5)}
    assert holdings.behind({A: QueueOffset(5)}, {A: QueueOffset(6)}) == {}, "the query is not past it"


def test_a_deleted_topic_ends_no_query(holdings: Holdings) -> None:
    holdings.take([A, B], now=SOON)
    holdings.gone("orders")
    holdings.finished()
    assert holdings.queues() == []


def test_a_lease_that_was_lost_before_the_topic_was_deleted_is_still_lost(holdings: Holdings) -> None:
    holdings.take([A, B], now=SOON)
    holdings.refused(A)
    holdings.gone("orders")
    with pytest.raises(LeaseLost, match="orders/a/0: another"):
        holdings.finished()
