"""What the broker tells its clients without being asked."""

import logging
from collections.abc import Iterable

from lanemq.core.brokering.membership import ConnectionId, Membership
from lanemq.net.server import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import ONEWAY_BIT, Command, encode_command
from lanemq.wire.headers import ConsumerListHeader

log = logging.getLogger(__name__)


class Notices:
    """Sends NOTIFY_CONSUMER_IDS_CHANGED: members recompute their queues at once instead of in 20 s."""

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
        """Tells every member of these groups; each message is sent once and expects no answer."""
        for group in groups:
            for connection in self._members.connections(group):
                self.send(connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, group)

    def send(self, connection: ConnectionId, code: int, group: str) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        peer.send(
            encode_command(
                Command(code, self.next_opaque(), ONEWAY_BIT, ConsumerListHeader(consumer_group=group).to_ext())
            )
        )

    def next_opaque(self) -> int:
        """Never 0: Node clients take 0 for missing."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF or 1
        return self._opaque
