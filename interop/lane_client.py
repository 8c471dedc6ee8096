"""LaneMQ's own client, in a process that speaks the harness protocol."""

import sys
from pathlib import Path

from interop.harness import Harness
from interop.harness_client import HarnessClient

ROOT = Path(__file__).parent.parent


def lane_client(name: str, address: str, folder: Path) -> HarnessClient:
    """A LaneMQ client for the broker, or the name server, at the address."""
    command = [sys.executable, "-m", "interop.lane_harness", address]
    return HarnessClient(name, lambda: Harness(command, folder / f"{name}.err", cwd=ROOT))
