"""A TCP relay that can be cut: between coordinators and PostgreSQL, or between members and a coordinator."""

import contextlib
import socket
import threading


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
        threading.Thread(target=self._accept, daemon=True).start()

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
        self._listener.close()
        self.mend()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = self._to_target()
        except OSError:
            client.close()
            return
        with self._lock:
            self._ends |= {client, server}
        for source, end in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, end), daemon=True).start()

    def _to_target(self) -> socket.socket:
        if isinstance(self.target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.target)
            return server
        return socket.create_connection(self.target, timeout=5)

    def _pump(self, source: socket.socket, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._cut:
                    continue
                end.sendall(data)
        with self._lock:
            self._ends -= {source, end}
        for each in (source, end):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
