"""What the promises are tested against: LaneMQ's broker, or an Apache broker with a coordinator beside it.

    make interop-coordinator

`EXCEPTIONS` are the tests that do not run against the second, all of them, with the reason.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from interop.apache import apache
from interop.coordinator.node import coordinate
from tests.chaos.roles import GROUP
from tests.coordinator.conftest import RunningCoordinator

COORDINATED = os.environ.get("LANEMQ_PROMISES_BACKEND") == "coordinator"
"""Whether the promises run against an Apache broker with a coordinator."""

EXCEPTIONS = {
    "test_01": "the producer alone places keys; interop/cluster has it with a layout",
    "test_02": "an Apache broker stores a message again when its answer was lost",
    "test_03": "an Apache broker answers as its flush and its replicas are set",
    "test_04": "interop/coordinator/test_losses.py has it with processes beside a real cluster",
    "test_05": "tests/coordinator has it: epochs of a coordinator begin at the time, and it needs members",
    "test_09": "the log is Apache's, whose records have no checksum that consumers could check",
    "test_10": "pipelines do not use a coordinator",
    "test_11": "an Apache broker lets the number of queues grow; producers refuse it",
    "test_12": "the checker reads files, wherever they come from",
}
"""By the beginning of the file's name."""


@contextlib.contextmanager
def apache_with_coordinator(folder: Path) -> Iterator[SimpleNamespace]:
    """A fresh broker, with the name that LaneMQ's has, and a coordinator in this process that has the group."""
    store = folder / "apache"
    store.mkdir()
    with apache("5", store, "lanemq") as address:
        running = RunningCoordinator(address, folder / "coordinator")
        try:
            coordinate(address, GROUP)
            yield SimpleNamespace(address=address)
        finally:
            running.stop()
