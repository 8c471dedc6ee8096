"""LaneMQ's own client under the suite.

Two ways to fill this in; either satisfies `interop.clients.Client`:

- a program that speaks the lines of `interop/harness.py` with LaneMQ's client inside, started here as
  `HarnessClient("lane", lambda: Harness([sys.executable, "-m", "interop.lane_harness", address], log))`.
  `java/Harness.java`, `PushMember.java` and `Admin.java` show every command; killing a member comes free.
- classes that implement the protocols of `interop/clients.py` directly; `member(own_process=True)` then needs
  a child process, because the cases kill it with -9.

The verdicts of `Rule` are RocketMQ's; the times of `Turn` are wall-clock microseconds, taken just before and
just after the handler's work.
"""

from pathlib import Path

from interop.clients import Client
from interop.maven import UnavailableError


def lane_client(name: str, address: str, folder: Path) -> Client:
    """A LaneMQ client for the broker at the address."""
    raise UnavailableError("LaneMQ's client has no harness yet")
