"""What the server calls: a client has connected, sent a command, or is gone."""

from collections.abc import Iterator

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler
from lanemq.broker.group_rules import members_changed
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.broker.handlers.pull import PullHandler
from lanemq.core.brokering.lock_table import DISCONNECT_GRACE_MS
from lanemq.core.brokering.membership import ConnectionId
from lanemq.net.peer import Peer


class Connections:
    """The connections of a broker. `received` handles commands: the dispatch, behind a guard if there are users."""

    def __init__(self, parts: BrokerContext, received: Handler, pull: PullHandler, groups: GroupHandler) -> None:
        self.received = received
        self._parts = parts
        self._pull = pull
        self._groups = groups

    def connected(self, peer: Peer) -> None:
        self._parts.notices.connected(peer)

    def closed(self, peer: Peer) -> None:
        parts, connection = self._parts, ConnectionId(peer.number)
        self._pull.disconnected(peer)
        self._groups.disconnected(peer)
        parts.notices.closed(peer)
        client_id = parts.members.client_of(connection)
        changes = parts.members.disconnected(connection, now=parts.clock.now())
        if client_id is not None and not parts.members.connected(client_id):
            parts.slices.begin(self._shorten_leases(client_id))
        members_changed(parts, changes.groups)

    def _shorten_leases(self, client_id: str) -> Iterator[None]:
        """Let the leases of a lost client end soon, in slices: it may have a hundred thousand."""
        parts, grace = self._parts, DISCONNECT_GRACE_MS
        for shortened in parts.locks.disconnected(client_id, grace=grace, now=parts.clock.now()):
            if shortened is not None and parts.recording.on:
                group, lease = shortened
                parts.recording.locked(group, [lease])
            yield
