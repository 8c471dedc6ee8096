"""What the server calls: a client has connected, sent requests, or is gone."""

from collections import deque
from collections.abc import Callable, Iterator

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler
from lanemq.broker.group_rules import members_changed
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.core.brokering.lock_table import DISCONNECT_GRACE_MS
from lanemq.core.brokering.membership import ConnectionId
from lanemq.net.peer import Peer
from lanemq.wire.command import Frame, decode_command

StoreSends = Callable[[Peer, deque[Frame]], bool]
"""Stores the sends with which the frames begin, and removes them; False if they begin with something else."""


class Connections:
    """The connections of a broker or a coordinator."""

    def __init__(
        self,
        parts: GroupContext,
        handle: Handler,
        groups: GroupHandler,
        *,
        store_sends: StoreSends | None = None,
        on_closed: Callable[[Peer], None] | None = None,
    ) -> None:
        """`handle` is the dispatch, behind a guard if there are users. `store_sends` is None then: each request must be
        checked."""
        self._handle = handle
        self._store_sends = store_sends
        self._parts = parts
        self._groups = groups
        self._on_closed = on_closed

    def connected(self, peer: Peer) -> None:
        self._parts.notices.connected(peer)

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        """Handle the first request, or the sends that can be stored together."""
        if self._store_sends is None or not self._store_sends(peer, frames):
            self._handle(peer, decode_command(frames.popleft()))

    def closed(self, peer: Peer) -> None:
        parts, connection = self._parts, ConnectionId(peer.number)
        if self._on_closed is not None:
            self._on_closed(peer)
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
