"""One client's connection, as the broker sees it: reads frames, passes them to a dispatcher, writes replies.

It is an asyncio protocol, not streams: one read of the socket may hold hundreds of requests, and their replies leave in
one write (`outbox`). Handlers run in the read callback itself, for one slice (`loop_slices`); what is left waits for
the next one. A handler that must wait (a durable send, a long poll) keeps the peer and replies later. There is no task,
future or timer per request.

Two things make a peer's requests wait. It may have used up its slice: then it is in line for the next one
(`_waits_for_slice`). Or it may not be served at all for now (`_is_paused`): it does not read its replies, a handler
holds it, or the connection is closing. Nothing is read from its socket meanwhile.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from lanemq.model.errors import ProtocolError
from lanemq.net.address import Address, origin_of
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.receiving import received, space_for
from lanemq.net.serving.loop_slices import LoopSlices, RecentCost
from lanemq.net.serving.outbox import Outbox
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import MAX_FRAME_BYTES, BadHeader, Frame, FrameDecoder, encode_response
from lanemq.wire.other_protocols import OtherProtocol

log = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
"""If a peer's unsent replies exceed this, its requests wait: a slow reader slows only itself."""

CROWDED_BYTES = 128 * 1024
"""Bytes of messages in one reply, and unsent bytes above which the requests of a peer wait, while the unsent replies of
all peers take more than half of their limit."""

FLUSH_BYTES = 1024 * 1024
"""Once unwritten replies exceed this size, they are written without waiting for the end of the step. Only what was
written counts against the high-water mark, so a client that does not read costs the mark, this, and one reply."""

JOINED_BYTES = 64 * 1024
"""Replies that are smaller than this together are joined: copying them costs less than a list of buffers."""

CLOSE_SECONDS = 5.0
"""How long a closing connection may take to read its last replies before it is cut off."""


class Reads(Protocol):
    """Called before and after the server handles the requests of one socket read, always in pairs.

    The broker's group commit is one: at the end of a read it knows whether other sends may join the next group.
    """

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

    def received(self, peer: "Peer", frames: deque[Frame], /) -> None:
        """Handles the first request, with those behind it that can be handled together with it, and removes them.

        Raises `BadHeader` if it cannot be read.
        """

    def closed(self, peer: "Peer", /) -> None: ...


class PeerServer(Protocol):
    """What a peer needs from the server that accepted it."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    reads: Reads
    slices: LoopSlices
    outbox: Outbox
    max_frame_bytes: int
    other_protocols: RateLimitedLog
    """Warns about peers that speak another protocol."""

    @property
    def crowded(self) -> bool:
        """Whether the unsent replies of all peers take more than half of their limit."""

    @property
    def needs_signature(self) -> bool:
        """Whether a peer is known only after a correctly signed request."""

    @property
    def may_answer(self) -> Callable[[], bool] | None:
        """Asked before replies are written. If they may not leave any more, the connection is broken."""

    def adopt(self, peer: "Peer", /) -> None:
        """Called once, when the connection can be used."""

    def forget(self, peer: "Peer", /) -> None:
        """Called once, after the connection ended."""

    def count_unfinished(self, peer: "Peer", size: int, /, *, begun: bool) -> None:
        """Called when the bytes of the peer's unfinished frame change. `begun`: they belong to a new frame."""

    def count_unsent(self, peer: "Peer", size: int, /) -> None:
        """Called after a write that left many replies unsent."""


