"""Consumed offsets that the broker has or has not confirmed."""

import pytest

from lanemq.core.consuming.offset_table import OffsetTable
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

Q = MessageQueue("orders", "broker-a", 0)
R = MessageQueue("orders", "broker-a", 1)


def at(offset: int) -> QueueOffset:
    return QueueOffset(offset)


def test_an_offset_is_dirty_until_it_is_confirmed() -> None:
    table = OffsetTable()
    table.advance(Q, at(5))
    sent = table.dirty()
    assert sent == {Q: 5}
    table.persisted(sent)
    assert table.dirty() == {}


def test_an_offset_that_moved_while_it_was_sent_stays_dirty() -> None:
    table = OffsetTable()
    table.advance(Q, at(5))
    sent = table.dirty()
    table.advance(Q, at(7))
    table.persisted(sent)
    assert table.dirty() == {Q: 7}


@pytest.mark.row("A99")
def test_a_negative_offset_is_ignored() -> None:
    table = OffsetTable()
    assert not table.advance(Q, at(-1), increase_only=False)
    assert table.get(Q) is None


@pytest.mark.row("A99")
def test_a_smaller_offset_is_stored_only_on_request() -> None:
    table = OffsetTable()
    table.advance(Q, at(9))
    assert not table.advance(Q, at(4))
    assert table.get(Q) == 9
    assert table.advance(Q, at(4), increase_only=False)
    assert table.get(Q) == 4


@pytest.mark.row("A49")
def test_a_queue_that_comes_back_starts_at_the_brokers_offset() -> None:
    """The other owner reached 50; the old 9 must neither be used nor reported."""
    table = OffsetTable()
    table.advance(Q, at(9))
    table.remove(Q)
    table.start(Q, at(50))
    assert table.get(Q) == 50
    assert table.dirty() == {}


@pytest.mark.row("A49")
def test_start_replaces_an_offset_that_was_not_removed() -> None:
    table = OffsetTable()
    table.advance(Q, at(90))
    table.start(Q, at(50))
    assert table.get(Q) == 50
    assert table.dirty() == {}


@pytest.mark.row("A85")
def test_removing_a_queue_returns_its_unconfirmed_offset() -> None:
    table = OffsetTable()
    table.advance(Q, at(9))
    table.advance(R, at(3))
    table.persisted({R: at(3)})
    assert table.remove(Q) == 9
    assert table.remove(R) is None
    assert table.snapshot() == {}


def test_a_late_confirmation_does_not_bring_back_a_removed_queue() -> None:
    table = OffsetTable()
    table.advance(Q, at(9))
    sent = table.dirty()
    table.remove(Q)
    table.persisted(sent)
    table.advance(Q, at(9))
    assert table.dirty() == {Q: 9}


def test_an_offset_that_the_broker_may_have_lost_is_reported_again() -> None:
    """The broker confirmed 9 and crashed before it was on disk; the queue makes no new progress."""
    table = OffsetTable()
    table.advance(Q, at(9))
    table.persisted({Q: at(9)})
    table.doubt(Q)
    table.doubt(R)
    assert table.dirty() == {Q: 9}
