"""Writing to a peer that takes nothing: it ends, and those who may not wait do not."""

import _thread
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.net.call_each import call_each

from lanemq.model.errors import ConnectionLost, LaneError
from lanemq.net.address import Address
from lanemq.net.calling import blocking
from lanemq.net.calling.blocking import REPLIES_TOGETHER, BlockingConnection, DuplexConnection
from lanemq.wire.command import RESPONSE_BIT, Command, FrameDecoder, encode_command

MUCH = bytes(32 * 1024 * 1024)
"""More than the buffers of a connection hold."""


@pytest.fixture
def deaf() -> Iterator[Address]:
    """The operating system accepts connections, and no program reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Address(*listening.getsockname())


class Waiting:
    """Records the outcome of a request."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.errors: list[LaneError | None] = []

    def replied(self, reply: Command | None, error: LaneError | None) -> None:
        self.errors.append(error)


def test_a_peer_that_takes_nothing_is_left(deaf: Address) -> None:
    waiting = Waiting()
    link = DuplexConnection(deaf, on_replies=call_each, on_lost=lambda _: waiting.lost.set(), write_timeout=0.05)
    link.post(Command(1, 0, body=MUCH), waiting.replied)
    assert waiting.lost.wait(10)
    link.close()
    assert [type(error) for error in waiting.errors] == [ConnectionLost]


def test_a_heartbeat_does_not_wait_for_the_peer_either(deaf: Address) -> None:
    link = DuplexConnection(deaf, on_replies=call_each, on_lost=lambda _: None, write_timeout=60)
    careful = threading.Thread(target=lambda: link.post_oneway(Command(2, 0, body=MUCH), aside=True), daemon=True)
    careful.start()
    careful.join(30)
    assert not careful.is_alive()
    link.close()


def test_a_caller_that_may_not_block_leaves_the_write_to_another_thread(deaf: Address) -> None:
    waiting = Waiting()
    link = DuplexConnection(deaf, on_replies=call_each, on_lost=lambda _: waiting.lost.set(), write_timeout=60)
    link.line_up(Command(1, 0, body=MUCH), waiting.replied)
    careful = threading.Thread(target=lambda: (link.flush_aside(), link.post_oneway(Command(2, 0), aside=True)))
    careful.start()
    careful.join(10)
    assert not careful.is_alive()
    assert link.is_open, "the write has not timed out yet"
    link.close()
    assert waiting.lost.is_set()
    assert [type(error) for error in waiting.errors] == [ConnectionLost]


def test_a_queued_request_on_a_lost_connection_ends_with_an_error_even_if_no_thread_waits(deaf: Address) -> None:
    waiting, answered = Waiting(), threading.Event()
    link = DuplexConnection(deaf, on_replies=call_each, on_lost=lambda _: waiting.lost.set())
    link.close()
    link.line_up(Command(1, 0), lambda reply, error: answered.set())
    link.flush_aside()
    assert answered.wait(10)


class Recorded:
    """A socket, and the sizes of what is written to it."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self.writes: list[int] = []

    def sendall(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._inner.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize(("together", "writes"), [(REPLIES_TOGETHER, 1), (2, 2), (1, 3)])
def test_requests_that_the_replies_of_one_read_cause_leave_in_one_write(
    monkeypatch: pytest.MonkeyPatch, together: int, writes: int
) -> None:
    """Replies come together, so whoever gets them sends what follows from all of them at once."""
    monkeypatch.setattr(blocking, "REPLIES_TOGETHER", together)

    def send_next(replies: Sequence[tuple[int, Command | None, LaneError | None]]) -> None:
        for number, reply, _ in replies:
            if reply is not None and number < 3:
                link.line_up(Command(2, 0), number + 3)
        link.flush()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address(*listening.getsockname())
        link: DuplexConnection[int] = DuplexConnection(address, on_replies=send_next, on_lost=lambda _: None)
        peer, _ = listening.accept()
        opaques = [link.post(Command(1, 0), number) for number in range(3)]
        recorded: Any = Recorded(link._socket)  # type: ignore[arg-type]
        link._socket = recorded
        peer.sendall(b"".join(encode_command(Command(0, opaque, RESPONSE_BIT)) for opaque in opaques))
        decoder, arrived = FrameDecoder(), 0
        peer.settimeout(10)
        while arrived < 6:
            arrived += len(decoder.feed(peer.recv(1 << 20)))
        peer.close()
        link.close()
    assert len(recorded.writes) == writes


class Interrupted(Exception):
    """What a signal handler raises."""


@pytest.fixture
def _interrupted_soon() -> Iterator[None]:
    """Raises in the main thread after a moment, in the middle of its write."""

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_interrupted_soon")
def test_nothing_follows_the_part_of_a_frame_that_an_interrupted_write_has_written() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        waiting = Waiting()
        address = Address(*listening.getsockname())
        link = DuplexConnection(address, on_replies=call_each, on_lost=lambda _: waiting.lost.set(), write_timeout=60)
        peer, _ = listening.accept()
        with pytest.raises(Interrupted):
            link.post(Command(1, 0, body=MUCH), waiting.replied)
        link.post(Command(2, 0, body=b"next"), waiting.replied)
        received = 0
        with peer:
            peer.settimeout(30)
            while count := len(found := peer.recv(1 << 20)):
                received += count
                assert b"next" not in found, "the peer takes it for a part of the first body"
        assert 0 < received < len(MUCH)
        assert waiting.lost.wait(30)
        link.close()
        assert [type(error) for error in waiting.errors] == [ConnectionLost] * 2


@pytest.mark.usefixtures("_interrupted_soon")
def test_an_interrupted_request_closes_its_connection(deaf: Address) -> None:
    connection = BlockingConnection(deaf)
    with pytest.raises(Interrupted):
        connection.request(Command(1, 0, body=MUCH), timeout=60)
    with pytest.raises(ConnectionLost):
        connection.request(Command(2, 0), timeout=60)


@pytest.mark.usefixtures("_interrupted_soon")
def test_an_exception_behind_the_lock_of_writers_does_not_leave_it_locked(
    deaf: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the lock is taken, so its handler runs as soon as the interpreter lets it."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    link = DuplexConnection(deaf, on_replies=call_each, on_lost=lambda _: None)
    signals = map(_thread.interrupt_main, (signal.SIGALRM,))
    monkeypatch.setattr(blocking, "NOT_WAITING", map(bool, signals))
    with pytest.raises(Interrupted):
        link.post(Command(1, 0), lambda reply, error: None)
    assert not link._writing.locked()
    link.close()
