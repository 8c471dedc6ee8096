"""The brokers that the suite runs against. A backend has a name and gives one address to connect to."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from interop.apache import apache
from interop.children import running
from interop.cluster.nodes import ClusterPlan, running_cluster
from interop.ports import HOST, eventually, free_port, listens

LANE_START_SECONDS = 30.0


class Backend(Protocol):
    """`name` for the report; `run` starts the broker in a folder and yields its name server's address."""

    name: str

    def run(self, folder: Path) -> AbstractContextManager[str]: ...


class ApacheBackend:
    """Apache RocketMQ, from Maven."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self._version = version

    def run(self, folder: Path) -> AbstractContextManager[str]:
        return apache(self._version, folder)


class LaneBackend:
    """LaneMQ's broker, started with the `lanemq broker` command."""

    name = "lane"

    @contextlib.contextmanager
    def run(self, folder: Path) -> Iterator[str]:
        port = free_port()
        command = [str(Path(sys.executable).with_name("lanemq")), "broker"]
        command += ["--listen", f"{HOST}:{port}", "--data", str(folder / "data")]
        with running(command, folder / "broker.out") as child:
            eventually(lambda: self._up(child, port, folder), LANE_START_SECONDS, "the LaneMQ broker")
            yield f"{HOST}:{port}"

    @staticmethod
    def _up(child: subprocess.Popen[bytes], port: int, folder: Path) -> bool | None:
        if child.poll() is not None:
            said = (folder / "broker.out").read_text(errors="replace").strip().splitlines()
            raise RuntimeError(f"the LaneMQ broker ended with {child.returncode}: {said[-1:] or 'no output'}")
        return listens(port)


class ClusterBackend:
    """An Apache RocketMQ cluster with fail-over: two name servers, a controller, two brokers with a replica each."""

    name = "cluster"

    @contextlib.contextmanager
    def run(self, folder: Path) -> Iterator[str]:
        with running_cluster(ClusterPlan(name_servers=2, replicas=2, controller=True), folder) as cluster:
            yield cluster.address


BACKENDS: dict[str, Backend] = {
    "lane": LaneBackend(),
    "apache": ApacheBackend("apache", "5"),
    "apache49": ApacheBackend("apache49", "4.9"),
    "cluster": ClusterBackend(),
}
