"""How long the filter of a member counts that did not say that it leaves, and what ends that earlier."""

import pytest
from tests.core.brokering.consistency import check

from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.members.membership import MEMBER_EXPIRY_MS, FilterConflict, Membership
from lanemq.core.brokering.members.tag_filters import ALL, Tags
from lanemq.model.units import Millis

A, B, AB, ABC = frozenset("a"), frozenset("b"), frozenset("ab"), frozenset("abc")
ONE, TWO, THREE = ConnectionId(1), ConnectionId(2), ConnectionId(3)
LEASE = Millis(5_000)
LATE = Millis(LEASE + MEMBER_EXPIRY_MS)


def groups(tags: Tags, *topics: str) -> dict[str, GroupHeartbeat]:
    named = tuple(GroupSubscription(topic, tags=tags, ordered=True) for topic in topics or ("t",))
    return {"g": GroupHeartbeat(named)}


def beat(table: Membership, connection: ConnectionId, name: str, tags: Tags, now: int = 0, payer: str = "") -> None:
    table.heartbeat(connection, name, groups(tags), now=Millis(now), expiry=LEASE, payer=payer)
    check(table)


@pytest.fixture
def table() -> Membership:
    """A member with fewer tags, and one with more."""
    table = Membership()
    beat(table, ONE, "narrow", A)
    beat(table, TWO, "wide", AB)
    return table


def lose(table: Membership, now: int = 0) -> None:
    assert table.disconnected(TWO, now=Millis(now)).groups == ("g",)
    check(table)


def stay(table: Membership, now: int) -> None:
    """The narrow member sends a request."""
    assert table.alive(ONE, "narrow", "g", now=Millis(now))


def owners(table: Membership) -> tuple[str, ...]:
    check(table)
    return table.members_of("g", "t")


@pytest.mark.parametrize("wide", [AB, ALL])
def test_nobody_gets_queues_while_the_widest_filter_is_that_of_a_silent_member(wide: Tags) -> None:
    table = Membership()
    beat(table, ONE, "narrow", A)
    beat(table, TWO, "wide", wide)
    stay(table, LEASE)
    changes = table.expire(now=LEASE)
    assert (changes.groups, changes.given_up) == (("g",), ())
    assert table.members("g") == ("narrow",)
    assert (owners(table), table.waits("g", "t", "narrow"), table.widest("g", "t")) == ((), True, wide)
    assert dict(table.narrower_members("g")) == {"t": 1}


def test_members_with_fewer_tags_get_the_queues_when_a_lost_member_is_given_up(table: Membership) -> None:
    lose(table, now=100)
    until = Millis(100 + MEMBER_EXPIRY_MS)
    stay(table, until)
    assert table.expire(now=Millis(until - 1)).groups == ()
    assert owners(table) == ()
    changes = table.expire(now=until)
    assert changes.groups == ("g",)
    assert [(each.topic, each.member, each.tags) for each in changes.given_up] == [("t", "wide", AB)]
    assert owners(table) == ("narrow",)


def test_a_lost_member_that_is_back_counts_as_before(table: Membership) -> None:
    lose(table)
    beat(table, THREE, "wide", AB, now=10)
    assert (owners(table), table.waited_for("g", "t")) == (("wide",), None)
    table.leave(THREE, "wide", "g")
    assert owners(table) == ("narrow",)


def test_a_lost_member_that_is_back_with_fewer_tags_holds_nobody_up(table: Membership) -> None:
    lose(table)
    beat(table, THREE, "wide", A, now=10)
    assert owners(table) == ("narrow", "wide")


def test_a_member_that_says_that_it_leaves_does_not_count_any_more(table: Membership) -> None:
    table.leave(TWO, "wide", "g")
    table.disconnected(TWO, now=Millis(0))
    assert owners(table) == ("narrow",)


def test_a_leaving_member_does_not_count_when_its_old_connection_ends_later(table: Membership) -> None:
    beat(table, THREE, "wide", AB)
    table.leave(THREE, "wide", "g")
    assert owners(table) == ("wide",)
    lose(table)
    assert owners(table) == ("narrow",)


def test_a_lost_member_may_say_later_that_it_leaves(table: Membership) -> None:
    lose(table)
    assert table.leave(THREE, "other", "g").groups == ()
    assert owners(table) == ()
    assert table.leave(THREE, "wide", "g").groups == ("g",)
    assert owners(table) == ("narrow",)


