"""Encrypted connections over real sockets: which peers are trusted, which are refused, and with which errors."""

import asyncio
import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.certificates import Authority, Identity, new_authority
from tests.net.call_each import call_each
from tests.net.echo_server import EchoServer

from lanemq.clock import SystemClock
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.model.errors import ConnectionLost, InvalidOption, TlsFailed
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.net.calling.blocking import BlockingConnection, DuplexConnection, connect
from lanemq.net.calling.connection import open_connection
from lanemq.net.calling.tls_socket import TlsSocket
from lanemq.net.fresh_file import FreshFile
from lanemq.net.security import Security, TlsOptions, client_context
from lanemq.net.serving.server import ConnectionLimits
from lanemq.net.serving.server_tls import ServerTls, TlsDetector, TlsMode
from lanemq.wire.command import Command

ECHO = EchoServer.ECHO
Ask = Callable[..., bytes]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def here(authority: Authority) -> Identity:
    return authority.issue("here")


@pytest.fixture(scope="module")
def server(here: Identity) -> Iterator[EchoServer]:
    with serving(ServerTls(here.cert, here.key)) as running:
        yield running


LARGE = bytes(range(256)) * 2_000
"""The body of a frame that is received into memory of its own."""


def serving(tls: ServerTls, loop: asyncio.AbstractEventLoop | None = None, **limits: int) -> EchoServer:
    return EchoServer(loop, tls_detector=TlsDetector(tls, SystemClock()), **limits)


def trusting(authority: Authority, shown: Identity | None = None, **more: bool) -> Security:
    cert, key = (shown.cert, shown.key) if shown is not None else (None, None)
    return Security(TlsOptions(authority.ca, cert, key, **more))


def blocking(address: Address, security: Security, body: bytes = b"hello") -> bytes:
    with BlockingConnection(address, security=security) as connection:
        return connection.request(Command(ECHO, 0, body=body)).body


def duplex(address: Address, security: Security, body: bytes = b"hello") -> bytes:
    answers: list[Command | None] = []
    answered = threading.Event()
    connection = DuplexConnection(address, on_replies=call_each, on_lost=lambda _: None, security=security)
    connection.post(Command(ECHO, 0, body=body), lambda reply, _: (answers.append(reply), answered.set()))
    assert answered.wait(10)
    connection.close()
    if answers[0] is None:
        raise ConnectionLost("lost")
    return answers[0].body


def on_a_loop(address: Address, security: Security, body: bytes = b"hello") -> bytes:
    async def ask() -> bytes:
        over = asyncio.Event()
        connection = await open_connection(address, security=security, on_lost=lambda _: over.set())
        try:
            return (await connection.request(Command(ECHO, 0, body=body), 10)).body
        finally:
            connection.close()
            await over.wait()

    return asyncio.run(ask())


ways = pytest.mark.parametrize("ask", [blocking, duplex, on_a_loop])
both = pytest.mark.parametrize("ask", [blocking, on_a_loop])


@ways
def test_a_trusted_broker_is_spoken_to_encrypted(server: EchoServer, authority: Authority, ask: Ask) -> None:
    assert ask(server.address, trusting(authority)) == b"hello"
    assert ask(server.address, trusting(authority), LARGE) == LARGE


@ways
def test_a_certificate_of_another_authority_is_refused(server: EchoServer, stranger: Authority, ask: Ask) -> None:
    with pytest.raises(TlsFailed, match=r"not signed by an authority in .*stranger.pem: tls ca must name"):
        ask(server.address, trusting(stranger))


@both
def test_the_systems_authorities_do_not_know_ours(server: EchoServer, ask: Ask) -> None:
    with pytest.raises(TlsFailed, match="not signed by the system's authorities"):
        ask(server.address, Security(TlsOptions()))


@both
def test_an_expired_certificate_is_refused(authority: Authority, ask: Ask) -> None:
    old = authority.issue("old", days=-1)
    with serving(ServerTls(old.cert, old.key)) as running, pytest.raises(TlsFailed, match="has expired: renew it"):
        ask(running.address, trusting(authority))


@pytest.fixture(scope="module")
def elsewhere(authority: Authority) -> Iterator[EchoServer]:
    """A broker whose certificate is for another host."""
    other = authority.issue("elsewhere", ("DNS:broker.example.com",))
    with serving(ServerTls(other.cert, other.key)) as running:
        yield running


