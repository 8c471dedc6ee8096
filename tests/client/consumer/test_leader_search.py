"""Which coordinator a member follows."""

from lanemq.client.consumer.coordination import Coordination
from lanemq.client.coordination import Leader, leader_in
from lanemq.net.address import Address
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command

ONE, TWO = Address("10.0.0.1", 9873), Address("10.0.0.2", 9873)


def known() -> Coordination:
    coordination = Coordination("g")
    coordination.found(Leader(TWO, 5))
    return coordination


def test_a_leader_with_a_lower_term_is_not_followed() -> None:
    coordination = known()
    assert not coordination.found(Leader(ONE, 4))
    assert (coordination.address, coordination.term) == (TWO, 5)


def test_a_leader_with_a_higher_term_is_followed() -> None:
    coordination = known()
    assert coordination.found(Leader(ONE, 6))
    assert (coordination.address, coordination.term) == (ONE, 6)


def test_a_member_that_hears_of_another_leader_reports_again_there_whoever_said_it() -> None:
    """A name server, or the former leader itself, whose answer comes before any doubt."""
    coordination = known()
    assert not coordination.changed, "the first one has lost nothing"
    coordination.found(Leader(TWO, 5))
    assert not coordination.changed
    coordination.found(Leader(ONE, 6))
    assert coordination.changed
    assert coordination.doubted.is_set()


def test_an_answer_of_a_lower_term_is_ignored_and_makes_the_member_look() -> None:
    coordination = known()
    assert not coordination.answered(4)
    assert coordination.doubted.is_set()


def test_an_answer_without_a_term_counts() -> None:
    """Of a LaneMQ broker, which has none."""
    coordination = known()
    assert coordination.answered(None)
    assert coordination.term == 5


def test_who_has_no_coordinator_doubts_nothing() -> None:
    coordination = Coordination("g")
    coordination.doubt()
    assert not coordination.doubted.is_set()


def test_of_several_entries_the_highest_term_counts() -> None:
    """A name server that was away has an old one."""
    replies = [Command(ResponseCode.SUCCESS, 0, ext={"value": text}) for text in (f"{ONE} 4", f"{TWO} 5", f"{ONE} 3")]
    assert leader_in([*replies, Command(ResponseCode.QUERY_NOT_FOUND, 0)]) == Leader(TWO, 5)
    assert leader_in([Command(ResponseCode.QUERY_NOT_FOUND, 0)]) is None
