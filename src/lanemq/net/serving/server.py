"""The listening side: accepts connections within its limits, and closes those that break them.

`peer` is one connection. The server counts what all of them hold together and decides which ones are closed.
"""

import asyncio
import errno
import itertools
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from lanemq.clock import SystemClock
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.model.errors import RequestTimedOut, TlsFailed, TransportError
from lanemq.net.address import Address, origin_of
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.net.serving.outbox import Outbox
from lanemq.net.serving.peer import Dispatcher, NoReads, Peer, Reads
from lanemq.net.serving.server_tls import CLOSING_ALERT_SECONDS, TlsDetector
from lanemq.net.serving.unfinished_frames import UnfinishedFrames
from lanemq.net.serving.unsent_replies import UnsentReplies
from lanemq.wire.command import MAX_FRAME_BYTES

log = logging.getLogger(__name__)

MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
"""Limit of unfinished frames over all peers, because each peer may hold one frame of the maximum size. Above it, peers
are disconnected (`net/serving/unfinished_frames`).
"""

MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Limit of unsent replies over all peers, because each peer may have `WRITE_HIGH_WATER_BYTES` of them. Above it, peers
are disconnected (`net/serving/unsent_replies`)."""

ACCEPT_PAUSE_SECONDS = 0.1
"""Pause after a failed accept, usually because descriptors ran out."""

MAX_LOOKS = 1_000
"""Peers that one call of `close_idle` looks at."""

MAX_CLOSED = 100
"""Connections that one call of `limit_connections` closes; each costs some ten microseconds."""

BACKLOG = 1024
"""Connections that wait to be accepted (RocketMQ's NettyServerConfig)."""

MAX_ACCEPTED = 4
"""Connections accepted in one iteration of the loop; each costs a quarter of a millisecond with its first requests.
Many: other clients wait for all of them. Few: more time goes to iterations of the loop."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a server keeps, and what a new one must do."""

    total: int = 10_000
    per_address: int = 0
    """Connections of one address, or of one /64 network of IPv6 addresses; 0: half of all and at least 16, so that one
    machine cannot keep out every other."""
    first_request: float = 30.0
    """Seconds within which a connection must send its first request; with TLS, first as long for the handshake. Long:
    silent connections take the place of others. Short: a client that connects before it needs the connection is cut
    off."""
    signed: bool = False
    """Whether only a correctly signed request counts (`Peer.known`)."""

    @property
    def of_one_address(self) -> int:
        return self.per_address or max(16, self.total // 2)

    def in_force(self) -> dict[str, object]:
        """The value of the broker's option of this name."""
        return {"max_connections": self.total}


@dataclass(slots=True)
class Joining:
    """Connections that are accepted and not peers yet, most of them in their TLS handshake. Shown with the peers."""

    count: int = 0


class Listener:
    """A socket to which clients can connect. A server accepts the connections."""

    def __init__(self, address: Address) -> None:
        """Binds the address; port 0 picks a free one."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.socket = socket.create_server(address, family=family, backlog=BACKLOG)
        self.socket.setblocking(False)
        self.address = Address(*self.socket.getsockname()[:2])

    def close(self) -> None:
        self.socket.close()


class Server:
    """Accepts peers within its limits and passes their requests to the dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        limits: ConnectionLimits | None = None,
        refusals: RefusalCounts | None = None,
        joining: Joining | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_unfinished_bytes: int = MAX_UNFINISHED_BYTES,
        reads: Reads | None = None,
        outbox: Outbox | None = None,
        tls_detector: TlsDetector | None = None,
        nanoseconds: Callable[[], int] | None = None,
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        """`nanoseconds` measures the slices of the peers. `may_answer`, if given, is asked before each reply."""
        self.dispatcher = dispatcher
        self.reads: Reads = reads or NoReads()
        self.max_frame_bytes = max_frame_bytes
        self.unfinished: UnfinishedFrames[Peer] = UnfinishedFrames(max_unfinished_bytes)
        self.may_answer = may_answer
        self.loop = asyncio.get_running_loop()
        self.unsent: UnsentReplies[Peer] = UnsentReplies(
            MAX_UNSENT_BYTES, lambda peer: peer.unsent, lambda peer: peer.origin, self.loop.time
        )
        self.outbox = outbox or Outbox(self.loop)
        self.slices = LoopSlices(self.loop, nanoseconds or SystemClock().now_ns)
        self.peers: dict[Peer, None] = {}
        """In the order of connection, so that a simulated run can be repeated exactly."""
        self.limits = limits or ConnectionLimits()
        """May be replaced while the server runs; it holds for new connections."""
        self.refusals = refusals or RefusalCounts()
        self.joining = joining or Joining()
        self.other_protocols = RateLimitedLog(log, SystemClock())
        """Warns about peers that speak another protocol."""
        self._tls_detector = tls_detector
        self._listener: Listener | None = None
        self._joining: dict[asyncio.Task[None], str | None] = {}
        self._of_address: dict[str, int] = {}
        """Connections by origin, those that join included; no zeros."""
        self._newcomers: OrderedDict[Peer, None] = OrderedDict()
        """Peers in the order of connection, until their time for a first request is over."""
        self._watched: OrderedDict[Peer, None] = OrderedDict()
        """All peers; those that `close_idle` looked at longest ago come first."""
        self._warnings = RateLimitedLog(log, SystemClock())
        self._stopping = False
        # Refused peers that are still closing; a stop waits for them too.
        self._refused_peers: set[Peer] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def crowded(self) -> bool:
        return self.unsent.crowded

    @property
    def needs_signature(self) -> bool:
        return self.limits.signed

    def accept_from(self, listener: Listener) -> None:
        """Starts accepting; `stop_accepting` closes the listener."""
        self._listener = listener
        self.loop.add_reader(listener.socket, self._accept, listener.socket)

    def _accept(self, listener: socket.socket) -> None:
        """Accepts connections itself: asyncio's server loses the socket if it is closed during an accept."""
        for _ in range(MAX_ACCEPTED):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._pause_accepting(listener, error)
                return
            host = origin_of(address[0])
            if (full := self._full(host)) is not None:
                self._refuse(host, *full)
                connection.close()
                continue
            connection.setblocking(False)
            joining = self.loop.create_task(self._join(connection, Address(*address[:2])))
            self._joining[joining] = host
            self.joining.count += 1
            self._count(host, 1)
            joining.add_done_callback(partial(self._joined, connection))

    def _full(self, host: str) -> tuple[RefusalReason, str] | None:
        """Why one more connection of this host is refused; None if it is not.

        A handshake counts as a connection, or endless handshakes would have no limit. A connection that is a peer
        already counts once, also while the task that accepted it has not ended.
        """
        limits = self.limits
        if len(self.peers) + self.joining.count >= limits.total:
            return RefusalReason.CONNECTIONS, f"already {limits.total} connections; raise --max-connections"
        if self._of_address.get(host, 0) >= limits.of_one_address:
            return (
                RefusalReason.CONNECTIONS_PER_ADDRESS,
                f"already {limits.of_one_address} connections from {host}; raise --max-connections-per-address",
            )
        return None

    def _refuse(self, host: str, reason: RefusalReason, why: str) -> None:
        self.refusals.add(reason)
        self._warnings.warn(host, f"a connection from {host} is refused: {why}")

    def _count(self, host: str, more: int) -> None:
        count = self._of_address.get(host, 0) + more
        if count:
            self._of_address[host] = count
        else:
            self._of_address.pop(host, None)

    def _joined(self, connection: socket.socket, joining: asyncio.Task[None]) -> None:
        host = self._joining.pop(joining)
        if joining.cancelled():
            connection.close()  # not in `_join`, which a task that is cancelled at once never begins
        if host is not None:
            self.joining.count -= 1
            self._count(host, -1)

    async def _join(self, connection: socket.socket, address: Address) -> None:
        joining, seconds = asyncio.current_task(), self.limits.first_request
        end, context = self.loop.time() + seconds, None
        try:
            if self._tls_detector is not None:
                context = await self._tls_detector.context_for(connection, seconds)
            if context is None:
                await self.loop.connect_accepted_socket(lambda: Peer(self, joining), connection)
            else:
                await self.loop.connect_accepted_socket(
                    lambda: Peer(self, joining),
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=max(0.001, end - self.loop.time()),
                    ssl_shutdown_timeout=CLOSING_ALERT_SECONDS,
                )
        except (OSError, TransportError) as error:
            if isinstance(error, (ssl.SSLError, TlsFailed)):
                self._warnings.warn(f"tls {address.host}", f"a connection from {address} was refused: {error}")
            elif isinstance(error, (RequestTimedOut, ConnectionAbortedError)):  # the second is that of a handshake
                self.refusals.add(RefusalReason.NO_REQUEST)
                log.info("closing a connection from %s: no TLS handshake in %.0f s", address, seconds)
            connection.close()  # else it was closed before it could be used

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self.refusals.add(RefusalReason.NO_DESCRIPTORS)
        self._warnings.warn("accept", f"cannot accept a connection: {error}; trying again")
        self.loop.remove_reader(listener)
        self.loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting, listener)

    def _resume_accepting(self, listener: socket.socket) -> None:
        if not self._stopping:
            self.loop.add_reader(listener, self._accept, listener)

    def reload_certificates(self) -> None:
        """Reads the certificates again, for new connections."""
        if self._tls_detector is not None:
            self._tls_detector.reload()

    def stop_accepting(self) -> None:
        """Accepts no new connections, and no new requests on existing ones."""
        self._stopping = True
        if self._listener is not None:
            self.loop.remove_reader(self._listener.socket)
            self._listener.close()
            self._listener = None
        for peer in self.peers:
            peer.stop_reading()

    def leave_listener(self) -> None:
        """Accepts no new connections; the listener stays open for another server, whose clients wait in its backlog."""
        if self._listener is not None:
            self.loop.remove_reader(self._listener.socket)
            self._listener = None

    async def abort(self) -> None:
        """Breaks every connection at once, without writing what is queued."""
        for peer in tuple(self.peers):
            peer.abort()
        await self.close()

    async def close(self) -> None:
        """Closes the listener and every peer and waits for them; slow peers are cut off."""
        self.stop_accepting()
        if self._tls_detector is not None:
            self._tls_detector.close()
        if self._joining:
            for joining in self._joining:
                joining.cancel()  # a handshake may take as long as a first request
            await asyncio.wait(tuple(self._joining))
        for peer in tuple(self.peers):
            peer.close("the broker is stopping")
        await self._empty.wait()

    def limit_connections(self, total: int) -> bool:
        """Set how many connections there may be; whether that is a change.

        If there are more, the newest ones are closed: with this limit they would have been refused. Each call closes a
        limited number of them.
        """
        changed, self.limits = total != self.limits.total, replace(self.limits, total=total)
        surplus = min(len(self.peers) - total, MAX_CLOSED)
        for peer in list(itertools.islice(reversed(self.peers), max(0, surplus))):
            if not peer.closing:
                self.refusals.add(RefusalReason.CONNECTIONS)
            peer.close(f"already {total} connections: more files are open, or the limit of open files is lower")
        return changed

    def close_idle(self, seconds: float) -> None:
        """Closes peers that sent no whole frame for longer (RocketMQ closes after 120 s), and unknown newcomers.

        Each call looks at a limited number of peers, so that it does not hold the event loop; ten thousand are looked
        at in ten calls.
        """
        now = self.loop.time()
        while self._newcomers and (peer := next(iter(self._newcomers))).joined_at <= now - self.limits.first_request:
            del self._newcomers[peer]
            if not peer.known:
                self.refusals.add(RefusalReason.NO_REQUEST)
                kind = "correctly signed request" if self.limits.signed else "request"
                peer.close(f"no {kind} in {self.limits.first_request:.0f} s")
        for _ in range(min(MAX_LOOKS, len(self._watched))):
            peer = next(iter(self._watched))
            self._watched.move_to_end(peer)
            if peer.last_seen < now - seconds:
                peer.close(f"silent for more than {seconds:.0f} s")

    # called by the peers

    def adopt(self, peer: Peer) -> None:
        self._empty.clear()
        if peer.joining is not None and self._joining.get(peer.joining) is not None:
            self._joining[peer.joining] = None  # what was counted as a handshake is counted as a peer now
            self.joining.count -= 1
        else:
            self._count(peer.origin, 1)
        if self._stopping or len(self.peers) >= self.limits.total:
            self.refusals.add(RefusalReason.CONNECTIONS)
            self._refused_peers.add(peer)
            peer.close("the broker is stopping" if self._stopping else f"already {self.limits.total} connections")
            return
        self.peers[peer] = None
        self._newcomers[peer] = None
        self._watched[peer] = None
        self.dispatcher.connected(peer)

    def count_unfinished(self, peer: Peer, size: int, *, begun: bool) -> None:
        """Notes the bytes of a peer's unfinished frame; above the limit of all of them, peers are disconnected."""
        frames = self.unfinished
        frames.note(peer, peer.origin, size, known=peer.known, begun=begun)
        while size and (first := frames.first_to_close()) is not None:
            host, why = first.origin, f"the unfinished requests of all clients take more than {frames.limit} bytes"
            self.refusals.add(RefusalReason.UNFINISHED_FRAMES)
            self._warnings.warn(host, f"connections from {host} that have not finished a request are closed: {why}")
            first.close(why)
            # A peer that is closing already is not closed again.
            frames.note(first, host, 0, known=first.known, begun=False)

    def count_unsent(self, peer: Peer, size: int) -> None:
        """Notes the unsent replies of a peer; above the limit of all of them, peers are disconnected."""
        self.unsent.note(peer, size)
        while (first := self.unsent.first_to_close()) is not None:
            host, why = first.origin, f"the unsent replies of all clients take more than {self.unsent.limit} bytes"
            self.refusals.add(RefusalReason.UNSENT_REPLIES)
            self._warnings.warn(host, f"connections from {host} that do not read their replies are closed: {why}")
            self.unsent.forget(first)
            first.abort()

    def forget(self, peer: Peer) -> None:
        self.unsent.forget(peer)
        self._count(peer.origin, -1)
        self._refused_peers.discard(peer)
        if peer in self.peers:
            del self.peers[peer], self._watched[peer]
            self._newcomers.pop(peer, None)
            self.dispatcher.closed(peer)
        if not self.peers and not self._refused_peers:
            self._empty.set()
