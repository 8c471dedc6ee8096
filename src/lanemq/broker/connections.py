"""What the server calls: a client has connected, sent requests, or is gone.

This is where requests enter the broker. Single sends take the short way to `SendHandler.store_sends`, several at once;
every other request is decoded and goes to the handler of its code (`dispatch`).
"""

from collections import deque
from collections.abc import Callable, Iterator

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler
from lanemq.broker.group_rules import members_changed
from lanemq.broker.handlers.groups import GroupHandler
from lanemq.broker.left_out import leave_out
from lanemq.core.brokering.lock_table import DISCONNECT_GRACE_MS
from lanemq.core.brokering.members.group import ConnectionId
from lanemq.net.serving.peer import Peer
from lanemq.wire.command import Frame, decode_command

StoreSends = Callable[[Peer, deque[Frame]], bool]
"""Stores the sends with which the frames begin, and removes them; False if they begin with something else."""


class Connections:
    """The connections of a broker or a coordinator: the `Dispatcher` of its server."""

    def __init__(
        self,
        context: GroupContext,
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
        self._context = context
        self._groups = groups
        self._on_closed = on_closed

    def connected(self, peer: Peer) -> None:
        self._context.notices.connected(peer)

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        """Handle the first request, or the single sends with which the frames begin."""
        if self._store_sends is None or not self._store_sends(peer, frames):
            self._handle(peer, decode_command(frames.popleft()))

    def closed(self, peer: Peer) -> None:
        context, connection = self._context, ConnectionId(peer.number)
        if not context.leads():
            return  # another coordinator decides about its leases, and everything here is dropped
        if self._on_closed is not None:
            self._on_closed(peer)
        self._groups.disconnected(peer)
        context.notices.closed(peer)
        client_id = context.members.client_of(connection)
        changes = context.members.disconnected(connection, now=context.clock.now())
        if client_id is not None and not context.members.connected(client_id):
            context.slices.begin(self._shorten_leases(client_id))
        members_changed(context, changes.groups)

    def _shorten_leases(self, client_id: str) -> Iterator[None]:
        """Let the leases of a lost client end soon, in slices: it may have a hundred thousand. What it left out is
        finished now, because the broker forgets with a restart what a member has read and not reported."""
        context, grace = self._context, DISCONNECT_GRACE_MS
        for shortened in context.locks.disconnected(client_id, grace=grace, now=context.clock.now()):
            if shortened is not None:
                group, lease = shortened
                if context.recording.on:
                    context.recording.locked(group, [lease])
                yield from leave_out(context, group, lease.queue)
            yield
