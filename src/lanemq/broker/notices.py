"""Notices: what the broker sends to its clients without a request."""

from collections.abc import Iterable

from lanemq.core.brokering.membership import ConnectionId, Membership
from lanemq.net.server import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import ONEWAY_BIT, Command, encode_command
from lanemq.wire.headers import ConsumerListHeader


class Notices:
    """The open connections, and NOTIFY_CONSUMER_IDS_CHANGED to the members of a group.

    Notified members rebalance at once instead of within 20 s.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._peers: dict[ConnectionId, Peer] = {}
        self._opaque = 0

    def connected(self, peer: Peer) -> None:
        self._peers[ConnectionId(peer.number)] = peer

    def closed(self, peer: Peer) -> None:
        self._peers.pop(ConnectionId(peer.number), None)

    def peer(self, connection: ConnectionId) -> Peer | None:
        return self._peers.get(connection)

    def peer_of(self, group: str, client_id: str) -> Peer | None:
        """A connection of one member, for requests that are relayed to it."""
        for connection in self._members.connections(group):
            if self._members.client_of(connection) == client_id:
                return self._peers.get(connection)
        return None

    def group_changed(self, groups: Iterable[str]) -> None:
        """Notify every member of these groups, once and without an answer."""
        for group in groups:
            for connection in self._members.connections(group):
                peer = self._peers.get(connection)
                if peer is not None:
                    ext = ConsumerListHeader(consumer_group=group).to_ext()
                    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                    peer.send(encode_command(Command(code, self.next_opaque(), ONEWAY_BIT, ext)))

    def next_opaque(self) -> int:
        """A request number; never 0, which Node clients treat as missing."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF or 1
        return self._opaque
