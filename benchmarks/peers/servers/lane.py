"""The LaneMQ broker, as `lanemq broker` starts it."""

import sys

from interop.ports import listens

from benchmarks.peers.processes import PeerServer
from lanemq.client.admin.admin import Admin


class LaneServer(PeerServer):
    name = "lanemq"
    settings = "LaneMQ of this checkout: `lanemq broker` (durable), `lanemq broker --relaxed` (relaxed)"

    def start(self) -> None:
        command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", self.address]
        self.run([*command, "--data", str(self.folder / "data"), *([] if self.durable else ["--relaxed"])])

    def is_ready(self) -> bool:
        if not listens(self.port):
            return False
        with Admin(self.address) as admin:
            admin.topics()
        return True
