"""Seats of members: how many a connection has, and when silence ends them."""

from tests.core.brokering.consistency import check

from lanemq.core.brokering.members.group import ConnectionId
from lanemq.core.brokering.members.payers import Payers
from lanemq.core.brokering.members.seats import Seat, Seats
from lanemq.model.units import Millis

ONE, TWO = ConnectionId(1), ConnectionId(2)


def taken(*seats: Seat, now: int = 0, expiry: int = 100) -> Seats:
    table = Seats()
    for seat in seats:
        table.connected(seat.connection, seat.client_id)
        table.take(seat, expiry=Millis(expiry), now=Millis(now))
    check(table)
    return table


def ended(table: Seats, now: int) -> list[Seat]:
    seats = list(table.expired(now=Millis(now), limit=10))
    assert all(table.leave(seat) for seat in seats)
    return seats


def test_a_seat_that_a_connection_has_is_counted_once() -> None:
    table = taken(Seat("g", ONE, "a"), Seat("h", ONE, "a"), Seat("g", TWO, "b"))
    assert table.count_with(ONE, "a", ["g"]) == 2
    assert table.count_with(ONE, "a", ["g", "i"]) == 3
    assert table.count_with(ConnectionId(3), "c", ["g"]) == 1


def test_each_silence_is_extended_once_by_pauses_of_the_broker() -> None:
    seat = Seat("g", ONE, "a")
    table = taken(seat)
    for _ in range(2):
        table.paused(Millis(50), now=Millis(90))
    assert ended(table, 139) == []
    assert table.heard(seat, now=Millis(139))
    table.paused(Millis(50), now=Millis(200))
    assert ended(table, 288) == []
    assert ended(table, 289) == [seat]
    assert not table.heard(seat, now=Millis(289))
    check(table)


def test_a_connection_that_changes_its_client_belongs_to_the_new_one_only() -> None:
    table = taken(Seat("g", ONE, "a"))
    table.connected(ONE, "b")
    assert (table.client_of(ONE), table.connections_of("a"), table.connections_of("b")) == ("b", (), (ONE,))
    assert table.leave(Seat("g", ONE, "a"))
    table.disconnected(ONE)
    check(table)
    assert (table.client_of(ONE), table.connections_of("b")) == (None, ())


def test_what_another_party_pays_for_a_member_is_not_counted_for_this_one() -> None:
    payers = Payers()
    payers.pay("g", "a", "us", 10)
    assert (payers.paid("us", "g", "a"), payers.paid("them", "g", "a"), payers.total("them")) == (10, 0, 0)
    payers.pay("g", "a", "them", 20)
    assert (payers.total("us"), payers.total("them"), payers.of("g", "a")) == (0, 20, "them")
    payers.pay("g", "a", "", 0)
    assert (payers.total("them"), payers.of("g", "a")) == (0, "")