class Peer(asyncio.BufferedProtocol):
    """One connection, as the broker sees it.

    Bounded in memory: above the high-water mark of unsent replies, received requests wait and no more are read until
    the peer has read its replies.
    """

    _numbers = itertools.count(1)

    origin = ""
    """Its address or network (`origin_of`): limits of an address count by it."""

    _cut_off: asyncio.TimerHandle | None = None
    _reply_bytes = 0
    """Bytes of replies since its last read began. Those of earlier reads do not count: a thousand small ones that were
    made later, as those of sends are, would look like a large one."""

    def __init__(self, server: "PeerServer", joining: asyncio.Task[None] | None = None) -> None:
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
        self._last_write = 0
        self._server = server
        self._decoder = FrameDecoder(server.max_frame_bytes)
        self._unfinished = 0
        self._transport: asyncio.Transport | None = None
        self._incoming: deque[Frame] = deque()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._closing = False
        self._stopped = False
        self._waits_for_slice = False
        self._held = self._is_paused = False
        """Whether a handler holds it, and whether its requests wait for this or anything else but a slice."""
        self._reads = True
        """Whether its socket is read."""
        self._slices = 0
        """Slices that ended before everything received was handled."""
        self._long = self._is_quick = False
        """Whether its last requests took more than a slice: then the next ones wait for a slice from the start. And
        whether its requests need not wait in line: it is not new, and neither requests nor answers were long lately."""
        self._new = True
        """Whether none of its requests were handled within a slice yet."""
        self._cost = RecentCost()

    def __str__(self) -> str:
        return f"peer {self.number} at {self.remote}"

    def send(self, frame: bytes) -> None:
        """Queues a frame, or its parts in turn; the outbox says when it is written."""
        if not self._outgoing:
            self._server.outbox.add(self._flush)
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        self._reply_bytes += len(frame)
        if self._outgoing_bytes > CROWDED_BYTES and (self._outgoing_bytes > FLUSH_BYTES or self._server.crowded):
            self._flush()

    def close(self, reason: str) -> None:
        """Closes the connection after queued bytes are written, or after `CLOSE_SECONDS`."""
        if self._transport is None or not self.is_open or self._closing:
            return
        log.info("closing %s: %s", self, reason)
        self._closing = self._is_paused = True
        self._drop_received()
        self._flush()
        self._transport.close()
        self._cut_off = self._server.loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Breaks the connection without writing what is queued."""
        if self._transport is not None:
            self._closing = self._is_paused = True
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
        """Handles no further request of this peer until `release`, because one takes long and must come first."""
        self._held = True
        self._pause_or_resume()

    def hold_for(self, seconds: float) -> None:
        """Handles no further request of this peer for a while. It must not be held already."""
        self.hold()
        self._server.loop.call_later(seconds, self.release)

    def release(self) -> None:
        """Continues with the requests of this peer."""
        self._held = False
        self._pause_or_resume(resume=False)
        if self.is_open:
            self._server.loop.call_soon(self._continue)

    def stop_reading(self) -> None:
        """Accepts no more requests from this peer; replies are still written."""
        self._stopped = True
        self._pause_or_resume()

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
            if not self.is_open or self._transport.is_closing():
                return
            if self._server.may_answer is not None and not self._server.may_answer():
                self.abort()
                return
            if len(outgoing) == 1:
                self._transport.write(outgoing[0])
            elif size < JOINED_BYTES:
                self._transport.write(b"".join(outgoing))
            else:
                self._transport.writelines(outgoing)  # uvloop's does not copy them
            self._last_write = size
            if self._transport.get_write_buffer_size() >= JOINED_BYTES:
                self._server.count_unsent(self, self.unsent)
                if self._server.crowded and not self._closing:
                    self._transport.set_write_buffer_limits(high=CROWDED_BYTES)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        self.remote = Address(host, port)
        self.origin = origin_of(host)
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

    def pause_writing(self) -> None:
        self.reads_slowly = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self.reads_slowly = False
        self._pause_or_resume(resume=False)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)  # it may have been lowered
        if self.is_open:
            # Later: a handler that replies would write from inside the transport's own write.
            self._server.loop.call_soon(self._continue)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._drop_received()
        self._outgoing.clear()
        self._server.forget(self)

    # handling requests

    def _take_slice(self, end: int) -> bool:
        """Handles requests that waited for a slice, until `end`; whether there are more."""
        self._waits_for_slice = False
        if self.is_open and not self._closing:
            self._handle(0, end)
        return self._waits_for_slice

    def _handle(self, read: int | bytes, end: int) -> None:
        """Handles what was read, and replies in one write. `read` is the bytes, or how many were written to the buffer;
        `end` is the end of the slice; 0: it begins now.
        """
        reads, worked = self._server.reads, False
        self._reply_bytes = 0
        with self._server.outbox:
            reads.begin()
            try:
                frames = self._receive(read) if read else None
                if self._waits_for_slice:
                    pass  # TLS may pass on what it had read before
                elif end or not frames or self._is_quick or not self._must_wait:
                    worked = bool(frames or end)
                    self._work(end)
                else:
                    self._wait_in_line()
            except ProtocolError as error:
                self._close_other_protocol(error)
            finally:
                reads.end(self.number)
        if worked:
            self._cost.add(self._reply_bytes)
            self._is_quick = not (self._long or self._new or self._cost.costly)

    def _receive(self, read: int | bytes) -> list[Frame]:
        decoder = self._decoder
        frames = received(decoder, read) if isinstance(read, int) else decoder.feed(read)
        if frames:
            # Not for the bytes of an unfinished frame: one byte a minute would keep a connection for ever.
            self.last_seen = self._server.loop.time()
            self.known = self.known or not self._server.needs_signature
            self._incoming.extend(frames)
        if decoder.pending or self._unfinished:
            self._count_unfinished(begun=bool(frames))
        return frames

    @property
    def _must_wait(self) -> bool:
        """Whether what was received waits in line for a slice, so that it does not delay others."""
        if self._long:
            return True
        return (self._new or self._cost.costly) and not self._server.slices.may_begin(new=self._new)

    def _work(self, end: int = 0) -> None:
        """Handles received requests for a slice, as long as the peer reads its replies."""
        server, incoming = self._server, self._incoming
        received, slices = server.dispatcher.received, server.slices
        is_first = not end
        if is_first and len(incoming) > 1:
            end = slices.end()
        while incoming and not self._is_paused:
            try:
                received(self, incoming)
            except BadHeader as error:
                self._refuse(error)
            if incoming and slices.nanoseconds() >= end:
                self._slices += 1
                if is_first:
                    self._wait_in_line()
                else:
                    self._wait_for_slice()
                return
        self._long = self._slices > 0
        self._new = self._new and self._long
        self._slices = 0
        if not self._reads:
            self._read_or_wait()

    def _continue(self) -> None:
        if not self.is_open or self._waits_for_slice:
            return
        if self._incoming and self._must_wait:
            self._wait_in_line()
            return
        try:
            self._work()
        except ProtocolError as error:
            self._close_other_protocol(error)

    def _wait_in_line(self) -> None:
        self._wait_for_slice()
        self._server.slices.add(self._take_slice)

    def _wait_for_slice(self) -> None:
        self._waits_for_slice = True
        self._read_or_wait()

    def _refuse(self, error: BadHeader) -> None:
        """Replies with an error if the request is known, else closes the connection."""
        if error.opaque is None:
            raise error
        self.send(encode_response(error.opaque, ResponseCode.SYSTEM_ERROR, remark=str(error)))

    # what the server and the handlers ask

    @property
    def closing(self) -> bool:
        """Whether the connection is being closed."""
        return self._closing

    @property
    def unhandled(self) -> int:
        """Requests that were received and have to wait."""
        return len(self._incoming)

    @property
    def unsent(self) -> int:
        """Bytes of memory that replies take which the client has not read. A reply that is sent in part takes all of
        its memory until it is sent."""
        left = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return max(left, self._last_write) if left else 0

    @property
    def max_reply_bytes(self) -> int:
        """How many bytes of messages a reply may hold now; one message is always allowed."""
        return CROWDED_BYTES if self._server.crowded else MAX_FRAME_BYTES

    def _pause_or_resume(self, *, resume: bool = True) -> None:
        """Called when something begins or ends for which requests wait. `resume`: the socket is read again at once."""
        self._is_paused = self.reads_slowly or self._held or self._stopped or self._closing
        if resume or self._is_paused:
            self._read_or_wait()

    def _read_or_wait(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._reads = not (self._is_paused or self._waits_for_slice)
        if self._reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
