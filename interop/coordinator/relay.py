"""A TCP relay that can be cut: between coordinators and PostgreSQL, or between members and a coordinator."""

import contextlib
import socket
import threading
from collections.abc import Callable


class Relay:
    """Passes connections to `address` on to a target, which is a TCP address or the path of a socket file."""

    def __init__(self, address: tuple[str, int], target: tuple[str, int] | str) -> None:
        self.target = target
        """May be replaced; it holds for new connections."""
        self._cut = False
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(address)
        self.port: int = self._listener.getsockname()[1]
        self._threads: set[threading.Thread] = set()
        self._begin(self._accept)

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told: as when a network is lost."""
        self._cut = True

    def mend(self) -> None:
        """Break what is open, and let new connections pass."""
        self._cut = False
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
        for thread in tuple(self._threads):
            thread.join(5)

    def _begin(self, work: Callable[..., None], *ends: socket.socket) -> None:
        thread = threading.Thread(target=work, args=ends, daemon=True)
        self._threads = {each for each in self._threads if each.is_alive()} | {thread}
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._begin(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = self._to_target()
        except OSError:
            client.close()
            return
        with self._lock:
            self._ends |= {client, server}
        for source, end in ((client, server), (server, client)):
            self._begin(self._pump, source, end)

    def _to_target(self) -> socket.socket:
        if isinstance(self.target, str):
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.target)
            except OSError:
                server.close()
                raise
            return server
        return socket.create_connection(self.target, timeout=5)

    def _pump(self, source: socket.socket, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._cut:
                    continue
                end.sendall(data)
        for each in (source, end):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends.discard(source)
        source.close()  # the other direction closes its own
