"""The listening side: reads bytes, passes commands to a dispatcher, writes replies.

It is an asyncio protocol, not streams: one read of the socket may hold hundreds of requests, and their replies leave in
one write, at the end of the read or of the loop iteration. Handlers run in the read callback itself, for one turn
(`net/turns`); what is left waits for the next one. A handler that must wait (a durable send, a long poll) keeps the
peer and replies later. There is no task, future or timer per request.
"""

import asyncio
import errno
import itertools
import logging
import socket
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, cast

from lanemq.clock import SystemClock
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.model.errors import ProtocolError, RequestTimedOut, TlsFailed, TransportError
from lanemq.net.address import Address
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.receiving import received, space_for
from lanemq.net.server_tls import CLOSING_ALERT_SECONDS, TlsDetector
from lanemq.net.turns import Turns
from lanemq.net.unfinished_frames import UnfinishedFrames
from lanemq.net.unsent_replies import UnsentReplies
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import (
    MAX_FRAME_BYTES,
    BadHeader,
    Command,
    Frame,
    FrameDecoder,
    decode_command,
    encode_response,
)
from lanemq.wire.other_protocols import OtherProtocol

log = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
"""If a peer's unsent replies exceed this, its requests wait: a slow reader slows only itself."""

MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
"""Limit of unfinished frames over all peers, because each peer may hold one frame of the maximum size. Above it, peers
are disconnected (`net/unfinished_frames`).
"""

MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Limit of unsent replies over all peers, because each peer may have `WRITE_HIGH_WATER_BYTES` of them. Above it, peers
are disconnected (`net/unsent_replies`)."""

FLUSH_BYTES = 1024 * 1024
"""Replies above this together do not wait for the others of their read. Only what was written counts against the
high-water mark, so a client that does not read costs the mark, this, and one reply."""

JOINED_BYTES = 64 * 1024
"""Replies that are smaller than this together are joined: copying them costs less than a list of buffers."""

CLOSE_SECONDS = 5.0
"""How long a closing connection may take to read its last replies before it is cut off."""

ACCEPT_PAUSE_SECONDS = 0.1
"""Pause after a failed accept, usually because descriptors ran out."""

MAX_LOOKS = 1_000
"""Peers that one call of `close_idle` looks at."""

MAX_CLOSED = 100
"""Connections that one call of `limit_connections` closes; each costs some ten microseconds."""

BACKLOG = 1024
"""Connections that wait to be accepted (RocketMQ's NettyServerConfig)."""

MAX_ACCEPTED = 16
"""Connections accepted in one iteration of the loop; each costs about a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a server keeps, and what a new one must do."""

    total: int = 10_000
    per_address: int = 0
    """Connections of one address; 0: half of all and at least 16, so that one machine cannot keep out every other."""
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
        """The values of the broker's options of these names."""
        return {"max_connections": self.total, "max_connections_per_address": self.of_one_address}


@dataclass(slots=True)
class Joining:
    """Connections that are accepted and not peers yet, most of them in their TLS handshake. Shown with the peers."""

    count: int = 0


Together = Callable[["Peer", deque[Frame]], int]
"""Handles several frames together and returns how many; 0 if the first must be handled alone."""


class Reads(Protocol):
    """Called before and after the server handles one socket read. Every `begin` is followed by an `end`."""

    def begin(self) -> None: ...

    def end(self, sender: int) -> None:
        """`sender` is the number of the peer whose requests were handled since `begin`."""


class NoReads:
    """Default: does nothing."""

    def begin(self) -> None:
        pass

    def end(self, sender: int) -> None:
        pass


class Dispatcher(Protocol):
    """What the server needs from the broker."""

    def connected(self, peer: "Peer", /) -> None: ...

    def received(self, peer: "Peer", command: Command, /) -> None: ...

    def closed(self, peer: "Peer", /) -> None: ...


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


class Peer(asyncio.BufferedProtocol):
    """One connection, as the broker sees it.

    Bounded in memory: above the high-water mark of unsent replies, received requests wait and no more are read until
    the peer has read its replies.
    """

    _numbers = itertools.count(1)

    def __init__(self, server: "Server", joining: "asyncio.Task[None] | None" = None) -> None:
        self.number = next(self._numbers)
        self.joining = joining
        """The task that accepts it."""
        self.remote = Address("0.0.0.0", 0)
        self.last_seen = 0.0
        """When it sent its last whole frame, or connected; the event loop's time."""
        self.joined_at = 0.0
        self.known = False
        """Whether it has sent a request, correctly signed where that is needed. A connection that stays unknown is
        closed."""
        self.is_open = False
        self.reads_slowly = False
        """More replies are unsent than the high-water mark allows."""
        self._server = server
        self._decoder = FrameDecoder(server.max_frame_bytes)
        self._unfinished = 0
        self.singly = 0
        """For a handler of several frames: how many of the next frames it leaves to be handled one by one."""
        self._transport: asyncio.Transport | None = None
        self._incoming: deque[Frame] = deque()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._closing = False
        self._cut_off: asyncio.TimerHandle | None = None
        self._stopped = False
        self._reading = False
        """True while a read is handled: replies queued during it are written at its end."""
        self._waits_for_turn = False
        self._held = False
        self._turns = 0
        """Turns that ended before everything received was handled."""
        self._long = False
        """Whether its last requests took more than a turn: then the next ones wait for a turn from the start."""
        self._new = True
        """Whether none of its requests were handled within a turn yet."""

    def __str__(self) -> str:
        return f"peer {self.number} at {self.remote}"

    def send(self, frame: bytes) -> None:
        """Queues a frame, or its parts in turn; all that is queued in one read or one loop iteration leaves in one
        write."""
        if not self._outgoing and not self._reading:
            self._server.loop.call_soon(self._flush)
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        if self._outgoing_bytes > FLUSH_BYTES:
            self._flush()

    def close(self, reason: str) -> None:
        """Closes the connection after queued bytes are written, or after `CLOSE_SECONDS`."""
        if self._transport is None or not self.is_open or self._closing:
            return
        log.info("closing %s: %s", self, reason)
        self._closing = True
        self._drop_received()
        self._flush()
        self._transport.close()
        self._cut_off = self._server.loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Breaks the connection without writing what is queued."""
        if self._transport is not None:
            self._closing = True
            self._drop_received()
            self._transport.abort()

    def _close_other_protocol(self, error: ProtocolError) -> None:
        """Closes a connection whose bytes are not RocketMQ's protocol."""
        if isinstance(error, OtherProtocol):
            # Names the host only: such a client comes again and again, each time from another port.
            host = self.remote.host
            self._server.other_protocols.warn(host, f"a client at {host} cannot use this port: {error}")
        self.close(f"not RocketMQ's protocol: {error}")

    def hold(self) -> None:
        """Handle no further request of this peer until `release`, because one takes long and must come first."""
        self._held = True
        self._read_or_wait()

    def release(self) -> None:
        """Go on with the requests of this peer."""
        self._held = False
        if self.is_open:
            self._server.loop.call_soon(self._continue)

    def stop_reading(self) -> None:
        """Accepts no more requests from this peer; replies are still written."""
        self._stopped = True
        self._read_or_wait()

    def _drop_received(self) -> None:
        """Drops received requests that were not handled yet."""
        self._incoming.clear()
        self._decoder = FrameDecoder(self._server.max_frame_bytes)
        self._count_unfinished()

    def _count_unfinished(self, *, begun: bool = False) -> None:
        before, self._unfinished = self._unfinished, self._decoder.pending
        if self._unfinished != before or (begun and before):
            self._server.count_unfinished(self, self._unfinished, begun=begun)

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            outgoing, size, self._outgoing, self._outgoing_bytes = self._outgoing, self._outgoing_bytes, [], 0
            if not self.is_open:
                return
            if len(outgoing) == 1:
                self._transport.write(outgoing[0])
            elif size < JOINED_BYTES:
                self._transport.write(b"".join(outgoing))
            else:
                self._transport.writelines(outgoing)  # uvloop's does not copy them
            unsent = self._transport.get_write_buffer_size()
            if unsent >= JOINED_BYTES:
                self._server.count_unsent(self, unsent)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        self.remote = Address(host, port)
        self.joined_at = self.last_seen = self._server.loop.time()
        self.is_open = True
        self._server.adopt(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return space_for(self._decoder)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._closing:
            self._handle(nbytes, 0)

    def data_received(self, data: bytes) -> None:
        """As `buffer_updated`, for a transport that has the bytes already."""
        if not self._closing:
            self._handle(data, 0)

    def _take_turn(self, end: int) -> bool:
        """Handles requests that waited for a turn, until `end`; whether there are more."""
        self._waits_for_turn = False
        if self.is_open and not self._closing:
            self._handle(0, end)
        return self._waits_for_turn

    def _handle(self, read: int | bytes, end: int) -> None:
        """Handles what was read, and replies in one write. `read` is the bytes, or how many were written to the buffer;
        `end` is the end of the turn; 0: it begins now.
        """
        reads = self._server.reads
        # A write for what was queued before is already scheduled.
        self._reading = not self._outgoing
        reads.begin()
        try:
            frames: list[Frame] = []
            if read:
                frames = received(self._decoder, read) if isinstance(read, int) else self._decoder.feed(read)
            if frames:
                # Not for the bytes of an unfinished frame: one byte a minute would keep a connection for ever.
                self.last_seen = self._server.loop.time()
                self.known = self.known or not self._server.limits.signed
                self._incoming.extend(frames)
            self._count_unfinished(begun=bool(frames))
            if self._waits_for_turn:
                pass  # TLS may pass on what it had read before
            elif end or not (self._long or (frames and self._new and not self._server.turns.for_newcomer())):
                self._work(end)
            else:
                self._wait_for_turn()
                self._server.turns.add(self._take_turn)
        except ProtocolError as error:
            self._close_other_protocol(error)
        finally:
            try:
                reads.end(self.number)
            finally:
                if self._reading:
                    self._reading = False
                    self._flush()

    def _work(self, end: int = 0) -> None:
        """Handles received requests for a turn, as long as the peer reads its replies."""
        server, incoming = self._server, self._incoming
        received, together, turns = server.dispatcher.received, server.together, server.turns
        is_first = not end
        if is_first and len(incoming) > 1:
            end = turns.end()
        while incoming and not self._waits:
            if together is not None and len(incoming) > 1 and (taken := together(self, incoming)):
                for _ in range(min(taken, len(incoming))):  # a peer that was closed in between has none left
                    incoming.popleft()
            else:
                frame = incoming.popleft()
                try:
                    command = decode_command(frame)
                except BadHeader as error:
                    self._refuse(error)
                else:
                    received(self, command)
            if incoming and turns.nanoseconds() >= end:
                self._turns += 1
                self._wait_for_turn()
                if is_first:
                    turns.add(self._take_turn)
                return
        self._long = self._turns > 0
        self._new = self._new and self._long
        self._turns = 0
        self._read_or_wait()

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._read_or_wait()

    def _refuse(self, error: BadHeader) -> None:
        """Replies with an error if the request is known, else closes the connection."""
        if error.opaque is None:
            raise error
        self.send(encode_response(error.opaque, ResponseCode.SYSTEM_ERROR, remark=str(error)))

    @property
    def closing(self) -> bool:
        """Whether the connection is being closed."""
        return self._closing

    @property
    def unsent(self) -> int:
        """Bytes of written replies that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _waits(self) -> bool:
        return self.reads_slowly or self._held or self._stopped or self._closing

    def _read_or_wait(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._waits or self._waits_for_turn:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.reads_slowly = True
        self._read_or_wait()

    def resume_writing(self) -> None:
        self.reads_slowly = False
        if self.is_open:
            # Later: a handler that replies would write from inside the transport's own write.
            self._server.loop.call_soon(self._continue)

    def _continue(self) -> None:
        if not self.is_open or self._waits_for_turn:
            return
        try:
            self._work()
        except ProtocolError as error:
            self._close_other_protocol(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._drop_received()
        self._outgoing.clear()
        self._server.forget(self)


class Server:
    """Accepts peers within its limits and passes their commands to the dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        limits: ConnectionLimits | None = None,
        refusals: RefusalCounts | None = None,
        joining: Joining | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_unfinished_bytes: int = MAX_UNFINISHED_BYTES,
        together: Together | None = None,
        reads: Reads | None = None,
        tls_detector: TlsDetector | None = None,
        nanoseconds: Callable[[], int] | None = None,
    ) -> None:
        """`nanoseconds` measures the turns of the peers."""
        self.dispatcher = dispatcher
        self.together = together
        self.reads: Reads = reads or NoReads()
        self.max_frame_bytes = max_frame_bytes
        self.unfinished: UnfinishedFrames[Peer] = UnfinishedFrames(max_unfinished_bytes)
        self.unsent: UnsentReplies[Peer] = UnsentReplies(
            MAX_UNSENT_BYTES, lambda peer: peer.unsent, lambda peer: peer.remote.host
        )
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.loop, nanoseconds or SystemClock().now_ns)
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
        """Connections by host, those that join included; no zeros."""
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
            host = address[0]
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

        A handshake counts as a connection, or endless handshakes would have no limit.
        """
        limits = self.limits
        if len(self.peers) + len(self._joining) >= limits.total:
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
            self._count(peer.remote.host, 1)
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
        frames.note(peer, peer.remote.host, size, known=peer.known, begun=begun)
        while size and (first := frames.first_to_close()) is not None:
            host, why = first.remote.host, f"the unfinished requests of all clients take more than {frames.limit} bytes"
            self.refusals.add(RefusalReason.UNFINISHED_FRAMES)
            self._warnings.warn(host, f"connections from {host} that have not finished a request are closed: {why}")
            first.close(why)
            # A peer that is closing already is not closed again.
            frames.note(first, host, 0, known=first.known, begun=False)

    def count_unsent(self, peer: Peer, size: int) -> None:
        """Notes the unsent replies of a peer; above the limit of all of them, peers are disconnected."""
        self.unsent.note(peer, size)
        while (first := self.unsent.first_to_close()) is not None:
            host, why = first.remote.host, f"the unsent replies of all clients take more than {self.unsent.limit} bytes"
            self.refusals.add(RefusalReason.UNSENT_REPLIES)
            self._warnings.warn(host, f"connections from {host} that do not read their replies are closed: {why}")
            self.unsent.forget(first)
            first.abort()

    def forget(self, peer: Peer) -> None:
        self.unsent.forget(peer)
        self._count(peer.remote.host, -1)
        self._refused_peers.discard(peer)
        if peer in self.peers:
            del self.peers[peer], self._watched[peer]
            self._newcomers.pop(peer, None)
            self.dispatcher.closed(peer)
        if not self.peers and not self._refused_peers:
            self._empty.set()
