"""The calling side on an event loop: one multiplexed connection per address, and the pool that shares them.

The peer may send requests too, as RocketMQ's brokers do; they go to `on_request`. When a connection is lost, every
request that still waits for its reply fails.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple, cast

from lanemq.background_log import ClientLog
from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import (
    Closed,
    ConnectFailed,
    ConnectionLost,
    InvalidOption,
    LaneError,
    ProtocolError,
    RequestTimedOut,
    TlsFailed,
    TransportError,
)
from lanemq.net.address import Address, parse_address
from lanemq.net.calling.link import CONNECT_SECONDS, Link, connect_failed
from lanemq.net.rate_limited_log import OutageLog
from lanemq.net.security import (
    OPEN,
    Security,
    TlsOptions,
    client_context,
    handshake_trouble,
)
from lanemq.wire.command import Command, decode_command, encode_command
from lanemq.wire.lane_fields import LANE_MORE

log = ClientLog(__name__)

OnRequest = Callable[["Connection", Command], None]
OnLost = Callable[["Connection"], None]
OnReply = Callable[[Command | None, LaneError | None], None]


class _Waiter(NamedTuple):
    on_reply: OnReply
    timer: asyncio.TimerHandle
    in_parts: bool


class Connection(asyncio.BufferedProtocol):
    """A connection to one address, made by `open_connection`. It cannot be used after `is_open` becomes false."""

    def __init__(
        self,
        address: Address,
        on_request: OnRequest | None,
        on_lost: OnLost | None,
        security: Security = OPEN,
    ) -> None:
        self.address = address
        self.is_open = False
        self._link: Link[_Waiter] = Link(address, security)
        self._encrypted = security.tls is not None
        self._loop = asyncio.get_running_loop()
        self._on_request = on_request
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.last_received = self._loop.time()
        """When bytes arrived last, or when the connection was made; the event loop's time."""

    async def request(self, command: Command, timeout: float) -> Command:
        """Sends a request and waits for the reply, whatever its code."""
        future: asyncio.Future[Command] = self._loop.create_future()

        def replied(reply: Command | None, error: LaneError | None) -> None:
            if future.done():
                return
            if reply is not None:
                future.set_result(reply)
            else:
                future.set_exception(error or ConnectionLost("the connection ended"))

        self.post(command, replied, timeout)
        try:
            return await future
        except asyncio.CancelledError:
            self.forget(command.opaque)
            raise

    def post(self, command: Command, on_reply: OnReply, timeout: float, *, in_parts: bool = False) -> None:
        """Sends at once; `on_reply` is called exactly once, with the reply or the error.

        With `in_parts`, the reply may come in parts, and `on_reply` is called with each.
        """
        if not self.is_open or self._transport is None:
            on_reply(None, ConnectionLost(f"the connection to {self.address} is closed"))
            return
        timer = self._loop.call_later(timeout, self._timed_out, command, timeout)
        self._transport.write(self._link.request(command, _Waiter(on_reply, timer, in_parts)))

    def post_oneway(self, command: Command) -> None:
        """Sends a request without a reply."""
        if self.is_open and self._transport is not None:
            self._transport.write(self._link.oneway(command))

    def reply(self, command: Command) -> None:
        """Replies to a request from the peer."""
        if self.is_open and self._transport is not None:
            self._transport.write(encode_command(command))

    async def drain(self) -> None:
        """Waits while the peer reads more slowly than this side writes."""
        await self._writable.wait()

    def close(self) -> None:
        """Closes after queued bytes are written. An encrypted connection does not wait for the peer's closing alert,
        because the caller may be about to end the event loop.
        """
        if self._transport is not None:
            self._transport.close()
            if self._encrypted:
                self._loop.call_soon(self._transport.abort)

    def abort(self, reason: str) -> None:
        """Closes at once, without writing queued bytes: on a dead connection they would never leave."""
        log.info("closing the connection to %s: %s", self.address, reason)
        if self._transport is not None:
            self._transport.abort()

    def forget(self, opaque: int) -> None:
        """Waits no longer for the reply to a request; one that still comes is ignored."""
        waiter = self._link.forget(opaque)
        if waiter is not None:
            waiter.timer.cancel()

    def _timed_out(self, command: Command, timeout: float) -> None:
        waiter = self._link.forget(command.opaque)
        if waiter is not None:
            error = RequestTimedOut(f"no answer from {self.address} to request {command.code} in {timeout:g} s")
            waiter.on_reply(None, error)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._take(nbytes)

    def data_received(self, data: bytes) -> None:
        """As `buffer_updated`, for a transport that has the bytes already."""
        self._take(data)

    def _take(self, read: int | bytes) -> None:
        """Handles the frames that are complete after a read."""
        self.last_received = self._loop.time()
        try:
            for frame in self._link.arrived(read):
                self._received(decode_command(frame))
        except ProtocolError as error:
            log.warning("closing the connection to %s: %s", self.address, error)
            self.close()

    def _received(self, command: Command) -> None:
        if not command.is_response:
            if self._on_request is not None:
                self._on_request(self, command)
            return
        waiter = self._link.waiter_of(command.opaque)
        if waiter is None:
            return
        if not waiter.in_parts or LANE_MORE not in command.ext:
            self.forget(command.opaque)
        waiter.on_reply(command, None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._writable.set()
        for waiter in self._link.forget_all():
            waiter.timer.cancel()
            waiter.on_reply(None, self._link.lost(error))
        if self._on_lost is not None:
            self._on_lost(self)


async def open_connection(
    address: Address,
    *,
    on_request: OnRequest | None = None,
    on_lost: OnLost | None = None,
    timeout: float = CONNECT_SECONDS,
    security: Security = OPEN,
) -> Connection:
    """Connects; raises `ConnectFailed` with address and reason, or `TlsFailed` if the peer cannot be trusted."""
    made = Connection(address, on_request, on_lost, security)
    try:
        # Not `wait_for`: before Python 3.12 it loses a cancellation that arrives together with the result.
        async with asyncio.timeout(timeout):
            if security.tls is None:
                await asyncio.get_running_loop().create_connection(lambda: made, *address)
            else:
                await _connect_encrypted(made, security.tls)
    except (OSError, TimeoutError) as error:
        raise connect_failed(address, error, timeout) from error
    return made


async def _connect_encrypted(made: Connection, tls: TlsOptions) -> None:
    address = made.address
    try:
        # Reading the files takes milliseconds or more and would block the event loop.
        context = await asyncio.to_thread(client_context, tls)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: made, *address, ssl=context, server_hostname=address.host)
    except InvalidOption as error:  # a certificate file that was valid when the client was created
        raise TlsFailed(f"no TLS connection to {address}: {error}") from error
    except OSError as error:
        if isinstance(error, (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)):
            raise TlsFailed(f"no TLS connection to {address}: {handshake_trouble(error, address, tls)}") from error
        raise


