"""What a client knows about one connection, without its socket: who waits for which reply, and what has arrived of the
next frame.

`Connection` drives it on an event loop; `BlockingConnection` and `DuplexConnection` drive it on a blocking socket.
Replies are matched to requests by `opaque`.
"""

import errno
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from lanemq.model.errors import ConnectFailed, ConnectionLost
from lanemq.net.address import Address
from lanemq.net.receiving import received, space_for
from lanemq.net.security import Security, alert, closed_early_hint, request_encoder
from lanemq.wire.command import ONEWAY_BIT, Command, Frame, FrameDecoder

CONNECT_SECONDS = 3.0
"""Connect time-out, as RocketMQ's NettyClientConfig."""

W = TypeVar("W")


def connect_failed(address: Address, error: OSError, seconds: float) -> ConnectFailed:
    """The error of a connection that did not come about within so many seconds."""
    remedy = "is a broker running there?"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "this program has too many files and connections open: close some, or raise its limit (ulimit -n)"
    return ConnectFailed(f"cannot connect to {address}: {str(error) or f'no answer in {seconds:g} s'}; {remedy}")


class Link(Generic[W]):
    """`W` is what waits for a reply: a callback, or nothing but the fact that someone does."""

    def __init__(self, address: Address, security: Security) -> None:
        self.address = address
        self._encode = request_encoder(security)
        self._decoder = FrameDecoder(trusted=True)
        self._opaques = itertools.count(1)
        self._waiting: dict[int, W] = {}
        self._closed_early_hint = closed_early_hint(security)

    def request(self, command: Command, waiter: W) -> bytes:
        """Numbers a request, notes who waits for its reply, and returns its frame."""
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        self._waiting[command.opaque] = waiter
        return self._encode(command)

    def oneway(self, command: Command) -> bytes:
        """The frame of a request without a reply."""
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        command.flag |= ONEWAY_BIT
        return self._encode(command)

    def space(self) -> memoryview:
        """Where the next bytes from the peer belong."""
        return space_for(self._decoder)

    def arrived(self, read: int | bytes) -> Sequence[Frame]:
        """The frames that are complete now: so many bytes were written to `space`, or the transport has these bytes.

        Raises `RemoteProtocolError` for bytes that are not a frame; the connection must be closed then.
        """
        self._closed_early_hint = ""
        return received(self._decoder, read) if isinstance(read, int) else self._decoder.feed(read)

    def waiter_of(self, opaque: int) -> W | None:
        """Who waits for a reply, and continues to do so; None if nobody does."""
        return self._waiting.get(opaque)

    def forget(self, opaque: int) -> W | None:
        """Who waited for a reply until now; one that comes later is ignored."""
        return self._waiting.pop(opaque, None)

    def forget_all(self) -> list[W]:
        """Everyone who waited until now: the connection has ended."""
        waiters = (self._waiting.pop(opaque, None) for opaque in tuple(self._waiting))
        return [waiter for waiter in waiters if waiter is not None]

    def lost(self, error: Exception | None) -> ConnectionLost:
        """What everyone who waited is told: what ended the connection and, if a TLS alert says why, what to do."""
        why = alert(error) or f"{error or ''}{self._closed_early_hint}"
        between = ": " if error is not None else ""
        return ConnectionLost(f"the connection to {self.address} was lost{between}{why}")
