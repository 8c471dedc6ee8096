"""The client's memory of consumed offsets."""

import pytest

from lanemq.core.consuming.offset_table import OffsetTable
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

Q = MessageQueue("orders", "broker-a", 0)
R = MessageQueue("orders", "broker-a", 1)


def at(offset: int) -> QueueOffset:
    return QueueOffset(offset)


def test_advanced_offset_is_dirty_until_confirmed() -> None:
    table = OffsetTable()
    table.advance(Q, at(5))
    sent = table.dirty()
    assert sent == {Q: 5}
    table.persisted(sent)
    assert table.dirty() == {}


def test_offset_that_moved_while_being_persisted_stays_dirty() -> None:
    table = OffsetTable()
    table.advance(Q, at(5))
    sent = table.dirty()
    table.advance(Q, at(7))
    table.persisted(sent)
    assert table.dirty() == {Q: 7}


@pytest.mark.row("A99")
def test_negative_offset_is_never_stored() -> None:
    table = OffsetTable()
    assert not table.advance(Q, at(-1), increase_only=False)
    assert table.get(Q) is None


@pytest.mark.row("A99")
def test_smaller_offset_needs_permission() -> None:
    table = OffsetTable()
    table.advance(Q, at(9))
    assert not table.advance(Q, at(4))
    assert table.get(Q) == 9
    assert table.advance(Q, at(4), increase_only=False)
    assert table.get(Q) == 4


@pytest.mark.row("A49")
def test_reassigned_queue_starts_from_the_brokers_value() -> None:
    """The other owner moved on to 50; our 9 from last time must neither win nor be reported."""
    table = OffsetTable()
    table.advance(Q, at(9))
    table.remove(Q)
    table.start(Q, at(50))
    assert table.get(Q) == 50
    assert table.dirty() == {}


@pytest.mark.row("A49")
def test_start_replaces_even_what_was_not_removed() -> None:
    table = OffsetTable()
    table.advance(Q, at(90))
    table.start(Q, at(50))
    assert table.get(Q) == 50
    assert table.dirty() == {}


@pytest.mark.row("A85")
def test_removal_tells_what_was_never_confirmed() -> None:
    table = OffsetTable()
    table.advance(Q, at(9))
    table.advance(R, at(3))
    table.persisted({R: at(3)})
    assert table.remove(Q) == 9
    assert table.remove(R) is None
    assert table.snapshot() == {}


def test_late_confirmation_does_not_revive_a_removed_queue() -> None:
    table = OffsetTable()
    table.advance(Q, at(9))
    sent = table.dirty()
    table.remove(Q)
    table.persisted(sent)
    table.advance(Q, at(9))
    assert table.dirty() == {Q: 9}


def test_what_a_broker_may_have_lost_is_told_again() -> None:
    """It confirmed 9 and crashed before that was on disk: without new progress nobody would repeat it."""
    table = OffsetTable()
    table.advance(Q, at(9))
    table.persisted({Q: at(9)})
    table.doubt(Q)
    table.doubt(R)
    assert table.dirty() == {Q: 9}