class ConnectionPool:
    """Shares connections; concurrent calls for one address wait for the same connection attempt."""

    def __init__(
        self,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        *,
        security: Security = OPEN,
        clock: Clock | None = None,
    ) -> None:
        self._on_request = on_request
        self._on_lost = on_lost
        self._security = security
        self.outages = OutageLog(log, clock or SystemClock())
        self._open: dict[Address, Connection] = {}
        self._locks: dict[Address, asyncio.Lock] = {}
        self._closed = False

    async def get(self, address: Address | str) -> Connection:
        """An open connection to the address; raises `ConnectFailed`."""
        if isinstance(address, str):
            address = parse_address(address)
        connection = self._open.get(address)
        if connection is not None and connection.is_open:
            return connection
        async with self._locks.setdefault(address, asyncio.Lock()):
            connection = self._open.get(address)
            if connection is None or not connection.is_open:
                connection = await self._connect(address)
            return connection

    async def _connect(self, address: Address) -> Connection:
        if self._closed:
            raise Closed("this client is closed")
        try:
            connection = await open_connection(
                address, on_request=self._on_request, on_lost=self._on_lost, security=self._security
            )
        except ConnectFailed as error:
            self.outages.failed(address, error)
            raise
        self._open[address] = connection
        return connection

    async def request(self, address: Address, command: Command, timeout: float) -> Command:
        """Sends a request to an address and returns the reply, whatever its code."""
        connection = await self.get(address)
        try:
            reply = await connection.request(command, timeout)
        except TransportError as error:
            self.outages.failed(address, error)
            raise
        if self.outages.away:
            self.outages.answered(address)
        return reply

    def close_silent(self, address: Address, seconds: float) -> bool:
        """Closes the connection to an address if nothing has arrived on it for so long; the next `get` dials again.

        TCP itself notices a dead connection late: after a break of the network it tries again in growing intervals, so
        a connection may stay dead for as long again as the break lasted, and for minutes while the network is away.
        """
        connection = self._open.get(address)
        if connection is None or not connection.is_open:
            return False
        silence = asyncio.get_running_loop().time() - connection.last_received
        if silence < seconds:
            return False
        connection.abort(f"nothing has arrived for {silence:.1f} s although answers are due")
        return True

    def live(self) -> list[Connection]:
        return [connection for connection in self._open.values() if connection.is_open]

    def close(self) -> None:
        self._closed = True
        for connection in self.live():
            connection.close()
