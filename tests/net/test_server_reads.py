"""What leaves a server, and when: one write per read, without a turn of the loop for those who are answered at once."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.net.wire import Wire

from lanemq.net.serving.peer import Peer
from lanemq.net.serving.server import Server
from lanemq.wire.command import Command, Frame, decode_command, encode_command, encode_response


class Broker:
    """Answers at once, unless the code says later; notes when a read begins and ends."""

    LATER = 2

    def __init__(self) -> None:
        self.server = Server(self, reads=self, nanoseconds=lambda: 0)  # a turn never ends
        self.notes: list[str] = []
        self.waiting: list[tuple[Peer, bytes]] = []

    def connected(self, peer: Peer) -> None: ...

    def closed(self, peer: Peer) -> None: ...

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        command = decode_command(frames.popleft())
        self.notes.append("request")
        answer = encode_response(command.opaque)
        if command.code == self.LATER:
            self.waiting.append((peer, answer))
        else:
            peer.send(answer)

    def begin(self) -> None:
        self.notes.append("begin")

    def end(self, sender: int) -> None:
        self.notes.append("end")
        while self.waiting:
            waiting, answer = self.waiting.pop(0)
            waiting.send(answer)


def with_a_peer(test: Callable[[Broker, Peer, Wire], Any]) -> None:
    async def run() -> None:
        broker, wire = Broker(), Wire()
        peer = Peer(broker.server)
        peer.connection_made(wire)
        await test(broker, peer, wire)
        peer.connection_lost(None)

    asyncio.run(run())


def request(opaque: int, code: int = 1) -> bytes:
    return encode_command(Command(code, opaque))


def test_answers_to_one_read_leave_in_one_write_at_its_end() -> None:
    async def test(broker: Broker, peer: Peer, wire: Wire) -> None:
        peer.data_received(request(1) + request(2))
        assert wire.writes == [encode_response(1) + encode_response(2)]
        await asyncio.sleep(0)
        assert len(wire.writes) == 1

    with_a_peer(test)


def test_what_the_end_of_a_read_brings_leaves_with_it() -> None:
    async def test(broker: Broker, peer: Peer, wire: Wire) -> None:
        peer.data_received(request(1) + request(2, Broker.LATER))
        assert broker.notes == ["begin", "request", "request", "end"]
        assert wire.writes == [encode_response(1) + encode_response(2)]

    with_a_peer(test)


def test_large_answers_are_written_without_being_joined() -> None:
    """Copying a megabyte costs more than a list of two buffers."""

    async def test(broker: Broker, peer: Peer, wire: Wire) -> None:
        head, body = b"head", bytes(70_000)
        peer.send(head)
        peer.send(body)
        await asyncio.sleep(0)
        (lines,) = wire.lines
        assert lines[0] is head
        assert lines[1] is body
        assert wire.writes == [head + body]

    with_a_peer(test)


def test_what_was_sent_before_a_read_leaves_with_its_answers() -> None:
    async def test(broker: Broker, peer: Peer, wire: Wire) -> None:
        peer.send(b"a")
        peer.send(b"b")
        assert wire.writes == []
        peer.data_received(request(1))
        assert wire.writes == [b"ab" + encode_response(1)]
        await asyncio.sleep(0)
        assert len(wire.writes) == 1

    with_a_peer(test)


def test_a_read_that_is_not_a_protocol_ends_as_well() -> None:
    """Else everything stored later would wait for an end that never comes."""

    async def test(broker: Broker, peer: Peer, wire: Wire) -> None:
        peer._transport = None
        peer.data_received(b"\xff" * 8)
        assert broker.notes == ["begin", "end"]

    with_a_peer(test)
