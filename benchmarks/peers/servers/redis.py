"""Redis with its append-only file."""

import socket

from interop.ports import HOST

from benchmarks.peers import packages
from benchmarks.peers.processes import PeerServer


class RedisServer(PeerServer):
    name = "redis"
    settings = (
        "Redis 7.0.15 (Debian), append-only file, no snapshots; relaxed: `appendfsync everysec`, durable: "
        "`appendfsync always`"
    )

    fetch = staticmethod(packages.redis_server)

    def prepare(self) -> None:
        self._program, self._env = self.fetch()

    def start(self) -> None:
        fsync = "always" if self.durable else "everysec"
        words = f"--port {self.port} --bind {HOST} --dir {self.folder} --appendonly yes --appendfsync {fsync}"
        self.run([str(self._program), *words.split(), "--save", ""], self._env)

    def is_ready(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
