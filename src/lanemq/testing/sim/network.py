"""A network between simulated processes: late, sometimes blocked, and it loses connections, never bytes of one.

Every fault is one a real network has: a connection is reset at both ends, or one end never hears of it; an answer is
lost with its connection; a path is blocked in one or both directions and what was written waits; connecting hangs.
"""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, cast

from lanemq.testing.sim.host import Host
from lanemq.testing.sim.loop import VirtualLoop
from lanemq.testing.sim.trace import Trace
from lanemq.testing.sim.wire_end import End

CONNECT_RETRY_SECONDS = 1.0
"""When a first packet that got lost is sent again."""

Accept = Callable[[End], asyncio.Protocol]


class Network:
    """Who listens where, which connections there are, and which paths are blocked."""

    def __init__(self, loop: VirtualLoop, random: Random, trace: Trace) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.trace = trace
        self.ends: dict[End, None] = {}
        self.latency = 0.001
        """Seconds one way, at least; four times that at most, and now and then much more."""
        self.bytes_per_second = 20_000_000.0
        self._random = random
        self._listeners: dict[tuple[str, int], tuple[Host, Accept]] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._opened = 0
        self._virtual = loop
        loop.connect = self._connect

    # what happens to it

    def block(self, one: str, other: str) -> None:
        """Nothing gets from one process to the other until `heal`."""
        self._blocked[one, other] = None

    def heal(self, one: str, other: str) -> None:
        if self._blocked.pop((one, other), self) is not self:
            for end in self._living():
                if (end.host.name, end.other.host.name) == (one, other):
                    end.release()

    def heal_all(self) -> None:
        """No path is blocked, and everybody has heard of the connections that are over."""
        for one, other in tuple(self._blocked):
            self.heal(one, other)
        for end in self._living():
            if end.other.gone and not end.told:
                end.other.silent = False
                self.tell_later(end)

    def swallow(self, end: End, why: str) -> None:
        """A middlebox forgets a connection and tells this end only. What the other one writes gets no answer at all,
        until `answer_again`: it cannot find out."""
        end.silent = True
        self.cut(end, why, tell_other=False)

    def answer_again(self, end: End) -> None:
        """The other end of a swallowed connection hears of it."""
        end.silent = False
        if not end.other.told:
            self.tell_later(end.other)

    def cut(self, end: End, why: str, *, tell: bool = True, tell_other: bool = True) -> None:
        """Ends a connection in the middle; an end that is not told goes on writing into it."""
        self.trace.note(end.name, f"cut: {why}")
        self.trace.count("connection cut" if tell and tell_other else "half-open connection")
        for each, told in ((end, tell), (end.other, tell_other)):
            each.gone = True
            if told:
                self.tell_later(each)

    def host_ended(self, host: Host, *, silently: bool = False) -> None:
        """The process ends, and its connections with it. `silently`: the machine is gone too; nobody says so."""
        self._virtual.end(host)
        for address in [a for a, (who, _) in self._listeners.items() if who is host]:
            del self._listeners[address]
        for end in [end for end in self.ends if end.host is host]:
            if not end.gone:
                end.gone, end.silent = True, silently
                if not silently and not self.blocked(host, end.other.host):
                    self.tell_later(end.other)
            del self.ends[end]

    def of(self, host_name: str) -> list[End]:
        """The open ends of a process."""
        return [end for end in self._living() if end.host.name == host_name and not end.gone]

    # what servers and clients ask for

    def listen(self, host: Host, address: tuple[str, int], accept: Accept) -> None:
        if address in self._listeners:
            raise OSError(98, f"{address} is in use")
        self._listeners[address] = (host, accept)
        for end in self._living():
            if end.other.host.name == host.name:
                end.other.silent = False  # the machine is there again, and knows nothing of old connections

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
            raise ConnectionRefusedError(111, f"nobody listens on {name}:{port}")
        end = self._pair(caller, listener[0], port, listener[1])
        end.protocol = cast(asyncio.Protocol, factory())
        end.protocol.connection_made(end)
        return end, end.protocol

    def _pair(self, caller: Host, server: Host, port: int, accept: Accept) -> End:
        self._opened += 1
        near = End(self, caller, f"{caller}#{self._opened}", ("10.0.0.1", port))
        far = End(self, server, f"{server}#{self._opened}", ("10.0.1.1", 10_000 + self._opened))
        near.other, far.other = far, near
        self.ends[near] = self.ends[far] = None
        self.trace.note(caller, f"connects #{self._opened}")
        # First in line there, so that the server knows the connection before anything arrives on it.
        server.call(_accepted, far, accept)
        return near

    # what the ends ask for

    def blocked(self, sender: Host, receiver: Host) -> bool:
        return (sender.name, receiver.name) in self._blocked

    def delay(self, size: int) -> float:
        random = self._random.random
        spread = self.latency * (1 + 3 * random())
        if random() < 0.02:
            spread += self.latency * 60 * random()
        return spread + size / self.bytes_per_second

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Mostly whole; sometimes what was written at once arrives in two parts."""
        if len(data) > 1 and self._random.random() < 0.1:
            middle = self._random.randrange(1, len(data))
            yield data[:middle]
            yield data[middle:]
        else:
            yield data

    def answer_reset(self, end: End) -> None:
        """Somebody writes to an end that is gone: its machine, if reachable, says so."""
        if not end.other.silent and not self.blocked(end.host, end.other.host):
            self.tell_later(end)

    def tell_later(self, end: End) -> None:
        error = ConnectionResetError(104, "connection reset by peer")
        self.loop.call_later(self.delay(0), end.tell, error, context=end.host.context)

    def _living(self) -> list[End]:
        for end in [end for end in self.ends if (end.told and not end.stalled) or end.host.dead]:
            del self.ends[end]
        return list(self.ends)


def _accepted(end: End, accept: Accept) -> None:
    if not end.host.dead:
        end.protocol = accept(end)
        end.protocol.connection_made(end)
