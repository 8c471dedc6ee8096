"""Which clients are there.

A client is one instance of a program, named by the id that it gives itself. Its connection says most: the transport
notices a closed one at once, and a silent one because pings are not answered. A client may have several, and opens a
new one after a network fault, so a lost connection gives it a little time. A client without a connection that could be
lost is there as long as it calls: each calls every 10 s.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from lanemq.model.units import Millis

RECONNECT_MS = 800
"""How long a client whose connection was lost may take to call again. Longer: its messages wait longer for another
client. Shorter: a short network fault gives the messages that it is processing to another one."""
NOTICED_MS = 5_500
"""A transport notices within this time that a connection is dead: what was sent earlier has reached the client."""
SILENT_MS = 30_000
"""How long a client may be silent that has no open call: three of its heartbeats."""


class LostConnection(NamedTuple):
    """A connection that was lost, and on which its client has not called again."""

    client: str
    connection: str
    uncertain_since: Millis
    """Answers since then may not have reached the client."""


@dataclass(slots=True)
class FrontClient:
    """One client."""

    id: str
    seen: Millis
    """When it last called."""
    calls: dict[int, str] = field(default_factory=dict)
    """Its open calls, each with the connection that carries it: telemetry, and long polls."""
    connection: str = ""
    """That of the open call that began last."""
    broken: set[str] = field(default_factory=set)
    """Connections on which a call broke off, and none has begun since."""
    lost_at: Millis | None = None
    """When the last open call of a broken connection ended."""


class Clients:
    """All clients."""

    def __init__(self) -> None:
        self._clients: dict[str, FrontClient] = {}
        self._next_call = 1
        self._lost: dict[tuple[str, str], Millis] = {}
        """Lost connections of each client, and when."""

    def seen(self, client: str, *, now: Millis, connection: str = "") -> FrontClient:
        """A client has called."""
        self._lost.pop((client, connection), None)
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = FrontClient(client, now)
        known.seen, known.lost_at = now, None
        return known

    def opened(self, client: str, connection: str, *, now: Millis) -> int:
        """A client has opened a call that stays open; returns its number.

        If it has none on the connection of the last one, that may be lost: a front notices a loss by open calls only.
        """
        number, self._next_call = self._next_call, self._next_call + 1
        known = self.seen(client, now=now, connection=connection)
        if known.connection not in ("", connection, *known.calls.values()):
            self._lost.setdefault((client, known.connection), now)
        known.connection = connection
        known.calls[number] = connection
        known.broken.discard(connection)
        return number

    def ended(self, client: str, number: int, *, broken: bool, now: Millis) -> None:
        """An open call has ended. It is `broken` if it was not finished: its connection may be lost.

        While others on that connection are open, the client may have given up this one call. A client with calls on
        another connection has connected again, before the end of the old connection was noticed.
        """
        known = self._clients.get(client)
        if known is None or number not in known.calls:  # a call from before the client was forgotten
            return
        connection = known.calls.pop(number)
        if broken:
            known.broken.add(connection)
        if connection in known.broken and connection not in known.calls.values():
            known.broken.discard(connection)
            known.lost_at = None if known.calls else now
            self._lost[client, connection] = now

    def lost_connections(self, *, now: Millis) -> list[LostConnection]:
        """Forgets and returns the connections that were lost some time ago. Until then a client may repeat its call."""
        lost = [(place, at) for place, at in self._lost.items() if now - at >= RECONNECT_MS]
        for place, _ in lost:
            del self._lost[place]
        return [LostConnection(*place, Millis(at - NOTICED_MS)) for place, at in lost]

    def gone(self, *, now: Millis) -> list[str]:
        """Forgets and returns the clients that are not there any more."""
        gone = [each.id for each in self._clients.values() if _is_gone(each, now)]
        for client in gone:
            del self._clients[client]
        return gone

    def forget(self, client: str) -> None:
        """The client has said that it ends."""
        self._clients.pop(client, None)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __len__(self) -> int:
        return len(self._clients)


def _is_gone(client: FrontClient, now: Millis) -> bool:
    if client.lost_at is not None and not client.calls:
        return now - client.lost_at >= RECONNECT_MS
    return not client.calls and now - client.seen >= SILENT_MS