@both
def test_a_certificate_for_another_host_is_refused(elsewhere: EchoServer, authority: Authority, ask: Ask) -> None:
    with pytest.raises(TlsFailed, match=re.escape("its certificate is not for 127.0.0.1: use an address")):
        ask(elsewhere.address, trusting(authority))


@both
def test_the_host_name_may_be_left_unchecked(elsewhere: EchoServer, authority: Authority, ask: Ask) -> None:
    assert ask(elsewhere.address, trusting(authority, verify_host=False)) == b"hello"


def test_without_host_names_the_authority_is_still_checked(elsewhere: EchoServer, stranger: Authority) -> None:
    with pytest.raises(TlsFailed, match="not signed by"):
        blocking(elsewhere.address, trusting(stranger, verify_host=False))


@both
def test_skipping_all_checks_accepts_anybody(elsewhere: EchoServer, ask: Ask) -> None:
    assert ask(elsewhere.address, Security(TlsOptions(insecure_skip_verify=True))) == b"hello"


@pytest.fixture(scope="module")
def asking(here: Identity, authority: Authority) -> Iterator[EchoServer]:
    """A broker that wants certificates of its clients."""
    with serving(ServerTls(here.cert, here.key, authority.ca)) as running:
        yield running


@ways
def test_a_client_with_a_known_certificate_comes_in(asking: EchoServer, authority: Authority, ask: Ask) -> None:
    assert ask(asking.address, trusting(authority, authority.issue("client"))) == b"hello"


@ways
def test_a_client_without_a_certificate_is_kept_out(asking: EchoServer, authority: Authority, ask: Ask) -> None:
    before = len(asking.seen)
    with pytest.raises((TlsFailed, ConnectionLost)):
        ask(asking.address, trusting(authority))
    assert len(asking.seen) == before


def test_the_error_of_a_client_without_a_certificate_names_the_options(
    asking: EchoServer, authority: Authority
) -> None:
    with pytest.raises((TlsFailed, ConnectionLost), match=r"wants? a certificate of ours.* give tls cert and tls key"):
        blocking(asking.address, trusting(authority))


def test_a_strangers_certificate_is_refused(asking: EchoServer, authority: Authority, stranger: Authority) -> None:
    with pytest.raises((TlsFailed, ConnectionLost), match="--tls-client-ca"):
        blocking(asking.address, trusting(authority, stranger.issue("client")))


@ways
def test_a_plain_client_gets_nothing_from_an_enforcing_broker(server: EchoServer, ask: Ask) -> None:
    before = len(server.seen)
    with pytest.raises(ConnectionLost):
        ask(server.address, Security())
    assert len(server.seen) == before


def test_the_error_of_a_plain_client_suggests_tls(server: EchoServer) -> None:
    with pytest.raises(ConnectionLost, match=r"or takes nothing but TLS \(then connect with tls\)"):
        blocking(server.address, Security())


@ways
def test_a_permissive_broker_serves_both_on_one_port(here: Identity, authority: Authority, ask: Ask) -> None:
    with serving(ServerTls(here.cert, here.key, mode=TlsMode.PERMISSIVE)) as running:
        assert ask(running.address, Security()) == b"hello"
        assert ask(running.address, trusting(authority)) == b"hello"


@both
def test_a_plain_broker_is_recognised_by_an_encrypting_client(authority: Authority, ask: Ask) -> None:
    with EchoServer() as plain, pytest.raises(TlsFailed, match="It may be a plain one"):
        ask(plain.address, trusting(authority))


@ways
def test_the_faster_event_loop_serves_the_same(here: Identity, authority: Authority, ask: Ask) -> None:
    uvloop = pytest.importorskip("uvloop", reason="the faster event loop is not installed")
    permissive = ServerTls(here.cert, here.key, mode=TlsMode.PERMISSIVE)
    with serving(permissive, uvloop.new_event_loop()) as running:
        assert ask(running.address, trusting(authority), LARGE) == LARGE
        assert ask(running.address, Security()) == b"hello"


def test_a_stop_does_not_wait_for_those_who_say_nothing_or_only_begin_a_handshake(here: Identity) -> None:
    """Connections whose first byte never comes are known only to the TLS detector."""
    with contextlib.ExitStack() as silent:
        with serving(ServerTls(here.cert, here.key)) as running:
            for begun in (b"", b"\x16", BEGUN):
                silent.enter_context(contextlib.closing(connect(running.address))).sendall(begun)
            until_joining(running, 3)
            begin = time.monotonic()
        assert time.monotonic() - begin < ConnectionLimits().first_request / 2


