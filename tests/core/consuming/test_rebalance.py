"""The stages of a queue: lease, offset, pull; then drain, commit, release."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.core.consuming.rebalance import QueueEvent, QueueLifecycle, QueueStage, Step, queue_changes
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

NOW = Millis(0)
ALL = [MessageQueue("orders", "broker-a", number) for number in range(6)]
Q = ALL[0]


def at(stage: QueueStage) -> QueueLifecycle:
    queue = QueueLifecycle(Q, needs_lease=True)
    way = [
        QueueEvent.GRANTED,
        QueueEvent.LOCATED,
        QueueEvent.UNWANTED,
        QueueEvent.DRAINED,
        QueueEvent.COMMITTED,
        QueueEvent.UNLOCKED,
    ]
    for event in way:
        if queue.stage is stage:
            break
        queue.happened(event, now=NOW)
    assert queue.stage is stage
    return queue


def happened(queue: QueueLifecycle, *events: QueueEvent) -> list[Step]:
    return [queue.happened(event, now=NOW) for event in events]


@pytest.mark.row("A53")
@given(st.sets(st.sampled_from(ALL)), st.sets(st.sampled_from(ALL)))
def test_a_round_touches_only_queues_that_change(held: set[MessageQueue], wanted: set[MessageQueue]) -> None:
    made = queue_changes(held, wanted)
    assert (held - set(made.release)) | set(made.acquire) == wanted
    assert set(made.keep) == held & wanted
    assert made.changes == (held != wanted)


@pytest.mark.row("A52")
def test_a_second_round_with_the_same_allocation_changes_nothing() -> None:
    assert not queue_changes(ALL, list(reversed(ALL))).changes


@pytest.mark.row("A47")
def test_the_lease_comes_before_the_offset_and_the_offset_before_the_pull() -> None:
    queue = QueueLifecycle(Q, needs_lease=True)
    assert queue.begin() is Step.LOCK
    assert happened(queue, QueueEvent.GRANTED, QueueEvent.LOCATED) == [Step.LOCATE, Step.START]


@pytest.mark.row("A48")
def test_a_refused_lease_skips_the_queue_until_the_next_round() -> None:
    queue = QueueLifecycle(Q, needs_lease=True)
    assert happened(queue, QueueEvent.REFUSED) == [Step.SKIP]
    assert queue.stage is QueueStage.GONE
    assert queue_changes([], [Q]).acquire == (Q,), "the next round asks again"


@pytest.mark.row("A51")
def test_an_unknown_start_offset_starts_nothing_and_returns_the_lease() -> None:
    assert happened(at(QueueStage.LOCATING), QueueEvent.NOT_LOCATED, QueueEvent.UNLOCKED) == [Step.UNLOCK, Step.FORGET]


@pytest.mark.row("A85")
@pytest.mark.row("A89")
def test_the_lease_is_released_after_the_handler_ended_and_the_offset_is_stored() -> None:
    steps = happened(
        at(QueueStage.OWNED), QueueEvent.UNWANTED, QueueEvent.DRAINED, QueueEvent.COMMITTED, QueueEvent.UNLOCKED
    )
    assert steps == [Step.DRAIN, Step.COMMIT, Step.UNLOCK, Step.FORGET]


@pytest.mark.row("A86")
@pytest.mark.row("A87")
@pytest.mark.row("A89")
def test_a_handler_that_does_not_end_keeps_the_queue() -> None:
    """A forced release after 20 s, as in RocketMQ 5, lets two members run one message."""
    queue = at(QueueStage.OWNED)
    queue.happened(QueueEvent.UNWANTED, now=NOW)
    assert queue.next_deadline() == 1_000
    assert queue.expire(now=Millis(999)) is Step.NOTHING
    for second in range(1, 91):
        assert queue.expire(now=Millis(second * 1_000)) is Step.STILL_RUNNING
    assert (queue.stage, queue.late) == (QueueStage.DRAINING, 90)
    assert queue.happened(QueueEvent.DRAINED, now=Millis(90_500)) is Step.COMMIT
    assert queue.next_deadline() is None
    assert queue.expire(now=Millis(10**6)) is Step.NOTHING


def test_a_queue_whose_offset_cannot_be_stored_keeps_its_lease() -> None:
    queue = at(QueueStage.COMMITTING)
    assert happened(queue, QueueEvent.NOT_COMMITTED, QueueEvent.NOT_COMMITTED) == [Step.COMMIT_LATER] * 2
    assert happened(queue, QueueEvent.COMMITTED) == [Step.UNLOCK]


@pytest.mark.parametrize(
    "stage", [QueueStage.LOCATING, QueueStage.OWNED, QueueStage.DRAINING, QueueStage.COMMITTING, QueueStage.UNLOCKING]
)
def test_a_lost_lease_drops_the_queue_without_commit_or_unlock(stage: QueueStage) -> None:
    queue = at(stage)
    assert happened(queue, QueueEvent.LEASE_LOST) == [Step.DROP]
    assert queue.stage is QueueStage.GONE
    assert queue.next_deadline() is None


def test_a_queue_that_is_wanted_again_while_draining_stays() -> None:
    queue = at(QueueStage.DRAINING)
    assert happened(queue, QueueEvent.WANTED) == [Step.REOPEN]
    assert queue.next_deadline() is None


def test_a_queue_that_is_unwanted_before_it_is_held_never_starts() -> None:
    queue = QueueLifecycle(Q, needs_lease=True)
    steps = happened(queue, QueueEvent.UNWANTED, QueueEvent.GRANTED, QueueEvent.LOCATED)
    assert steps == [Step.NOTHING, Step.LOCATE, Step.UNLOCK]


def test_a_queue_that_is_wanted_again_before_it_is_held_starts() -> None:
    steps = happened(
        QueueLifecycle(Q, needs_lease=True),
        QueueEvent.UNWANTED,
        QueueEvent.WANTED,
        QueueEvent.GRANTED,
        QueueEvent.LOCATED,
    )
    assert steps[-1] is Step.START


@pytest.mark.row("A25")
@pytest.mark.row("A88")
def test_without_a_lease_nothing_is_locked_or_unlocked() -> None:
    queue = QueueLifecycle(Q, needs_lease=False)
    steps = [queue.begin()]
    steps += happened(queue, QueueEvent.LOCATED, QueueEvent.UNWANTED, QueueEvent.DRAINED, QueueEvent.COMMITTED)
    assert steps == [Step.LOCATE, Step.START, Step.DRAIN, Step.COMMIT, Step.FORGET]


def test_an_impossible_event_is_refused_and_changes_nothing() -> None:
    queue = at(QueueStage.OWNED)
    with pytest.raises(UsageError, match="OWNED"):
        queue.happened(QueueEvent.UNLOCKED, now=NOW)
    assert queue.stage is QueueStage.OWNED


@pytest.mark.row("A89")
@settings(max_examples=200)
@given(st.lists(st.sampled_from(list(QueueEvent)), max_size=25), st.booleans())
def test_an_unlock_always_follows_drain_and_commit(events: list[QueueEvent], needs_lease: bool) -> None:
    queue = QueueLifecycle(Q, needs_lease=needs_lease)
    started = drained = committed = False
    for event in events:
        before = queue.stage
        try:
            step = queue.happened(event, now=NOW)
        except UsageError:
            assert queue.stage is before
            continue
        if step in (Step.START, Step.REOPEN):
            started, drained, committed = True, False, False
        drained = drained or event is QueueEvent.DRAINED
        committed = committed or (event is QueueEvent.COMMITTED and drained)
        if step is Step.UNLOCK:
            assert needs_lease
            assert committed or not started
