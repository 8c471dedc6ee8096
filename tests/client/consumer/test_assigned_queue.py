"""What an assigned queue reports to the broker, and when."""

import pytest
from tests.client.consumer.fakes import assigned_queue, message, queue

from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, StartPosition
from lanemq.client.consumer.queues.read_log import ReadLog
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.clock import SystemClock
from lanemq.core.consuming.lane_queue import MemberProgress
from lanemq.core.consuming.queue_lease import LANE_TIMES, QueueLease
from lanemq.core.consuming.runs import DONE, LaneOptions
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.model.units import Epoch, QueueOffset


def progress(offset: int, *finished: tuple[int, int]) -> MemberProgress:
    return MemberProgress(QueueOffset(offset), FinishedRanges.of(finished))


def assigned_at(offset: int, *, epoch: int = 1) -> AssignedQueue:
    """A queue that starts at an offset the broker has."""
    clock, lease = SystemClock(), QueueLease(LANE_TIMES.client_lease_ms)
    lease.granted(Epoch(epoch), asked_at=clock.now())
    scheduler = Scheduler(LaneScheduler(LaneOptions()), clock)
    assigned = assigned_queue(queue(0), lease, LANE_TIMES, scheduler=scheduler)
    assigned.start_at(StartPosition(progress(offset), ReadLog()))
    return assigned


def unconfirmed(assigned: AssignedQueue) -> MemberProgress | None:
    report = assigned.unconfirmed()
    return None if report is None else report.progress


def finish(assigned: AssignedQueue, *, first: int, last: int | None = None) -> None:
    """Pulls messages of different keys, and finishes those from `first` on."""
    with assigned.scheduler as lanes:
        start = lanes[queue(0)].next_offset
        end = QueueOffset(1 + (first if last is None else last))
        lanes.put(queue(0), [message(n, key=str(n)) for n in range(start, end)], end, pulled_from=start)
        for run in lanes.next_runs(100, now=SystemClock().now()):
            if run.messages[0].queue_offset >= first:
                lanes.finish(run, DONE, now=SystemClock().now())


@pytest.mark.parametrize(
    ("first", "epoch", "reported"),
    [(5, 1, progress(7)), (6, 1, progress(5, (6, 7))), (5, 0, progress(7)), (6, 0, None)],
    ids=["offset", "ranges", "offset without epochs", "ranges without epochs"],
)
def test_progress_is_reported_until_the_broker_confirms_it(
    first: int, epoch: int, reported: MemberProgress | None
) -> None:
    assigned = assigned_at(5, epoch=epoch)
    assert assigned.unconfirmed() is None
    finish(assigned, first=first, last=6)
    assert unconfirmed(assigned) == reported
    assigned.confirmed = assigned.progress()
    assert assigned.unconfirmed() is None


def test_progress_that_went_on_while_it_was_sent_is_reported_again() -> None:
    assigned = assigned_at(0)
    finish(assigned, first=0)
    sent = assigned.progress()
    finish(assigned, first=1)
    assigned.confirmed = sent
    assert unconfirmed(assigned) == progress(2)


@pytest.mark.row("A99")
@pytest.mark.parametrize(("released", "moving"), [(True, None), (False, QueueOffset(9))])
def test_progress_of_a_queue_that_is_released_or_moves_is_not_reported(
    released: bool, moving: QueueOffset | None
) -> None:
    assigned = assigned_at(5)
    finish(assigned, first=5)
    assigned.released, assigned.moving_to = released, moving
    assert assigned.unconfirmed() is None


@pytest.mark.row("A49")
def test_a_start_replaces_what_was_not_reported() -> None:
    """Another owner reached 50; the old progress must neither be used nor reported."""
    assigned = assigned_at(0)
    finish(assigned, first=0, last=90)
    assigned.start_at(StartPosition(progress(50), ReadLog()))
    assert (assigned.progress(), assigned.unconfirmed()) == (progress(50), None)


def test_progress_that_the_broker_may_have_lost_is_reported_again() -> None:
    """The broker confirmed it and crashed before it was on disk; the queue makes no new progress."""
    assigned = assigned_at(9)
    assigned.confirmed = None
    assert unconfirmed(assigned) == progress(9)