BEGUN = b"\x16\x03\x01\x02"
"""The first bytes of a handshake."""
SILENCES = pytest.mark.parametrize("begun", [b"", BEGUN], ids=["silent", "begun"])


def until_joining(running: EchoServer, count: int) -> None:
    """Wait until so many connections are accepted and have no handshake yet."""
    assert running.server is not None
    deadline = time.monotonic() + 60
    while running.server.joining.count != count:
        assert time.monotonic() < deadline, f"{running.server.joining.count} connections are joining"


def never_asked(running: EchoServer) -> int:
    assert running.server is not None
    return running.server.refusals.counts[RefusalReason.NO_REQUEST]


@SILENCES
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_without_a_handshake_is_closed_after_the_time_for_a_first_request_and_counted(
    here: Identity, begun: bytes, loop: str
) -> None:
    made = pytest.importorskip(loop).new_event_loop()
    with serving(ServerTls(here.cert, here.key), made, limits=ConnectionLimits(first_request=0.05)) as running:
        client, begin = connect(running.address), time.monotonic()
        client.sendall(begun)
        client.settimeout(20)
        with contextlib.closing(client):
            assert client.recv(1) == b""
        assert time.monotonic() - begin < 4, "a limit of its own would be longer"
        until_joining(running, 0)
        assert never_asked(running) == 1


@SILENCES
def test_control_with_a_long_time_for_a_first_request_such_a_client_stays_and_is_no_refusal(
    here: Identity, begun: bytes
) -> None:
    """A limit of its own, such as five seconds for a handshake, would end the second."""
    with serving(ServerTls(here.cert, here.key), limits=ConnectionLimits(first_request=60)) as running:
        with contextlib.closing(connect(running.address)) as client:
            client.sendall(begun)
            until_joining(running, 1)
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
        until_joining(running, 0)
        assert never_asked(running) == 0


def test_a_finished_handshake_is_counted_as_a_connection_once(server: EchoServer, authority: Authority) -> None:
    with BlockingConnection(server.address, security=trusting(authority)) as connection:
        connection.request(Command(ECHO, 0))
        assert server.server is not None
        assert (len(server.server.peers), server.server.joining.count) == (1, 0)


def test_connections_that_never_finish_their_handshake_are_limited(here: Identity, authority: Authority) -> None:
    with (
        contextlib.ExitStack() as silent,
        serving(ServerTls(here.cert, here.key), limits=ConnectionLimits(total=2)) as running,
    ):
        for _ in range(2):
            silent.enter_context(contextlib.closing(connect(running.address)))
        third = silent.enter_context(contextlib.closing(connect(running.address)))
        third.settimeout(10)
        assert third.recv(1) == b""


class _Bare:
    """One TLS connection, served by a function on a thread of its own; gone when the test is over."""

    def __init__(self, tls: ServerTls, serve: Callable[[ssl.SSLSocket], object]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listener.getsockname()[:2])
        self._thread = threading.Thread(target=self._run, args=(tls.context(), serve), daemon=True)

    def _run(self, context: ssl.SSLContext, serve: Callable[[ssl.SSLSocket], object]) -> None:
        plain, _ = self._listener.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            serve(connection)

    def __enter__(self) -> "_Bare":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        self._listener.close()


def test_what_is_sent_does_not_wait_for_what_is_received(here: Identity, authority: Authority) -> None:
    """The other side says everything before it listens. A sender that locked the session while it waits for room
    would keep the reader out, and both would wait indefinitely."""
    most = 32 * 1024 * 1024

    def talk_first(connection: ssl.SSLSocket) -> None:
        connection.sendall(bytes(most))
        left = most
        while left:
            left -= len(connection.recv(min(left, 1024 * 1024)))

    with _Bare(ServerTls(here.cert, here.key), talk_first) as bare:
        plain = connect(bare.address)
        plain.settimeout(None)
        tls = trusting(authority).tls
        assert tls is not None
        wire = TlsSocket(plain, client_context(tls), bare.address.host)
        sender = threading.Thread(target=wire.sendall, args=(bytes(most),), daemon=True)
        sender.start()
        received, space = 0, memoryview(bytearray(64 * 1024))
        while received < most and (count := wire.recv_into(space)):
            received += count
        sender.join(20)
        wire.close()
    assert received == most


