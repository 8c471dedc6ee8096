"""TLS on the listening side.

Plain and encrypted clients use the same port, as in RocketMQ: a TLS connection begins with the byte of a handshake
record, which no frame of the protocol begins with. Invariant: with `enforcing`, no unencrypted request is handled.
"""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from lanemq.clock import Clock
from lanemq.model.errors import ConnectionLost, InvalidOption, RequestTimedOut, TlsFailed
from lanemq.model.units import Millis
from lanemq.net.fresh_file import FreshFile
from lanemq.net.security import load_authorities, load_certificate
from lanemq.net.serving.certificate_end import certificate_end, end_problem

log = logging.getLogger(__name__)

HANDSHAKE_BYTE = b"\x16"
"""TLS's record type. A frame's first byte is the highest of its length, which the limit of 16 MiB keeps at 0 or 1."""

CLOSING_ALERT_SECONDS = 1.0
"""How long a closed connection waits for the client's closing alert. A client that reads only while it waits for a
reply never sends one, and a stop would wait for each of them.
"""


class TlsMode(Enum):
    """Which connections are accepted (RocketMQ's tls.server.mode)."""

    PERMISSIVE = "permissive"
    """Encrypted and plain connections, for the time in which clients move to TLS."""
    ENFORCING = "enforcing"
    """Encrypted connections only."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How a broker speaks TLS; its files are read again when they change."""

    cert: Path
    """PEM file of the certificate and its chain. Clients check that it is for the host they connect to."""
    key: Path | None = None
    """PEM file of its private key, not encrypted; None: it is in the file of the certificate."""
    client_ca: Path | None = None
    """PEM file of the authorities whose certificates clients must show; None: clients need none."""
    mode: TlsMode = TlsMode.ENFORCING

    def __post_init__(self) -> None:
        if self.client_ca is not None and self.mode is TlsMode.PERMISSIVE:
            raise InvalidOption(
                "tls client ca: asks nothing of a client that comes without TLS, which permissive lets in; "
                "use the mode enforcing"
            )
        self.context()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.cert, self.key, self.client_ca) if path is not None)

    def loaded(self) -> "LoadedTls":
        """The SSL context, and when the certificate ends; raises `InvalidOption` as `context` does."""
        return LoadedTls(self.context(), certificate_end(self.cert, self.key))

    def context(self) -> ssl.SSLContext:
        """Builds the SSL context; raises `InvalidOption` naming the file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        load_certificate(context, self.cert, self.key, "tls cert")
        if self.client_ca is not None:
            load_authorities(context, self.client_ca, "tls client ca")
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class LoadedTls(NamedTuple):
    """What was read from the files."""

    context: ssl.SSLContext
    certificate_end: Millis | None


class TlsDetector:
    """Decides by the first byte of a new connection whether it is encrypted and whether it may enter."""

    def __init__(self, tls: ServerTls, clock: Clock) -> None:
        self._enforcing = tls.mode is TlsMode.ENFORCING
        self._tls = tls
        self._clock = clock
        self._loaded = FreshFile(tls.files, self._load, clock)
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def _load(self) -> LoadedTls:
        loaded = self._tls.loaded()
        soon = end_problem(loaded.certificate_end, now=self._clock.wall())
        if soon is not None:
            log.warning("%s: %s", self._tls.cert, soon)
        return loaded

    async def context_for(self, connection: socket.socket, seconds: float) -> ssl.SSLContext | None:
        """The SSL context to use; None for an accepted plain connection. Raises `TlsFailed` for a plain connection that
        is not allowed, `RequestTimedOut` for one that sends nothing for `seconds`, and `ConnectionLost` or an OSError
        for one that is gone.
        """
        first = await self._first_byte(connection, seconds)
        if first == HANDSHAKE_BYTE:
            return self._loaded.value().context
        if not first:
            raise ConnectionLost("it closed the connection without sending anything")
        if self._enforcing:
            raise TlsFailed("it does not use TLS, and --tls-mode enforcing takes nothing else")
        return None

    def reload(self) -> None:
        """Read the certificates again."""
        self._loaded.reload()

    @property
    def certificate_end(self) -> Millis | None:
        """When the certificate ends, in milliseconds since 1970; None if that is not known."""
        return self._loaded.value().certificate_end

    def close(self) -> None:
        """Stops waiting for first bytes; connections that have sent none are closed."""
        self._closed = True
        for waiting in self._waiting:
            waiting.cancel()

    async def _first_byte(self, connection: socket.socket, seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        self._waiting.add(readable)
        loop.add_reader(connection, _resolve, readable)
        try:
            if not self._closed:
                await asyncio.wait((readable,), timeout=seconds)
        finally:
            loop.remove_reader(connection)
            self._waiting.discard(readable)
        with suppress(BlockingIOError):
            return connection.recv(1, socket.MSG_PEEK)
        if not self._closed:
            raise RequestTimedOut(f"it sent nothing in {seconds:.0f} s")
        return b""


def _resolve(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
