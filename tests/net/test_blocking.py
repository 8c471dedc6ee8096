"""Blocking connections: one question at a time, and many at once from many threads."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from tests.net.call_each import call_each
from tests.net.echo_server import EchoServer

from lanemq.model.errors import ConnectFailed, ConnectionLost, LaneError, RemoteProtocolError, RequestTimedOut
from lanemq.net.address import Address
from lanemq.net.calling.blocking import BlockingConnection, DuplexConnection
from lanemq.wire.command import Command


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as echo:
        yield echo


class Replies:
    """Collects answers by the body they came with."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.futures: dict[int, Future[bytes]] = {}

    def expect(self, number: int) -> "Future[bytes]":
        return self.futures.setdefault(number, Future())

    def take(self, number: int, reply: Command | None, error: LaneError | None) -> None:
        if reply is not None:
            self.expect(number).set_result(reply.body)
        else:
            self.expect(number).set_exception(error)


def test_answer_is_found_among_pushes_and_late_answers(server: EchoServer) -> None:
    with BlockingConnection(server.address) as link:
        assert link.request(Command(EchoServer.NOISY, 0, body=b"one")).body == b"one"
        assert link.request(Command(EchoServer.ECHO, 0, body=b"two")).body == b"two"


def test_a_refused_connection_names_the_address_and_the_remedy() -> None:
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1: .* is a broker running there\?"):
        BlockingConnection(Address("127.0.0.1", 1))


def test_silence_ends_with_a_time_out_and_a_closed_connection(server: EchoServer) -> None:
    link = BlockingConnection(server.address)
    with pytest.raises(RequestTimedOut, match=r"in 0\.05 s"):
        link.request(Command(EchoServer.SILENT, 0), timeout=0.05)
    with pytest.raises(ConnectionLost):
        link.request(Command(EchoServer.ECHO, 0))


@pytest.mark.parametrize("code", [EchoServer.HANG_UP])
def test_connection_that_ends_instead_of_answering_is_lost(server: EchoServer, code: int) -> None:
    with BlockingConnection(server.address) as link, pytest.raises(ConnectionLost):
        link.request(Command(code, 0))


def test_nonsense_closes_the_connection(server: EchoServer) -> None:
    link = BlockingConnection(server.address)
    with pytest.raises(RemoteProtocolError):
        link.request(Command(EchoServer.NONSENSE, 0))
    with pytest.raises(ConnectionLost):
        link.request(Command(EchoServer.ECHO, 0))


def test_an_http_server_is_named_by_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as http:
        link = BlockingConnection(Address(*http.getsockname()))
        peer, _ = http.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(
                RemoteProtocolError, match=f"^{link.address} is no broker: it answers as an HTTP server"
            ):
                link.request(Command(EchoServer.ECHO, 0))


def test_many_threads_each_get_their_own_answer(server: EchoServer) -> None:
    replies = Replies()
    link = DuplexConnection(server.address, on_replies=call_each, on_lost=lambda _: replies.lost.set())

    def ask(start: int) -> None:
        for number in range(start, start + 100):
            replies.expect(number)
            link.post(
                Command(EchoServer.ECHO, 0, body=b"%d" % number),
                lambda reply, error, n=number: replies.take(n, reply, error),
            )

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [replies.expect(n).result(30) for n in range(400)] == [b"%d" % n for n in range(400)]
    link.close()
    assert replies.lost.wait(30)


def test_requests_leave_in_the_order_of_lining_up(server: EchoServer) -> None:
    """Even if another thread does the writing."""
    replies = Replies()
    link = DuplexConnection(server.address, on_replies=call_each, on_lost=lambda _: None)
    for number in range(50):
        replies.expect(number)
        link.line_up(
            Command(EchoServer.ECHO, 0, body=b"%d" % number),
            lambda reply, error, n=number: replies.take(n, reply, error),
        )
    link.flush()
    replies.expect(49).result(30)
    link.close()
    assert server.seen == [b"%d" % n for n in range(50)]


def test_lost_connection_answers_everything_that_waits_once(server: EchoServer) -> None:
    replies = Replies()
    link = DuplexConnection(server.address, on_replies=call_each, on_lost=lambda _: replies.lost.set())
    for number in range(3):
        link.post(Command(EchoServer.SILENT, 0), lambda reply, error, n=number: replies.take(n, reply, error))
    link.post_oneway(Command(EchoServer.HANG_UP, 0))
    assert replies.lost.wait(30)
    for number in range(3):
        assert isinstance(replies.expect(number).exception(30), ConnectionLost)
    link.post(Command(EchoServer.ECHO, 0), lambda reply, error: replies.take(9, reply, error))
    assert isinstance(replies.expect(9).exception(30), ConnectionLost)
    link.close()


def test_forgotten_request_is_not_answered(server: EchoServer) -> None:
    replies = Replies()
    link = DuplexConnection(server.address, on_replies=call_each, on_lost=lambda _: replies.lost.set())
    opaque = link.post(Command(EchoServer.SILENT, 0), lambda reply, error: replies.take(1, reply, error))
    assert link.forget(opaque)
    assert not link.forget(opaque)
    link.close()
    assert replies.futures == {}
