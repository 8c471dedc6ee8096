"""The rows from which a restarted broker knows the widest tags of a group's members."""

from hypothesis import given
from hypothesis import strategies as st
from tests.core.brokering.consistency import check

from lanemq.core.brokering.members.filter_rows import FilterRow
from lanemq.core.brokering.members.group import ConnectionId, GroupHeartbeat, GroupSubscription
from lanemq.core.brokering.members.lost_members import EARLIER
from lanemq.core.brokering.members.membership import MEMBER_EXPIRY_MS, Membership
from lanemq.core.brokering.members.tag_filters import ALL, Tags
from lanemq.model.units import Millis

A, AB = frozenset("a"), frozenset("ab")
ONE, TWO = ConnectionId(1), ConnectionId(2)
NOW = Millis(0)


def beat(table: Membership, connection: ConnectionId, *tags: Tags, now: int = 0) -> None:
    """A client subscribes to topic `t0` with the first tags, to `t1` with the second."""
    named = tuple(GroupSubscription(f"t{n}", tags=each, ordered=True, version=now) for n, each in enumerate(tags))
    table.heartbeat(connection, f"client {connection}", {"g": GroupHeartbeat(named)}, now=Millis(now))
    check(table)


def leave(table: Membership, connection: ConnectionId) -> None:
    table.leave(connection, f"client {connection}", "g")
    check(table)


def test_only_what_changes_the_widest_tags_is_written() -> None:
    table = Membership()
    beat(table, ONE, A, ALL)
    assert table.filter_rows.take() == [("g", "t0", A), ("g", "t1", ALL)]
    beat(table, TWO, A, A)
    assert table.filter_rows.take() == []
    beat(table, TWO, AB, now=1)
    assert table.filter_rows.take() == [("g", "t0", AB)]
    leave(table, TWO)
    assert table.filter_rows.take() == [("g", "t0", A)]
    table.disconnected(ONE, now=NOW)
    assert table.filter_rows.take() == []
    table.expire(now=MEMBER_EXPIRY_MS)
    assert table.filter_rows.take() == [("g", "t0", None), ("g", "t1", None)]


def test_a_stock_client_has_no_row() -> None:
    table = Membership()
    table.heartbeat(ONE, "stock", {"g": GroupHeartbeat((GroupSubscription("t", tags=A),))}, now=NOW)
    assert table.filter_rows.take() == []


def test_a_row_that_could_not_be_written_is_returned_again() -> None:
    table = Membership()
    beat(table, ONE, A)
    table.filter_rows.give_back(table.filter_rows.take())
    assert table.filter_rows.take() == [("g", "t0", A)]
    beat(table, TWO, AB)
    failed = table.filter_rows.take()
    leave(table, TWO)
    table.filter_rows.give_back(failed)
    assert table.filter_rows.take() == [("g", "t0", A)], "the row that failed may be on disk"


def test_restored_filters_are_those_of_a_lost_member_and_end_with_their_rows() -> None:
    table = Membership()
    table.restore([FilterRow("g", "t0", AB), FilterRow("g", "t1", ALL)], now=NOW)
    check(table)
    assert table.filter_rows.take() == []
    beat(table, ONE, A)
    waited = table.waited_for("g", "t0")
    assert waited == ("g", "t0", EARLIER, AB, MEMBER_EXPIRY_MS)
    table.forget_topic("t1")
    check(table)
    assert table.filter_rows.take() == [("g", "t1", None)]
    table.alive(ONE, "client 1", "g", now=Millis(1))
    assert table.expire(now=MEMBER_EXPIRY_MS).given_up == (waited,)
    check(table)
    assert table.filter_rows.take() == [("g", "t0", A)]


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([ONE, TWO]), st.sampled_from([A, AB, ALL]))))
def test_what_was_written_last_is_what_counts(steps: list[tuple[int, ConnectionId, Tags]]) -> None:
    table, disk, now = Membership(), dict[tuple[str, str], Tags](), 0
    for step, connection, tags in steps:
        now += 1_000
        match step:
            case 0 | 1:
                beat(table, connection, tags, *([A] if step else []), now=now)
            case 2:
                leave(table, connection)
            case 3:
                table.disconnected(connection, now=Millis(now))
            case 4:
                now += MEMBER_EXPIRY_MS
                table.expire(now=Millis(now))
            case 5:
                table.filter_rows.give_back(table.filter_rows.take())
            case 6:
                table.forget_topic("t0")
            case 7:
                write(table, disk)
                table = Membership()
                table.restore([FilterRow(*key, each) for key, each in disk.items()], now=Millis(now))
        check(table)
        if step in (0, 2):
            write(table, disk)
    write(table, disk)
    counts = {("g", topic): table.widest("g", topic) for topic in ("t0", "t1")}
    assert disk == {key: tags for key, tags in counts.items() if tags is not None}


def write(table: Membership, disk: dict[tuple[str, str], Tags]) -> None:
    for group, topic, tags in table.filter_rows.take():
        disk.pop((group, topic), None)
        if tags is not None:
            disk[group, topic] = tags
