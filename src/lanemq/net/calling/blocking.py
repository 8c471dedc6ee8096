"""Connections over a blocking socket, for code without an event loop: synchronous producers, the command line, Spark
executors.

`BlockingConnection` handles one request at a time. `DuplexConnection` has a reader thread, so any number of threads may
have requests in flight; replies arrive on the reader thread.

No write blocks indefinitely: if the peer accepts no bytes for a while, the connection is closed. A thread that others
depend on does not write at all but has another thread write (`flush_aside`).
"""

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from lanemq.forking import UNDERWAY, tell_now
from lanemq.model.errors import (
    InvalidOption,
    LaneError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimedOut,
    TlsFailed,
)
from lanemq.net.address import Address
from lanemq.net.calling.link import CONNECT_SECONDS, Link, connect_failed
from lanemq.net.calling.tls_socket import TlsSocket
from lanemq.net.security import (
    OPEN,
    Security,
    TlsOptions,
    client_context,
    handshake_trouble,
)
from lanemq.wire.command import Command, decode_command
from lanemq.wire.other_protocols import OtherProtocol

WRITE_SECONDS = 3.0

REPLIES_TOGETHER = 64
"""Replies of one read that are handled together, and that are answered by one write. More: the peer waits longer for
the next request. Fewer: more steps and writes."""

W = TypeVar("W")
Wire: TypeAlias = socket.socket | TlsSocket

NOT_WAITING = (False,)
"""The arguments of `Lock.acquire` that take the lock only if it is free."""


CLIENT_THREADS: set[int] = set()
"""The idents of all `ClientThread`s that run."""

os.register_at_fork(after_in_child=CLIENT_THREADS.clear)


class ClientThread(threading.Thread):
    """A thread that callers of a client wait for. A finalizer that happens to run on it must not wait in turn."""

    def run(self) -> None:
        CLIENT_THREADS.add(threading.get_ident())
        try:
            super().run()
        finally:
            CLIENT_THREADS.discard(threading.get_ident())


def connect(address: Address, timeout: float = CONNECT_SECONDS) -> socket.socket:
    """A connected socket with Nagle's delay off, or `ConnectFailed`."""
    try:
        sock = socket.create_connection(address, timeout)
    except OSError as error:
        raise connect_failed(address, error, timeout) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def connect_with(security: Security, address: Address, timeout: float, write_timeout: float = WRITE_SECONDS) -> Wire:
    """As `connect`, encrypted if `security` asks for it; raises `TlsFailed` for a peer that cannot be trusted."""
    sock = connect(address, timeout)
    limit_writes(sock, write_timeout)
    if security.tls is None:
        return sock
    try:
        return _encrypted(sock, address, security.tls)
    except BaseException:
        sock.close()
        raise


def limit_writes(sock: socket.socket, seconds: float) -> None:
    """Makes a write fail after this long without progress. Set in the kernel, because a time-out of the socket would
    also apply to reads and cost another system call each time."""
    whole, rest = divmod(max(1, round(seconds * 1_000_000)), 1_000_000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, rest))


def _encrypted(sock: socket.socket, address: Address, tls: TlsOptions) -> TlsSocket:
    try:
        return TlsSocket(sock, client_context(tls), address.host)
    except TimeoutError as error:
        raise TlsFailed(f"no TLS connection to {address}: no answer in time; does a broker listen there?") from error
    except OSError as error:
        raise TlsFailed(f"no TLS connection to {address}: {handshake_trouble(error, address, tls)}") from error
    except InvalidOption as error:  # a certificate file that was valid when the client was created
        raise TlsFailed(f"no TLS connection to {address}: {error}") from error


