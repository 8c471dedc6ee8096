"""Large frames arrive whole, among small ones, on every kind of connection and on both event loops."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop
from tests.net.call_each import call_each
from tests.net.echo_server import EchoServer

from lanemq.net.calling.blocking import BlockingConnection, DuplexConnection
from lanemq.net.calling.connection import open_connection
from lanemq.net.receiving import FIRST_READ_BYTES, READ_BYTES, received, space_for
from lanemq.wire.command import Command, Frame, FrameDecoder, pack_frame

BODIES = [random.Random(size).randbytes(size) for size in (1, 70_000, 0, 3_000_000, 12, 33_000, 200)]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_bodies_of_all_sizes_come_back_on_one_connection(loop: type) -> None:
    async def asked() -> list[bytes]:
        link = await open_connection(server.address)
        replies = await asyncio.gather(*(link.request(Command(EchoServer.ECHO, 0, body=b), 20) for b in BODIES))
        link.close()
        return [reply.body for reply in replies]

    with EchoServer(loop()) as server:
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(asked()) == BODIES
        with BlockingConnection(server.address) as link:
            assert [link.request(Command(EchoServer.ECHO, 0, body=body), 20).body for body in BODIES] == BODIES
        arrived, whole = [], threading.Event()

        def take(reply: Command | None, _: object) -> None:
            arrived.append(reply and reply.body)
            if len(arrived) == len(BODIES):
                whole.set()

        duplex = DuplexConnection(server.address, on_replies=call_each, on_lost=lambda _: whole.set())
        for body in BODIES:
            duplex.post(Command(EchoServer.ECHO, 0, body=body), take)
        assert whole.wait(20)
        duplex.close()
        assert arrived == BODIES


def test_threads_do_not_share_the_buffer_for_small_frames() -> None:
    """A thread that waits for its bytes must not receive those of another."""
    first, second = FrameDecoder(), FrameDecoder()
    frames = [pack_frame(0, b"first", b"1"), pack_frame(0, b"other", b"2")]
    space = space_for(first)
    space[: len(frames[0])] = frames[0]

    def other() -> list[Frame]:
        space_for(second)[: len(frames[1])] = frames[1]
        return received(second, len(frames[1]))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other).result() == [Frame(0, b"other", b"2")]
    assert received(first, len(frames[0])) == [Frame(0, b"first", b"1")]


def test_the_rest_of_a_large_frame_is_received_into_its_body() -> None:
    decoder, body = FrameDecoder(), bytes(range(256)) * 400
    data = pack_frame(0, b"h", body)
    decoder.feed(data[:10_000])
    assert len(space_for(decoder)) == len(data) - 10_000, "no byte of the next frame"
    space_for(decoder)[:50_000] = data[10_000:60_000]
    assert received(decoder, 50_000) == []
    space_for(decoder)[:] = data[60_000:]
    assert received(decoder, len(data) - 60_000) == [Frame(0, b"h", body)]


@pytest.mark.parametrize("in_pieces", [True, False])
def test_after_a_large_frame_of_a_server_little_is_read_of_the_next(in_pieces: bool) -> None:
    """What is read before the body has its own memory is copied; the next frame is probably large too."""
    decoder, large, small = FrameDecoder(trusted=True), pack_frame(0, b"h", bytes(100_000)), pack_frame(0, b"h", b"b")
    sizes = [len(space_for(decoder))]
    for part in (large[:500], large[500:]) if in_pieces else (large,):
        decoder.feed(part)
    sizes.append(len(space_for(decoder)))
    decoder.feed(small)
    assert [*sizes, len(space_for(decoder))] == [READ_BYTES, FIRST_READ_BYTES, READ_BYTES]


def test_a_server_reads_as_much_as_it_can_of_every_frame() -> None:
    """Its peers get memory for a frame only when a part of it is there, which must not take many reads."""
    decoder, large = FrameDecoder(), pack_frame(0, b"h", bytes(100_000))
    decoder.feed(large)
    assert len(space_for(decoder)) == READ_BYTES
