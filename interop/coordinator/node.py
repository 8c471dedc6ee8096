"""A coordinator as a process beside a cluster: it is killed, frozen and started again like the other nodes."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from interop.cluster.nodes import ClusterPlan, Node
from interop.cluster.run import GROUP, Run, running
from interop.ports import HOST, eventually, lasting_port, listens
from lanemq.client.admin.coordinated import CoordinatedAdmin

START_SECONDS = 30.0
LANEMQ = str(Path(sys.executable).with_name("lanemq"))


class CoordinatorNode(Node):
    """`lanemq coordinator`, always at the same port, with a folder of its own or a database."""

    def __init__(
        self,
        cluster: str,
        folder: Path,
        history: Path | None = None,
        *more: str,
        name: str = "coordinator",
        state: str | None = None,
    ) -> None:
        super().__init__(name, "", {}, folder, "")
        self.port = lasting_port()
        where = ["--data", str(self.folder / "data")] if state is None else ["--state", state, "--monitor", "off"]
        self._words = ["--cluster", cluster, *where, "--listen", f"{HOST}:{self.port}"]
        self._words += ["--log-level", "info", *(() if history is None else ("--history", str(history))), *more]

    def start(self) -> None:
        super().start()
        eventually(lambda: listens(self.port), START_SECONDS, "the coordinator")

    def _command(self) -> list[str]:
        return [LANEMQ, "coordinator", *self._words]


def coordinate(servers: str, group: str) -> None:
    with CoordinatedAdmin(servers, timeout=60) as admin:
        answer = admin.move(group, apply=True)
        assert answer.moved, answer.problems


@contextlib.contextmanager
def coordinated(plan: ClusterPlan, folder: Path) -> Iterator[tuple[Run, CoordinatorNode]]:
    """A cluster with an ordered topic, and a coordinator that has the group and writes a history."""
    with running(plan, folder) as run:
        coordinator = CoordinatorNode(run.cluster.address, folder, run.history)
        try:
            coordinator.start()
            run.create_topic("--ordered")
            coordinate(run.cluster.address, GROUP)
            yield run, coordinator
        finally:
            coordinator.stop()
