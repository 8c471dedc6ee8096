"""What an assigned queue reports to the broker, and when."""

import pytest
from tests.client.consumer.fakes import assigned_queue, queue

from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, ReportedProgress
from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.model.units import QueueOffset

AHEAD = FinishedRanges((12, 20))


def assigned_at(offset: int) -> AssignedQueue:
    """A queue that starts at an offset the broker has."""
    assigned = assigned_queue(queue(0), None, LANE_TIMES)
    assigned.start_at(progress(offset))
    return assigned


def progress(offset: int, *finished: FinishedRanges) -> ReportedProgress:
    return ReportedProgress(QueueOffset(offset), *finished)


@pytest.mark.parametrize("change", [progress(7), progress(3), progress(5, AHEAD)])
def test_progress_is_reported_until_the_broker_confirms_it(change: ReportedProgress) -> None:
    """Also a smaller offset: ordered consumption rewinds on purpose."""
    assigned = assigned_at(5)
    assert not assigned.must_report
    assigned.advance(change)
    assert assigned.must_report
    assigned.confirmed = change
    assert not assigned.must_report


def test_progress_that_went_on_while_it_was_sent_is_reported_again() -> None:
    assigned = assigned_at(0)
    assigned.advance(progress(5))
    sent = assigned.progress
    assigned.advance(progress(7))
    assigned.confirmed = sent
    assert assigned.must_report


@pytest.mark.row("A99")
@pytest.mark.parametrize(("released", "offset"), [(True, 9), (False, -1)])
def test_progress_of_a_released_queue_and_a_negative_offset_are_ignored(released: bool, offset: int) -> None:
    assigned = assigned_at(5)
    assigned.released = released
    assigned.advance(progress(offset))
    assert assigned.progress == progress(5)


@pytest.mark.row("A49")
def test_a_start_replaces_what_was_not_reported() -> None:
    """Another owner reached 50; the old 90 must neither be used nor reported."""
    assigned = assigned_at(0)
    assigned.advance(progress(90, AHEAD))
    assigned.start_at(progress(50))
    assert assigned.progress == progress(50)
    assert not assigned.must_report


def test_progress_that_the_broker_may_have_lost_is_reported_again() -> None:
    """The broker confirmed it and crashed before it was on disk; the queue makes no new progress."""
    assigned = assigned_at(9)
    assigned.confirmed = None
    assert assigned.must_report
