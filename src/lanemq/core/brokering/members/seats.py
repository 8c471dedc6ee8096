"""Seats: which client has which connection, in which groups, and until when it may be silent there.

A seat is one client in one group on one connection. A client may have several connections, since a reconnect overlaps
with the end of the old one.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from lanemq.core.brokering.members.group import ConnectionId
from lanemq.model.units import Millis


class Seat(NamedTuple):
    """One client in one group on one connection."""

    group: str
    connection: ConnectionId
    client_id: str


class _Expiry:
    """How long a member may be silent on one connection, and when its seat ends if it stays silent."""

    __slots__ = ("after", "at", "extended", "serial")

    def __init__(self, after: Millis, now: Millis, serial: int) -> None:
        self.after = after
        self.serial = serial
        """Tells it from an earlier one of the same seat in the heap."""
        self.heard(now)

    def heard(self, now: Millis) -> None:
        self.at = Millis(now + self.after)
        self.extended = False
        """Whether a pause of the broker was added since the last request."""


class Seats:
    """All seats of one broker, and the client of each connection."""

    def __init__(self) -> None:
        self._expiries: dict[Seat, _Expiry] = {}
        # Every seat once, with a time at which it does not expire later: an item that is due early is put back with the
        # real time, so that requests of members do not change the heap.
        self._ends: list[tuple[Millis, int, Seat]] = []
        self._serial = 0
        # Connection → its seats, so that a disconnect touches no others.
        self._of_connection: dict[ConnectionId, set[Seat]] = {}
        self._clients: dict[ConnectionId, str] = {}
        self._connections_of: dict[str, set[ConnectionId]] = {}

    def take(self, seat: Seat, *, expiry: Millis, now: Millis) -> None:
        """Add a seat, or note that its member was heard. A shorter `expiry` than before is a new seat in the heap."""
        known = self._expiries.get(seat)
        if known is not None and known.after <= expiry:
            known.after = expiry
            known.heard(now)
            return
        self._serial += 1
        self._expiries[seat] = new = _Expiry(expiry, now, self._serial)
        heappush(self._ends, (new.at, new.serial, seat))
        if len(self._ends) > 2 * len(self._expiries) + 64:
            self._ends = [(each.at, each.serial, key) for key, each in self._expiries.items()]
            heapify(self._ends)
        self._of_connection.setdefault(seat.connection, set()).add(seat)

    def heard(self, seat: Seat, *, now: Millis) -> bool:
        """Note another request of a member; false if it has no such seat."""
        expiry = self._expiries.get(seat)
        if expiry is not None:
            expiry.heard(now)
        return expiry is not None

    def leave(self, seat: Seat) -> bool:
        """Remove a seat; false if there is none."""
        if self._expiries.pop(seat, None) is None:
            return False
        self._of_connection[seat.connection].discard(seat)
        return True

    def expired(self, *, now: Millis, limit: int) -> Iterator[Seat]:
        """Seats whose members were silent for too long; the caller removes them. Looks at `limit` seats at most."""
        for _ in range(limit):
            if not self._ends or self._ends[0][0] > now:
                break
            _, serial, seat = self._ends[0]
            expiry = self._expiries.get(seat)
            if expiry is None or expiry.serial != serial:
                heappop(self._ends)
            elif expiry.at > now:
                heapreplace(self._ends, (expiry.at, serial, seat))
            else:
                heappop(self._ends)
                yield seat

    def paused(self, duration: Millis, *, now: Millis) -> None:
        """Do not count this time as silence, once per silence (`Membership.paused`)."""
        for expiry in self._expiries.values():
            if not expiry.extended:
                expiry.at = min(Millis(expiry.at + duration), Millis(now + expiry.after))
                expiry.extended = True

    def of_connection(self, connection: ConnectionId) -> list[Seat]:
        return sorted(self._of_connection.get(connection, ()))

    def count_with(self, connection: ConnectionId, client_id: str, groups: Iterable[str]) -> int:
        """How many seats a connection has once its client has one in each of these groups."""
        held = self._of_connection.get(connection, set())
        return len(held) + sum(Seat(group, connection, client_id) not in held for group in groups)

    # the client of a connection

    def connected(self, connection: ConnectionId, client_id: str) -> None:
        """Note whose connection this is; it may have been another client's before."""
        self._forget_client(connection)
        self._clients[connection] = client_id
        self._connections_of.setdefault(client_id, set()).add(connection)

    def disconnected(self, connection: ConnectionId) -> None:
        """Forget a connection, whose seats have been removed."""
        self._of_connection.pop(connection, None)
        self._forget_client(connection)

    def client_of(self, connection: ConnectionId) -> str | None:
        return self._clients.get(connection)

    def connections_of(self, client_id: str) -> tuple[ConnectionId, ...]:
        """The connections of a client, the newest first."""
        return tuple(sorted(self._connections_of.get(client_id, ()), reverse=True))

    def _forget_client(self, connection: ConnectionId) -> None:
        former = self._clients.pop(connection, None)
        if former is not None:
            self._connections_of[former].discard(connection)
            if not self._connections_of[former]:
                del self._connections_of[former]