@pytest.mark.parametrize(("tags", "ends"), [(AB, True), (ALL, True), (A, False)])
def test_a_member_with_at_least_the_same_tags_ends_the_wait_by_leaving(
    table: Membership, tags: Tags, ends: bool
) -> None:
    lose(table)
    beat(table, THREE, "other", tags)
    table.leave(THREE, "other", "g")
    assert owners(table) == (("narrow",) if ends else ())


def test_a_member_with_the_same_tags_takes_over_at_once(table: Membership) -> None:
    beat(table, THREE, "other", AB)
    lose(table)
    assert owners(table) == ("other",)
    assert table.waited_for("g", "t") is None


def test_a_lost_filter_counts_also_if_the_whole_group_was_lost(table: Membership) -> None:
    """A broker's network may be cut off: then the member that is back first may be the one with fewer tags."""
    lose(table)
    table.disconnected(ONE, now=Millis(0))
    assert (table.members("g"), table.groups()) == ((), ())
    assert table.widest("g", "t") == AB, "for a pull that comes before the heartbeat"
    beat(table, THREE, "narrow", A)
    assert owners(table) == ()


def test_nobody_is_given_up_that_no_present_member_waits_for(table: Membership) -> None:
    lose(table)
    table.disconnected(ONE, now=Millis(0))
    assert table.expire(now=LATE) == ((), ())
    assert table.widest("g", "t") is None


def test_a_wait_for_several_lost_members_ends_with_the_last(table: Membership) -> None:
    beat(table, THREE, "other", AB)
    lose(table)
    table.disconnected(THREE, now=Millis(1_000))
    stay(table, MEMBER_EXPIRY_MS)
    assert table.expire(now=MEMBER_EXPIRY_MS).given_up == ()
    assert owners(table) == ()
    (given_up,) = table.expire(now=Millis(MEMBER_EXPIRY_MS + 1_000)).given_up
    assert given_up.member == "other"


def test_tags_of_a_lost_member_that_do_not_fit_are_a_conflict_except_for_itself(table: Membership) -> None:
    table.leave(ONE, "narrow", "g")
    lose(table)
    until = Millis(MEMBER_EXPIRY_MS)
    conflict = FilterConflict("g", "wide", "t", AB, frozenset("c"), until)
    assert table.filter_conflict("other", groups(frozenset("c"))) == conflict
    assert table.filter_conflict("wide", groups(frozenset("c"))) is None
    assert table.filter_conflict("other", groups(ABC)) is None


def test_a_pause_of_the_broker_is_not_counted_once(table: Membership) -> None:
    lose(table)
    for now in (10_000, 20_000):
        table.paused(Millis(10_000), now=Millis(now))
        check(table)
    lost = table.waited_for("g", "t")
    assert lost is not None
    assert lost.until == MEMBER_EXPIRY_MS + 10_000


def test_a_retry_topic_waits_for_a_lost_member_too() -> None:
    table = Membership()
    for connection, name, tags in ((ONE, "narrow", A), (TWO, "wide", AB)):
        subscribed = (GroupSubscription("t", tags=tags, ordered=False), GroupSubscription("%RETRY%g", ordered=False))
        table.heartbeat(connection, name, {"g": GroupHeartbeat(subscribed)}, now=Millis(0))
    lose(table)
    assert table.members_of("g", "%RETRY%g") == ()


def test_the_filters_of_lost_members_are_paid_for_until_they_end() -> None:
    """Otherwise a client that comes and goes under new names would take memory that nobody is charged with."""
    table, sizes = Membership(), list[int]()
    for number in range(3):
        beat(table, ConnectionId(number), f"client {number}", AB, payer="p")
        table.disconnected(ConnectionId(number), now=Millis(0))
        sizes.append(table.bytes_with("p", "x", {}))
    assert sizes == [sizes[0], 2 * sizes[0], 3 * sizes[0]]
    assert table.bytes_with("p", "client 0", groups(AB)) == 3 * sizes[0], "one that is back pays once"
    table.expire(now=LATE)
    check(table)
    assert table.bytes_with("p", "x", {}) == 0


def test_a_deleted_group_has_no_lost_members(table: Membership) -> None:
    lose(table)
    table.leave(ONE, "narrow", "g")
    table.forget("g")
    beat(table, ONE, "narrow", A)
    assert owners(table) == ("narrow",)


def test_stock_clients_are_not_waited_for() -> None:
    table = Membership()
    beat(table, ONE, "narrow", A)
    table.heartbeat(TWO, "stock", {"g": GroupHeartbeat((GroupSubscription("t", tags=AB),))}, now=Millis(0))
    lose(table)
    assert owners(table) == ("narrow",)
