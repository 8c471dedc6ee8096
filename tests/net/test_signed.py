"""Every request of a connection with credentials is signed, whichever way it is sent."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator

import pytest
from tests.net.call_each import call_each
from tests.net.echo_server import EchoServer

from lanemq.net.calling.blocking import BlockingConnection, DuplexConnection
from lanemq.net.calling.connection import open_connection
from lanemq.net.security import Security, request_encoder
from lanemq.net.serving.peer import Peer
from lanemq.wire.command import Command, Frame, decode_command, encode_command
from lanemq.wire.signing import Credentials, is_signed

USER = Credentials("user", "the user's secret")
SIGNED = Security(credentials=USER)


class Keeping(EchoServer):
    """Keeps whole requests, and answers as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Command] = []

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        self.requests.append(decode_command(frames[0]))
        super().received(peer, frames)


@pytest.fixture
def server() -> Iterator[Keeping]:
    with Keeping() as running:
        yield running


def echo() -> Command:
    return Command(EchoServer.ECHO, 0, ext={"b": "orders"}, body=b"body")


def all_signed(server: Keeping, count: int) -> bool:
    assert len(server.requests) == count
    return all(is_signed(request, USER.secret_key) for request in server.requests)


def test_requests_of_a_blocking_connection(server: Keeping) -> None:
    with BlockingConnection(server.address, security=SIGNED) as connection:
        connection.request(echo())
        connection.request(echo())
    assert all_signed(server, 2)


def test_requests_and_oneways_of_a_shared_connection(server: Keeping) -> None:
    answered = threading.Event()
    connection = DuplexConnection(server.address, on_replies=call_each, on_lost=lambda _: None, security=SIGNED)
    connection.post_oneway(echo())
    connection.post(echo(), lambda *_: answered.set())
    assert answered.wait(10)
    connection.close()
    assert all_signed(server, 2)


def test_requests_and_oneways_on_a_loop(server: Keeping) -> None:
    async def ask() -> None:
        over = asyncio.Event()
        connection = await open_connection(server.address, security=SIGNED, on_lost=lambda _: over.set())
        connection.post_oneway(echo())
        await connection.request(echo(), 10)
        connection.close()
        await over.wait()

    asyncio.run(ask())
    assert all_signed(server, 2)


def test_without_credentials_nothing_is_added(server: Keeping) -> None:
    """Not even a call: the function that writes frames is the one it always was."""
    assert request_encoder(Security()) is encode_command
    with BlockingConnection(server.address) as connection:
        connection.request(echo())
    assert server.requests[0].ext == {"b": "orders"}
