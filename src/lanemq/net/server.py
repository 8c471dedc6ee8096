"""The listening side: bytes in, commands to a dispatcher, answers out.

A protocol class, not streams: one read of the socket may hold hundreds of requests, and all of their answers
leave in one write at the end of the loop turn. Handlers run in the read callback itself; one that must wait
(a durable send, a held pull) keeps the peer and answers later. No task, future or timer exists per request.
"""

import asyncio
import itertools
import logging
from typing import Protocol

from lanemq.model.errors import ProtocolError
from lanemq.net.address import Address
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import BadHeader, Command, decode_command, encode_response
from lanemq.wire.frame import FrameDecoder

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""RocketMQ's own limit (NettyDecoder)."""

WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
"""Above this much unsent output a peer is not read any more: a slow reader slows only itself."""


class Dispatcher(Protocol):
    """What the server needs from the broker."""

    def connected(self, peer: "Peer") -> None: ...

    def received(self, peer: "Peer", command: Command) -> None: ...

    def closed(self, peer: "Peer") -> None: ...


class Peer(asyncio.Protocol):
    """One connection, as the broker sees it."""

    _numbers = itertools.count(1)

    def __init__(self, server: "Server") -> None:
        self.number = next(self._numbers)
        self.remote = Address("0.0.0.0", 0)
        self.last_seen = 0.0
        self.is_open = False
        self._server = server
        self._decoder = FrameDecoder(server.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._choked = False

    def __str__(self) -> str:
        return f"peer {self.number} at {self.remote}"

    def send(self, frame: bytes) -> None:
        """Queues a frame; everything queued in one loop turn leaves in one write."""
        if not self._outgoing:
            self._server.loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def close(self, reason: str) -> None:
        """Ends the connection after what is queued has left."""
        if self._transport is not None and self.is_open:
            log.info("closing %s: %s", self, reason)
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
            self._outgoing.clear()
            if self.is_open:
                self._transport.write(data)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        self.remote = Address(host, port)
        self.last_seen = self._server.loop.time()
        self.is_open = True
        self._server.adopt(self)

    def data_received(self, data: bytes) -> None:
        self.last_seen = self._server.loop.time()
        received = self._server.dispatcher.received
        try:
            for frame in self._decoder.feed(data):
                try:
                    command = decode_command(frame)
                except BadHeader as error:
                    self._refuse(error)
                else:
                    received(self, command)
        except ProtocolError as error:
            self.close(f"not RocketMQ's protocol: {error}")

    def _refuse(self, error: BadHeader) -> None:
        """The frame was sound, so the stream can go on, provided that somebody can be told."""
        if error.opaque is None:
            raise error
        self.send(encode_response(error.opaque, ResponseCode.SYSTEM_ERROR, remark=str(error)))

    def pause_writing(self) -> None:
        self._choked = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._choked = False
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._outgoing.clear()
        self._server.forget(self)


class Server:
    """Accepts up to `max_connections` peers and hands their commands to the dispatcher."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        max_connections: int = 10_000,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.dispatcher = dispatcher
        self.max_frame_bytes = max_frame_bytes
        self.loop = asyncio.get_running_loop()
        self.peers: set[Peer] = set()
        self.refused = 0
        self._max_connections = max_connections
        self._listener: asyncio.Server | None = None
        self._nobody = asyncio.Event()
        self._nobody.set()

    async def listen(self, address: Address) -> Address:
        """Starts accepting; returns the address really bound (port 0 picks a free one)."""
        self._listener = await self.loop.create_server(
            lambda: Peer(self), address.host, address.port, backlog=1024, reuse_address=True
        )
        host, port = self._listener.sockets[0].getsockname()[:2]
        return Address(host, port)

    def stop_accepting(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Closes the listener and every peer, and waits until they are gone."""
        self.stop_accepting()
        for peer in tuple(self.peers):
            peer.close("the broker is stopping")
        if self._listener is not None:
            await self._listener.wait_closed()
        await self._nobody.wait()

    def close_idle(self, seconds: float) -> None:
        """Closes peers that have been silent for longer; RocketMQ closes after 120 s."""
        limit = self.loop.time() - seconds
        for peer in tuple(self.peers):
            if peer.last_seen < limit:
                peer.close(f"silent for more than {seconds:.0f} s")

    # called by the peers

    def adopt(self, peer: Peer) -> None:
        if len(self.peers) >= self._max_connections:
            self.refused += 1
            peer.close(f"already {self._max_connections} connections; raise max_connections")
            return
        self.peers.add(peer)
        self._nobody.clear()
        self.dispatcher.connected(peer)

    def forget(self, peer: Peer) -> None:
        if peer in self.peers:
            self.peers.discard(peer)
            self.dispatcher.closed(peer)
            if not self.peers:
                self._nobody.set()
