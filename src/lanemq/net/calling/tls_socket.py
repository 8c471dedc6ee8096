"""TLS over a blocking socket, with one reading thread and other threads that write at the same time.

Python's own TLS socket does not allow that: OpenSSL forbids two threads in one session, and a lock around a blocking
read would keep every writer out. Here the session works on memory buffers. Its lock is held while bytes are encrypted
or decrypted, never while a thread waits for the network.
"""

import contextlib
import socket
import ssl
import threading

READ_BYTES = 64 * 1024


class TlsSocket:
    """The part of a socket that connections use."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Performs the handshake within the socket's time-out; raises what the ssl module raises and closes nothing."""
        self._plain = plain
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._arrived, self._leaving, server_hostname=host)
        self._session_lock = threading.Lock()
        """Guards the session and its two buffers."""
        self._send_lock = threading.Lock()
        """Guards the socket's sending side: encrypted bytes must leave in the order in which they were made."""
        self._shake_hands()

    def sendall(self, data: bytes) -> None:
        with self._send_lock:
            with self._session_lock:
                self._session.write(data)
                sealed = self._leaving.read()
            self._plain.sendall(sealed)

    def recv_into(self, space: memoryview) -> int:
        """Receives into `space` and returns how many bytes; 0 at the end of the connection."""
        while True:
            with self._session_lock:
                count, over = self._unsealed(space)
            self._send_leftovers()
            if count or over:
                return count
            sealed = self._plain.recv(READ_BYTES)
            with self._session_lock:
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
                    self._plain.sendall(self._leaving.read())  # tell the peer why
                raise
            else:
                self._plain.sendall(self._leaving.read())
                return

    def _unsealed(self, space: memoryview) -> tuple[int, bool]:
        """Decrypts into `space` until it is full or no bytes are left; how many, and whether the session has ended."""
        count = 0
        try:
            while count < len(space) and (more := int(self._session.read(len(space) - count, space[count:]))):
                count += more
        except ssl.SSLWantReadError:
            return count, False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return count, True
        return count, count < len(space)

    def _send_leftovers(self) -> None:
        """Sends bytes of the session itself, such as key updates. If another thread is sending, they leave with its
        next bytes: waiting for that thread could block the reading that it waits for.
        """
        if self._leaving.pending and self._send_lock.acquire(blocking=False):
            try:
                with self._session_lock:
                    sealed = self._leaving.read()
                self._plain.sendall(sealed)
            finally:
                self._send_lock.release()
