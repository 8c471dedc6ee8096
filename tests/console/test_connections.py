"""Connections that do nothing are closed, and keep nobody from a page."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.console.window import serving

from lanemq.console import connections
from lanemq.console.settings import ConsoleSettings
from lanemq.net.serving.server import ConnectionLimits

NOWHERE = ConsoleSettings("127.0.0.1:1", every=60)
WAIT = 20
ASK = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Visits:
    """Raw connections to one console."""

    def __init__(self, base: str, closing: contextlib.ExitStack) -> None:
        self._port = urlsplit(base).port
        self._closing = closing

    def open(self, sent: bytes = b"", *, source: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port or 0), timeout=WAIT, source_address=(source, 0))
        self._closing.enter_context(made)
        made.sendall(sent)
        return made


@contextlib.contextmanager
def visits(limits: ConnectionLimits) -> Iterator[Visits]:
    with serving(NOWHERE, limits) as base, contextlib.ExitStack() as closing:
        yield Visits(base, closing)


def until_closed(connection: socket.socket) -> bytes:
    """What arrives before the console closes the connection; a time-out if it does not."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def stays_open(connection: socket.socket) -> bool:
    """Whether it is open now, after everything that has arrived."""
    connection.settimeout(0.05)
    try:
        until_closed(connection)
    except TimeoutError:
        return True
    return False


def drips_until_refused(connection: socket.socket) -> bool:
    """Sends a byte now and then, and reads nothing; whether the console closes the connection."""
    for _ in range(WAIT * 50):
        try:
            connection.sendall(b"G")
        except ConnectionError:
            return True
        time.sleep(0.02)
    return False


def is_served(connection: socket.socket) -> bool:
    connection.sendall(ASK)
    answer = b""
    while not answer.endswith(b"}"):
        answer += (part := connection.recv(65536))
        if not part:
            return False
    return answer.startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def impatient() -> Iterator[Visits]:
    """A console that waits a tenth of a second for a request."""
    with visits(ConnectionLimits(64, first_request=0.1)) as found:
        yield found


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nhost: localhost\r\n"])
def test_a_connection_without_a_whole_request_is_closed(impatient: Visits, sent: bytes) -> None:
    assert until_closed(impatient.open(sent)) == b""


def test_a_connection_that_sends_a_byte_now_and_then_is_closed(impatient: Visits) -> None:
    """The limit is for the whole request."""
    assert drips_until_refused(impatient.open())


def test_a_connection_that_was_served_has_the_same_limit_for_its_next_request(impatient: Visits) -> None:
    connection = impatient.open()
    assert is_served(connection)
    assert is_served(connection)
    connection.sendall(ASK[:10])
    assert until_closed(connection) == b""


def test_a_connection_that_does_not_send_the_rest_of_its_body_is_closed(
    impatient: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.1)
    head = b"POST /sign-in HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\n"
    form = b"content-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\ntoken=a"
    assert until_closed(impatient.open(head + form)) == b""


def test_a_client_that_does_not_read_its_answers_is_cut_off(impatient: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.1)
    assert drips_until_refused(impatient.open(b"GET /assets/console.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000))


def test_a_request_that_takes_longer_than_the_limit_is_answered(impatient: Visits) -> None:
    """Control: the limit ends when the request is there. This page waits five seconds for a snapshot at most."""
    stream = impatient.open(b"GET /live/topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert stream.recv(100).startswith(b"HTTP/1.1 200")
    until_closed(impatient.open())  # longer than the limit
    assert stays_open(stream)


def test_silent_connections_make_room_for_others_the_oldest_first() -> None:
    with visits(ConnectionLimits(6, per_address=3, first_request=60)) as console:
        working = console.open()
        assert is_served(console.open(source="127.0.0.2"))
        working.sendall(b"GET /live/topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert working.recv(100).startswith(b"HTTP/1.1 200")
        silent = [console.open() for _ in range(2)]
        newest = console.open()
        assert until_closed(silent[0]) == b""
        assert is_served(newest)
        assert is_served(silent[1])
        for _ in range(20):
            console.open()
        assert is_served(console.open()), "also for the address that has opened them"
        assert is_served(console.open(source="127.0.0.2"))
        assert stays_open(working), "a page that is kept up to date"


def test_a_connection_beyond_the_limit_is_closed_if_all_others_work() -> None:
    with visits(ConnectionLimits(2, first_request=60)) as console:
        for _ in range(2):
            stream = console.open(b"GET /live/topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
        assert until_closed(console.open()) == b""
