"""Connections are limited in number, and must show a purpose."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from tests.net.echo_server import EchoServer

from lanemq.core.brokering.refusals import RefusalReason
from lanemq.net.address import origin_of
from lanemq.net.serving import server
from lanemq.net.serving.descriptors import MIN_CONNECTIONS, connections_within, open_files_limit, raise_soft_limit
from lanemq.net.serving.server import ConnectionLimits
from lanemq.wire.command import Command, FrameDecoder, encode_command

PATIENT = 60.0


@pytest.fixture
def clients() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def connect(clients: contextlib.ExitStack, echo: EchoServer) -> socket.socket:
    return clients.enter_context(contextlib.closing(socket.create_connection(echo.address, PATIENT)))


def asks(client: socket.socket) -> bool:
    """Whether a request is answered; False if the server closes the connection."""
    decoder = FrameDecoder()
    with contextlib.suppress(ConnectionError):
        client.sendall(encode_command(Command(EchoServer.ECHO, 1)))
        while data := client.recv(1000):
            if decoder.feed(data):
                return True
    return False


def close_idle(echo: EchoServer, seconds: float = PATIENT) -> None:
    assert echo.server is not None
    echo.call(lambda: echo.server.close_idle(seconds))  # type: ignore[union-attr]


def counted(echo: EchoServer, reason: RefusalReason) -> int:
    assert echo.server is not None
    return echo.server.refusals.counts[reason]


def test_one_address_gets_no_more_than_its_share_and_gets_it_back(clients: contextlib.ExitStack) -> None:
    with EchoServer(limits=ConnectionLimits(total=10, per_address=2)) as echo:
        first, second = connect(clients, echo), connect(clients, echo)
        assert asks(first)
        assert asks(second)
        assert not asks(connect(clients, echo))
        assert counted(echo, RefusalReason.CONNECTIONS_PER_ADDRESS) == 1
        first.close()
        deadline = time.monotonic() + PATIENT
        while not asks(connect(clients, echo)):
            assert time.monotonic() < deadline, "a closed connection is not counted any more"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("not an address:", "not an address:"),
    ],
)
def test_the_origin_of_an_ipv6_address_is_its_network(host: str, origin: str) -> None:
    assert origin_of(host) == origin


def test_connections_are_counted_by_origin(clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by address, as the control shows, a machine with many addresses has as many connections as it wants."""
    for origins, answered in (((lambda _: "network"), [True, True, False]), ((lambda host: host), [True] * 3)):
        monkeypatch.setattr(server, "origin_of", origins)
        with EchoServer(limits=ConnectionLimits(total=10, per_address=2)) as echo:
            sources = [(f"127.0.0.{number}", 0) for number in (2, 3, 4)]
            each = [clients.enter_context(socket.create_connection(echo.address, PATIENT, one)) for one in sources]
            assert [asks(client) for client in each] == answered


def test_control_without_the_share_one_address_takes_all_connections(
    clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionLimits, "of_one_address", property(lambda limits: limits.total))
    with EchoServer(limits=ConnectionLimits(total=3, per_address=2)) as echo:
        assert all(asks(connect(clients, echo)) for _ in range(3))
        assert not asks(connect(clients, echo))
        assert counted(echo, RefusalReason.CONNECTIONS_PER_ADDRESS) == 0


@pytest.mark.parametrize("signed", [False, True])
def test_a_connection_without_a_first_request_is_closed_and_others_stay(
    clients: contextlib.ExitStack, signed: bool
) -> None:
    """Where requests must be signed, one without a signature is not enough."""
    with EchoServer(limits=ConnectionLimits(first_request=0.001, signed=signed)) as echo:
        silent, slow, useful = (connect(clients, echo) for _ in range(3))
        slow.sendall(b"\x00\x00\x01")
        assert asks(useful)
        time.sleep(0.01)
        close_idle(echo)
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""
        assert asks(useful) is not signed
        assert counted(echo, RefusalReason.NO_REQUEST) == (3 if signed else 2)


def test_control_without_the_deadline_silent_connections_stay(clients: contextlib.ExitStack) -> None:
    with EchoServer(limits=ConnectionLimits(first_request=PATIENT)) as echo:
        silent = connect(clients, echo)
        assert asks(connect(clients, echo)), "the silent connection is accepted by then"
        time.sleep(0.01)
        close_idle(echo)
        silent.settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent.recv(1)
        assert counted(echo, RefusalReason.NO_REQUEST) == 0


def all_silent_for_a_minute(echo: EchoServer) -> None:
    assert echo.server is not None
    for peer in echo.server.peers:
        peer.last_seen -= 60


def test_the_bytes_of_an_unfinished_frame_are_no_sign_of_life(clients: contextlib.ExitStack) -> None:
    with EchoServer() as echo:
        slow, useful = connect(clients, echo), connect(clients, echo)
        assert asks(slow)
        echo.call(lambda: all_silent_for_a_minute(echo))
        assert asks(useful)
        slow.sendall(b"\x00\x00\x01\x00")
        close_idle(echo, 30)
        assert slow.recv(1) == b""


def test_files_come_before_connections() -> None:
    assert connections_within(20_000, wanted=10_000, files=400) == 10_000
    assert connections_within(1_024, wanted=10_000, files=400) == 624
    assert connections_within(256, wanted=10_000, files=400) == MIN_CONNECTIONS
    assert connections_within(20_000, wanted=2, files=400) == 2


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert raise_soft_limit() == open_files_limit() >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