class BlockingConnection:
    """One request at a time; the caller waits for the reply. Not thread-safe."""

    def __init__(self, address: Address, *, timeout: float = CONNECT_SECONDS, security: Security = OPEN) -> None:
        self.address = address
        self._link: Link[bool] = Link(address, security)
        self._socket = connect_with(security, address, timeout)

    def request(self, command: Command, timeout: float = 3.0) -> Command:
        """Returns the reply, whatever its code. The connection is closed after an error."""
        if UNDERWAY:
            tell_now()
        frame = self._link.request(command, True)
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(frame)
            return self._answer()
        except TimeoutError as error:
            self.close()
            raise RequestTimedOut(f"no answer from {self.address} in {timeout:g} s") from error
        except OSError as error:
            self.close()
            raise self._link.lost(error) from error
        except OtherProtocol as error:
            self.close()
            raise RemoteProtocolError(f"{self.address} is no broker: {error}") from error
        except BaseException:  # also one of a signal handler: a part of the request may be written
            self.close()
            raise

    def _answer(self) -> Command:
        while count := self._socket.recv_into(self._link.space()):
            commands = [decode_command(frame) for frame in self._link.arrived(count)]
            for command in commands:
                if command.is_response and self._link.forget(command.opaque):
                    return command
        raise self._link.lost(None)

    def drop(self) -> None:
        """Closes this process's end of a connection that the parent continues with."""
        self._socket.close()

    def hang_up(self) -> None:
        """Makes a request under way in another thread fail; that thread closes the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "BlockingConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DuplexConnection(Generic[W]):
    """Many requests in flight. `W` is what waits for a reply: `on_replies` gets it on the reader thread, once per
    request, with the reply or the loss of the connection, and together with others that were read at once."""

    def __init__(
        self,
        address: Address,
        *,
        on_replies: Callable[[Sequence[tuple[W, Command | None, LaneError | None]]], None],
        on_lost: Callable[["DuplexConnection[W]"], None],
        timeout: float = CONNECT_SECONDS,
        write_timeout: float = WRITE_SECONDS,
        security: Security = OPEN,
    ) -> None:
        """`write_timeout` in seconds. If the peer accepts no bytes for one to two times as long, the connection is
        closed.
        """
        self.address = address
        self.is_open = True
        self._on_replies, self._on_lost = on_replies, on_lost
        self._link: Link[W] = Link(address, security)
        self._outgoing: deque[bytes] = deque()
        self._writing = threading.Lock()
        self._socket = connect_with(security, address, timeout, write_timeout)
        self._socket.settimeout(None)
        self._reader = ClientThread(target=self._read, name=f"lanemq-reader-{address}", daemon=True)
        self._reader.start()

    def post(self, command: Command, waiter: W) -> int:
        """Sends at once and returns the request's opaque."""
        opaque = self.line_up(command, waiter)
        self.flush()
        return opaque

    def line_up(self, command: Command, waiter: W) -> int:
        """Queues a request without writing; `flush` must follow.
        Threads that queue under a lock of their own and flush without it keep their order.
        """
        self._outgoing.append(self._link.request(command, waiter))
        return command.opaque

    def flush(self) -> None:
        """Writes everything queued. If another thread is writing already, it also writes what was queued here."""
        # The writer checks the queue again after it releases the lock, so it finds what was queued before.
        mine = True
        while self._outgoing and mine:
            mine = False
            try:
                [mine] = map(self._writing.acquire, NOT_WAITING)  # a signal handler cannot raise before `mine` is set
                if mine:
                    self._write_lined_up()
            finally:
                if mine:
                    self._writing.release()
        if not self.is_open:
            self._fail_all()

    def flush_aside(self) -> None:
        """`flush` for a thread that must not wait for the peer: the current writer or a new thread writes."""
        if self._outgoing and not self._writing.locked():
            ClientThread(target=self.flush, name=f"lanemq-writer-{self.address}", daemon=True).start()

    def post_oneway(self, command: Command, *, aside: bool = False) -> None:
        """Sends a request without a reply; it is lost silently if the connection is lost."""
        self._outgoing.append(self._link.oneway(command))
        self.flush_aside() if aside else self.flush()

    def _write_lined_up(self) -> None:
        while self._outgoing:
            try:
                frames = [self._outgoing.popleft() for _ in range(len(self._outgoing))]
                self._socket.sendall(frames[0] if len(frames) == 1 else b"".join(frames))
            except OSError:
                self._shut()
            except BaseException:
                # Of a signal handler: a part of a frame may be written, and the peer would take the next frame for the
                # rest of it.
                self._shut()
                raise

    def forget(self, opaque: int) -> bool:
        """Stops waiting for a reply; false if it has been delivered already."""
        return self._link.forget(opaque) is not None

    def drop(self) -> None:
        """Closes this process's end of a connection that the parent continues with."""
        self.is_open = False
        self._socket.close()

    def hang_up(self) -> None:
        """Closes the connection without waiting for the reader; `on_lost` is called afterwards."""
        self._shut()

    def close(self) -> None:
        """Closes the connection and waits for the reader, so nothing is delivered afterwards."""
        self._shut()
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout=5)

    def _shut(self) -> None:
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            while count := self._socket.recv_into(self._link.space()):
                frames = self._link.arrived(count)
                for at in range(0, len(frames), REPLIES_TOGETHER):
                    self._received([decode_command(frame) for frame in frames[at : at + REPLIES_TOGETHER]])
        except (OSError, ProtocolError):
            pass  # both end the connection; waiting requests fail below
        finally:
            self._shut()
            # A writer may be inside sendall; a closed socket's number could already be another file's.
            with self._writing:
                self._socket.close()
            self._fail_all()
            self._on_lost(self)

    def _fail_all(self) -> None:
        if waiters := self._link.forget_all():
            self._on_replies([(waiter, None, self._link.lost(None)) for waiter in waiters])

    def _received(self, commands: Sequence[Command]) -> None:
        replies = [
            (waiter, command, None)
            for command in commands
            if command.is_response and (waiter := self._link.forget(command.opaque)) is not None
        ]
        if replies:
            self._on_replies(replies)
