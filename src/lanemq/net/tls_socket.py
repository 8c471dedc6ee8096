"""TLS over a blocking socket, for one thread that reads and others that write at the same time.

Python's own TLS socket is not made for that: the library underneath forbids two threads in one session, and a lock
around a read that waits would keep every writer out. Here the session only ever sees memory: the lock around it is
held while bytes are turned into bytes, never while anybody waits for the network.
"""

import contextlib
import socket
import ssl
import threading

READ_BYTES = 64 * 1024


class TlsSocket:
    """As much of a socket as connections use."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shakes hands, within the socket's time-out; raises what the ssl module raises. Closes nothing."""
        self._plain = plain
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._arrived, self._leaving, server_hostname=host)
        self._machine = threading.Lock()
        """Around the session and what enters and leaves it."""
        self._line = threading.Lock()
        """Around the socket's sending side: encrypted bytes must leave in the order in which they were made."""
        self._shake_hands()

    def sendall(self, data: bytes) -> None:
        with self._line:
            with self._machine:
                self._session.write(data)
                sealed = self._leaving.read()
            self._plain.sendall(sealed)

    def recv(self, size: int) -> bytes:
        """What has arrived; empty at the end of the connection."""
        while True:
            with self._machine:
                data, over = self._unsealed(size)
            self._send_leftovers()
            if data or over:
                return data
            sealed = self._plain.recv(READ_BYTES)
            with self._machine:
                self._arrived.write(sealed) if sealed else self._arrived.write_eof()

    def settimeout(self, seconds: float | None) -> None:
        self._plain.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        self._plain.shutdown(how)

    def close(self) -> None:
        self._plain.close()

    def _shake_hands(self) -> None:
        while True:
            try:
                self._session.do_handshake()
            except ssl.SSLWantReadError:
                self._plain.sendall(self._leaving.read())
                sealed = self._plain.recv(READ_BYTES)
                self._arrived.write(sealed) if sealed else self._arrived.write_eof()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._plain.sendall(self._leaving.read())  # the other side should know why
                raise
            else:
                self._plain.sendall(self._leaving.read())
                return

    def _unsealed(self, size: int) -> tuple[bytes, bool]:
        """Everything there is, and whether nothing will follow."""
        parts: list[bytes] = []
        try:
            while part := self._session.read(size):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts), False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        return b"".join(parts), True

    def _send_leftovers(self) -> None:
        """What the session itself wants to say, such as new keys. If somebody is sending, it leaves with the next
        bytes: waiting for a sender would stop the reading that the sender may be waiting for."""
        if self._leaving.pending and self._line.acquire(blocking=False):
            try:
                with self._machine:
                    sealed = self._leaving.read()
                self._plain.sendall(sealed)
            finally:
                self._line.release()