def test_a_close_on_a_loop_does_not_wait_for_the_peers_farewell(here: Identity, authority: Authority) -> None:
    """The caller may end the loop right after `close`, and would leave an open socket behind."""
    may_go = threading.Event()

    async def come_and_go(address: Address) -> None:
        over = asyncio.Event()
        connection = await open_connection(address, security=trusting(authority), on_lost=lambda _: over.set())
        connection.close()
        async with asyncio.timeout(15):
            await over.wait()

    with _Bare(ServerTls(here.cert, here.key), lambda _: may_go.wait(20)) as bare:
        try:
            asyncio.run(come_and_go(bare.address))
        finally:
            may_go.set()


def test_writers_and_the_reader_do_not_wait_for_each_other(server: EchoServer, authority: Authority) -> None:
    """More than the sockets hold in both directions: a session that stays locked during a wait would stop."""
    most, size = 60, 256 * 1024
    arrived, done = [0], threading.Event()

    def replied(reply: Command | None, _: object) -> None:
        arrived[0] += reply is not None and len(reply.body) == size
        if arrived[0] == most:
            done.set()

    connection = DuplexConnection(
        server.address, on_replies=call_each, on_lost=lambda _: None, security=trusting(authority)
    )
    writers = [
        threading.Thread(
            target=lambda: [connection.post(Command(ECHO, 0, body=bytes(size)), replied) for _ in range(most // 3)]
        )
        for _ in range(3)
    ]
    for writer in writers:
        writer.start()
    assert done.wait(60)
    for writer in writers:
        writer.join()
    connection.close()


def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    clock = _Hand()
    _copy(stranger.issue("first"), cert, key)
    with EchoServer(tls_detector=TlsDetector(ServerTls(cert, key), clock)) as running:
        with pytest.raises(TlsFailed):
            blocking(running.address, trusting(authority))
        _copy(authority.issue("second"), cert, key)
        clock.at = Millis(5_000)
        assert blocking(running.address, trusting(authority)) == b"hello"


def test_a_file_that_became_unusable_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "file", _Hand()
    file.write_text("1")

    def read() -> int:
        if file.read_text() == "bad":
            raise InvalidOption(f"{file}: is bad")
        return int(file.read_text())

    fresh = FreshFile((file,), read, clock)
    file.write_text("bad")
    clock.at = Millis(2_000)
    assert fresh.value() == 1
    assert "what was read before stays in force" in caplog.text
    file.write_text("22")
    clock.at = Millis(4_000)
    assert fresh.value() == 22


def test_a_file_is_read_at_once_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "file", _Hand()
    file.write_text("1")
    fresh = FreshFile((file,), lambda: int(file.read_text()), clock)
    file.write_text("2")
    assert fresh.value() == 1, "a second has not passed"
    fresh.reload()
    assert fresh.value() == 2
    assert "read again, as asked" in caplog.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ca": "missing.pem"}, "tls ca missing.pem: cannot be read"),
        ({"ca": __file__}, "holds no certificate"),
        ({"cert": "missing.pem"}, "tls cert missing.pem: cannot be read"),
        ({"cert": __file__}, "no certificate with its private key"),
        ({"key": "key.pem"}, "there is no tls cert"),
    ],
)
def test_unusable_files_are_named_before_anything_connects(options: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidOption, match=expected):
        TlsOptions(**options)


def test_a_client_certificate_cannot_be_wanted_of_plain_clients(here: Identity, authority: Authority) -> None:
    with pytest.raises(InvalidOption, match="use the mode enforcing"):
        replace(ServerTls(here.cert, here.key, authority.ca), mode=TlsMode.PERMISSIVE)


def test_a_peer_that_answers_nothing_is_given_up(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(*mute.getsockname()[:2])
        with pytest.raises(TlsFailed, match="no answer in time"):
            BlockingConnection(address, timeout=0.2, security=trusting(authority))


class _Hand(SystemClock):
    """A clock that is set by hand."""

    at = Millis(0)

    def now(self) -> Millis:
        return self.at


def _copy(identity: Identity, cert: Path, key: Path) -> None:
    cert.write_bytes(identity.cert.read_bytes())
    key.write_bytes(identity.key.read_bytes())
