"""NATS with JetStream in files."""

import socket

from interop.ports import HOST

from benchmarks.peers import packages
from benchmarks.peers.processes import PeerServer


class NatsServer(PeerServer):
    name = "nats"
    settings = (
        "NATS 2.10.22 (Go proxy), JetStream in files; durable: `sync_interval: always`, relaxed: its default, fsync "
        "every two minutes"
    )

    fetch = staticmethod(packages.nats_server)

    def prepare(self) -> None:
        self._program = self.fetch()
        sync = "\n  sync_interval: always" if self.durable else ""
        stream = f'jetstream {{\n  store_dir: "{self.folder / "data"}"{sync}\n}}\n'
        (self.folder / "nats.conf").write_text(f"listen: {self.address}\n{stream}")

    def start(self) -> None:
        self.run([str(self._program), "-c", str(self.folder / "nats.conf")])

    def is_ready(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            return connection.recv(16).startswith(b"INFO")
