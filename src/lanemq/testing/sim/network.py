"""A network between simulated processes, with delays, blocked paths and lost connections.

Every fault is one that real networks have: a connection is reset at both ends, or one end does not notice; an answer is
lost with its connection; a path is blocked in one or both directions, and what was written waits; connecting hangs.

Bytes of a connection arrive in the order in which they were written, late and in pieces, never reordered or changed.
What is in flight when a connection is cut is lost.
"""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Protocol, cast

from lanemq.testing.sim.host import Host
from lanemq.testing.sim.loop import VirtualLoop
from lanemq.testing.sim.trace import Trace

CONNECT_RETRY_SECONDS = 1.0
"""Seconds until a lost first packet is sent again."""


class Receiving(Protocol):
    """What an end of a connection calls of its protocol."""

    def connection_made(self, transport: asyncio.BaseTransport, /) -> None: ...

    def data_received(self, data: bytes, /) -> None: ...

    def connection_lost(self, error: Exception | None, /) -> None: ...


Accept = Callable[["End"], Receiving]


class Network:
    """Listeners, connections and blocked paths."""

    def __init__(self, loop: VirtualLoop, random: Random, trace: Trace) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.trace = trace
        self.ends: dict[End, None] = {}
        self.latency = 0.001
        """Minimum seconds one way; usually up to four times that, sometimes much more."""
        self.bytes_per_second = 20_000_000.0
        self._random = random
        self._listeners: dict[tuple[str, int], tuple[Host, Accept]] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._opened = 0
        self._virtual = loop
        loop.connect = self._connect

    # faults

    def block(self, one: str, other: str) -> None:
        """Blocks the path from one process to the other until `heal`."""
        self._blocked[one, other] = None

    def heal(self, one: str, other: str) -> None:
        if self._blocked.pop((one, other), self) is not self:
            for end in self._living():
                if (end.host.name, end.other.host.name) == (one, other):
                    end.release()

    def heal_all(self) -> None:
        """Unblocks all paths, and notifies all ends of lost connections."""
        for one, other in tuple(self._blocked):
            self.heal(one, other)
        for end in self._living():
            if end.other.gone and not end.notified:
                end.other.silent = False
                self.notify_later(end)

    def swallow(self, end: "End", why: str) -> None:
        """A middlebox drops a connection and notifies this end only. The other end gets no answer at all to what it
        writes, until `answer_again`."""
        end.silent = True
        self.cut(end, why, notify_other=False)

    def answer_again(self, end: "End") -> None:
        """The other end of a swallowed connection is notified."""
        end.silent = False
        if not end.other.notified:
            self.notify_later(end.other)

    def cut(self, end: "End", why: str, *, notify: bool = True, notify_other: bool = True) -> None:
        """Cuts a connection; an end that is not notified continues writing to it."""
        self.trace.note(end.name, f"cut: {why}")
        self.trace.count("connection cut" if notify and notify_other else "half-open connection")
        for each, notified in ((end, notify), (end.other, notify_other)):
            each.gone = True
            if notified:
                self.notify_later(each)

    def host_ended(self, host: Host, *, silently: bool = False) -> None:
        """Kills a process and its connections. `silently`: its machine too, so the other ends are not notified."""
        self._virtual.end(host)
        for address in [a for a, (who, _) in self._listeners.items() if who is host]:
            del self._listeners[address]
        for end in [end for end in self.ends if end.host is host]:
            if not end.gone:
                end.gone, end.silent = True, silently
                if not silently and not self.blocked(host, end.other.host):
                    self.notify_later(end.other)
            del self.ends[end]

    def of(self, host_name: str) -> list["End"]:
        """The open ends of a process."""
        return [end for end in self._living() if end.host.name == host_name and not end.gone]

    # for servers and clients

    def listen(self, host: Host, address: tuple[str, int], accept: Accept) -> None:
        if address in self._listeners:
            raise OSError(98, f"{address} is in use")
        self._listeners[address] = (host, accept)
        for end in self._living():
            if end.other.host.name == host.name:
                end.other.silent = False  # the machine is back, and resets old connections

    def stop_listening(self, host: Host) -> None:
        for address in [a for a, (who, _) in self._listeners.items() if who is host]:
            del self._listeners[address]

    async def _connect(self, caller: Host, factory: Callable[[], asyncio.BaseProtocol], name: str, port: int) -> Any:
        await asyncio.sleep(self.delay(0))
        listener = self._listeners.get((name, port))
        while listener is not None and (self.blocked(caller, listener[0]) or self.blocked(listener[0], caller)):
            await asyncio.sleep(CONNECT_RETRY_SECONDS)
            listener = self._listeners.get((name, port))
        if listener is None or caller.dead:
            raise ConnectionRefusedError(111, f"nothing listens on {name}:{port}")
        end = self._pair(caller, listener[0], port, listener[1])
        end.protocol = cast(Receiving, factory())
        end.protocol.connection_made(end)
        return end, end.protocol

    def _pair(self, caller: Host, server: Host, port: int, accept: Accept) -> "End":
        self._opened += 1
        near = End(self, caller, f"{caller}#{self._opened}", ("10.0.0.1", port))
        far = End(self, server, f"{server}#{self._opened}", ("10.0.1.1", 10_000 + self._opened))
        near.other, far.other = far, near
        self.ends[near] = self.ends[far] = None
        self.trace.note(caller, f"connects #{self._opened}")
        # Called first, so that the server knows the connection before anything arrives on it.
        server.call(_accepted, far, accept)
        return near

    # for the ends of connections

    def blocked(self, sender: Host, receiver: Host) -> bool:
        return (sender.name, receiver.name) in self._blocked

    def delay(self, size: int) -> float:
        random = self._random.random
        spread = self.latency * (1 + 3 * random())
        if random() < 0.02:
            spread += self.latency * 60 * random()
        return spread + size / self.bytes_per_second

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Usually the whole data, sometimes two parts."""
        if len(data) > 1 and self._random.random() < 0.1:
            middle = self._random.randrange(1, len(data))
            yield data[:middle]
            yield data[middle:]
        else:
            yield data

    def answer_reset(self, end: "End") -> None:
        """Answers a write to a lost connection with a reset, if the other machine is reachable."""
        if not end.other.silent and not self.blocked(end.host, end.other.host):
            self.notify_later(end)

    def notify_later(self, end: "End") -> None:
        error = ConnectionResetError(104, "connection reset by peer")
        self.loop.call_later(self.delay(0), end.notify, error, context=end.host.context)

    def _living(self) -> list["End"]:
        for end in [end for end in self.ends if (end.notified and not end.stalled) or end.host.dead]:
            del self.ends[end]
        return list(self.ends)


def _accepted(end: "End", accept: Accept) -> None:
    if not end.host.dead:
        end.protocol = accept(end)
        end.protocol.connection_made(end)


class End(asyncio.Transport):
    """One end of a connection, as asyncio's protocols see it. `other` is the end in the other process."""

    other: "End"
    protocol: Receiving

    def __init__(self, network: Network, host: Host, name: str, peer: tuple[str, int]) -> None:
        super().__init__()
        self.host = host
        self.name = name
        self.notified = False
        """Whether the protocol knows that the connection is lost."""
        self.gone = False
        """Whether nothing arrives here any more: closed, cut, or its process has ended."""
        self.silent = False
        """Whether its machine is gone, so that it sends no reset."""
        self.fuse = 0
        """Number of the write, from now on, that is lost with the connection; 0 for none."""
        self.stalled: list[bytes | None] = []
        """What this end wrote to a blocked path; None is the end of the stream."""
        self._network = network
        self._peer = peer
        self._last_arrival = 0.0
        self._reading = True
        self._unread: list[bytes | None] = []
        self._closing = False

    # called by protocols

    def write(self, data: Any) -> None:
        if self._closing or self.notified or self.host.dead:
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
        if self._closing or self.notified:
            return
        self._closing = True
        self.send(None)
        self._leave(None)

    def abort(self) -> None:
        self._closing = True
        if not self.notified:
            self._network.notify_later(self.other)
            self._leave(None)

    def is_closing(self) -> bool:
        return self._closing or self.notified

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Writes are never slowed down."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            unread, self._unread = self._unread, []
            for piece in unread:
                self.host.call(self.arrive, piece)

    # called by the network

    def send(self, piece: bytes | None) -> None:
        """Sends a piece to the other end."""
        if self.stalled or self._network.blocked(self.host, self.other.host):
            self.stalled.append(piece)
            return
        loop, other = self._network.loop, self.other
        due = loop.time() + self._network.delay(len(piece or b""))
        self._last_arrival = due = max(due, self._last_arrival)
        loop.call_at(due, other.arrive, piece, context=other.host.context)

    def release(self) -> None:
        """Sends what waited for the path."""
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

    def notify(self, error: Exception | None) -> None:
        """Notifies the protocol, once, that the connection is lost."""
        self.gone = True
        if self.notified or self.host.dead:
            return
        self.notified = True
        self._network.trace.note(self.name, f"over: {error or 'closed'}")
        self.protocol.connection_lost(error)

    def _leave(self, error: Exception | None) -> None:
        self.gone = True
        self.host.call(self.notify, error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(Receiving, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self.protocol)
