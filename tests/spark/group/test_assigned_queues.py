"""Queues of a query: what a batch may read, when a queue is given back, when the query must fail."""

import pytest

from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.model.errors import LeaseLost
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.spark.group.assigned_queues import AssignedQueues, BatchClaim

A = MessageQueue("orders", "a", 0)
B = MessageQueue("orders", "a", 1)
SOON = Millis(1)


def grant(assigned: AssignedQueues, queue: MessageQueue, epoch: int, at: int, group_offset: int = 0) -> None:
    assigned.granted(queue, Epoch(epoch), QueueOffset(group_offset), LANE_TIMES, asked_at=Millis(at))


@pytest.fixture
def assigned() -> AssignedQueues:
    held = AssignedQueues()
    grant(held, A, 1, 0, group_offset=5)
    grant(held, B, 1, 0)
    return held


def test_a_batch_reads_owned_queues_from_the_groups_offset(assigned: AssignedQueues) -> None:
    assert assigned.take([A], now=SOON) == {A: BatchClaim(Epoch(1), QueueOffset(5))}


def test_an_expired_lease_gives_no_claim(assigned: AssignedQueues) -> None:
    assert assigned.take([A, B], now=LANE_TIMES.client_lease_ms) == {}


def test_a_queue_is_not_given_back_while_a_batch_reads_it(assigned: AssignedQueues) -> None:
    assigned.take([A], now=SOON)
    assigned.want([])
    assert assigned.to_give_back() == [B]
    assigned.batch_finished()
    assert assigned.to_give_back() == [A, B]


def test_a_queue_outside_the_share_is_not_read(assigned: AssignedQueues) -> None:
    assigned.want([B])
    assert set(assigned.usable(now=SOON)) == {B}


def test_a_lease_lost_during_a_batch_fails_the_query(assigned: AssignedQueues) -> None:
    assigned.take([A], now=SOON)
    assigned.refused(A)
    assert A not in assigned.usable(now=SOON)
    with pytest.raises(LeaseLost, match="orders/a/0"):
        assigned.batch_finished()


def test_a_new_epoch_during_a_batch_fails_the_query(assigned: AssignedQueues) -> None:
    """The lease came back, but another member owned the queue in between."""
    assigned.take([A], now=SOON)
    grant(assigned, A, 3, 10)
    with pytest.raises(LeaseLost):
        assigned.batch_finished()


def test_a_lease_lost_between_batches_only_removes_the_queue(assigned: AssignedQueues) -> None:
    assigned.take([A], now=SOON)
    assigned.batch_finished()
    assigned.refused(A)
    assigned.batch_finished()
    assert assigned.queues() == [B]


def test_only_a_new_grant_changes_the_group_offset(assigned: AssignedQueues) -> None:
    grant(assigned, A, 1, 100, group_offset=9)
    assert assigned.usable(now=SOON)[A] == 5
    grant(assigned, A, 2, 200, group_offset=9)
    assert assigned.usable(now=SOON)[A] == 9


def test_only_offsets_that_the_broker_does_not_have_are_stored(assigned: AssignedQueues) -> None:
    assert assigned.to_store({A: QueueOffset(5), B: QueueOffset(2)}) == {B: 2}
    assigned.stored(B, QueueOffset(2))
    assert assigned.to_store({B: QueueOffset(2)}) == {}


def test_no_offset_is_stored_for_a_lost_queue(assigned: AssignedQueues) -> None:
    assigned.take([A], now=SOON)
    assigned.refused(A)
    assert assigned.to_store({A: QueueOffset(50)}) == {}


def test_a_query_goes_back_only_over_messages_that_were_left_out_and_are_undone(assigned: AssignedQueues) -> None:
    ahead = {A: QueueOffset(9), B: QueueOffset(9)}
    assert assigned.undone(ahead, {}) == {}, "a batch that is done and not stored yet is not repeated"
    assert assigned.undone(ahead, {A: QueueOffset(5), B: QueueOffset(0)}) == {}, "the group is past it"
    assert assigned.undone(ahead, {A: QueueOffset(6)}) == {A: QueueOffset(5)}
    assert assigned.undone({A: QueueOffset(5)}, {A: QueueOffset(6)}) == {}, "the query is not past it"


def test_a_deleted_topic_does_not_fail_the_query(assigned: AssignedQueues) -> None:
    assigned.take([A, B], now=SOON)
    assigned.topic_deleted("orders")
    assigned.batch_finished()
    assert assigned.queues() == []


def test_a_lease_that_was_lost_before_the_topic_was_deleted_is_still_lost(assigned: AssignedQueues) -> None:
    assigned.take([A, B], now=SOON)
    assigned.refused(A)
    assigned.topic_deleted("orders")
    with pytest.raises(LeaseLost, match="orders/a/0: another"):
        assigned.batch_finished()
