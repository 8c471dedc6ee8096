"""One end of a simulated connection, as asyncio's protocols see it.

Bytes arrive in the order in which they were written, late and in pieces; never reordered, never changed. What was
under way when a connection is cut is lost, and an end that is not told keeps writing into the void.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol, cast

from lanemq.testing.sim.host import Host
from lanemq.testing.sim.trace import Trace


class Wires(Protocol):
    """What an end needs from the network it belongs to."""

    loop: asyncio.AbstractEventLoop
    trace: Trace

    def blocked(self, sender: Host, receiver: Host) -> bool: ...

    def delay(self, size: int) -> float: ...

    def pieces(self, data: bytes) -> Iterable[bytes]: ...

    def cut(self, end: "End", why: str) -> None: ...

    def answer_reset(self, end: "End") -> None: ...

    def tell_later(self, end: "End") -> None: ...


class End(asyncio.Transport):
    """A transport. `other` is the far end, which belongs to another process."""

    other: "End"
    protocol: asyncio.Protocol

    def __init__(self, network: Wires, host: Host, name: str, peer: tuple[str, int]) -> None:
        super().__init__()
        self.host = host
        self.name = name
        self.told = False
        """The protocol knows that it is over."""
        self.gone = False
        """Nothing arrives here any more: closed, cut, or its process has ended."""
        self.silent = False
        """Its machine is gone: not even a reset comes from here."""
        self.fuse = 0
        """At the so-manieth write from now the connection is cut, and that write is lost."""
        self.stalled: list[bytes | None] = []
        """What this end wrote into a path that is blocked; None is the end of the stream."""
        self._network = network
        self._peer = peer
        self._last_arrival = 0.0
        self._reading = True
        self._unread: list[bytes | None] = []
        self._closing = False

    # what protocols call

    def write(self, data: Any) -> None:
        if self._closing or self.told or self.host.dead:
            return
        if self.fuse:
            self.fuse -= 1
            if self.fuse == 0:
                self._network.cut(self, "lost its answer")
                return
        if self.gone or self.other.gone:
            self._network.answer_reset(self)
            return
        self._network.trace.note(self.name, "writes", data)
        for piece in self._network.pieces(bytes(data)):
            self.send(piece)

    def close(self) -> None:
        if self._closing or self.told:
            return
        self._closing = True
        self.send(None)
        self._leave(None)

    def abort(self) -> None:
        self._closing = True
        if not self.told:
            self._network.tell_later(self.other)
            self._leave(None)

    def is_closing(self) -> bool:
        return self._closing or self.told

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Whatever is written is taken; nothing here slows a writer."""

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            unread, self._unread = self._unread, []
            for piece in unread:
                self.host.call(self.arrive, piece)

    # what the network calls

    def send(self, piece: bytes | None) -> None:
        """Puts it on its way to the other end."""
        if self.stalled or self._network.blocked(self.host, self.other.host):
            self.stalled.append(piece)
            return
        loop, other = self._network.loop, self.other
        due = loop.time() + self._network.delay(len(piece or b""))
        self._last_arrival = due = max(due, self._last_arrival)
        loop.call_at(due, other.arrive, piece, context=other.host.context)

    def release(self) -> None:
        """The path is free again."""
        stalled, self.stalled = self.stalled, []
        for piece in stalled:
            self.send(piece)

    def arrive(self, piece: bytes | None) -> None:
        if self.gone or self.host.dead:
            return
        if not self._reading:
            self._unread.append(piece)
            return
        if piece is None:
            self._leave(None)
            return
        self._network.trace.note(self.name, f"received {len(piece)} B")
        self.protocol.data_received(piece)

    def tell(self, error: Exception | None) -> None:
        """The protocol hears that the connection is over; once."""
        self.gone = True
        if self.told or self.host.dead:
            return
        self.told = True
        self._network.trace.note(self.name, f"over: {error or 'closed'}")
        self.protocol.connection_lost(error)

    def _leave(self, error: Exception | None) -> None:
        self.gone = True
        self.host.call(self.tell, error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol
