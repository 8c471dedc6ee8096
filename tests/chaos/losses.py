"""Four ways to lose a member, and how long its queues wait for their next owner. Every setting has its default.

`killed`: its connection closes. The other three are silent, because the connection stays open: `frozen` (SIGSTOP),
`forked` (SIGKILL, while a forked child keeps the socket) and `cut off` (a network namespace whose packets are dropped).
"""

import contextlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.chaos.system import TIMEOUT, TOPIC, Child, Event, SystemUnderTest

QUEUES = 4
CLOSED_SECONDS, SILENT_SECONDS = 1.5, 7.0
"""The most that queues wait, at the 99th percentile, after a closed connection and after silence."""
NOWHERE = "02:00:00:00:00:99"
_NUMBERS = count(os.getpid() % 16_000 * 4)


class Namespace:
    """A network namespace, connected to this one by a pair of interfaces. Needs root and the tool `ip`."""

    def __init__(self) -> None:
        number = next(_NUMBERS) % 64_000
        self.name = f"lmq{number}"
        self.address = f"10.213.{number // 250}.{number % 250 // 4 * 4 + 1}"
        self._inside = f"{self.address.rpartition('.')[0]}.{int(self.address.rpartition('.')[2]) + 1}"
        self._outer, self._inner = f"{self.name}a", f"{self.name}b"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self.name)
        _run("ip", "addr", "add", f"{self.address}/30", "dev", self._outer)
        _run("ip", "link", "set", self._outer, "up")
        for command in (
            f"addr add {self._inside}/30 dev {self._inner}",
            f"link set {self._inner} up",
            "link set lo up",
        ):
            _run("ip", "-n", self.name, *command.split())

    @property
    def prefix(self) -> tuple[str, ...]:
        """Runs a command inside."""
        return "ip", "netns", "exec", self.name

    def drop(self) -> None:
        """Loses all packets in both directions: they go to a hardware address that no interface has.

        The sender must not notice. If its own interface refused packets, TCP would try again every half second.
        """
        _run("ip", "neigh", "replace", self._inside, "lladdr", NOWHERE, "dev", self._outer, "nud", "permanent")
        inner = ("neigh", "replace", self.address, "lladdr", NOWHERE, "dev", self._inner, "nud", "permanent")
        _run("ip", "-n", self.name, *inner)

    def deliver(self) -> None:
        _run("ip", "neigh", "del", self._inside, "dev", self._outer)
        _run("ip", "-n", self.name, "neigh", "del", self.address, "dev", self._inner)

    def close(self) -> None:
        for command in (("link", "del", self._outer), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("ip", *command)


def why_no_namespaces() -> str:
    """Why this machine cannot cut a member off; empty if it can."""
    if shutil.which("ip") is None:
        return "cutting a member off needs ip (iproute2)"
    if os.geteuid() != 0:
        return "cutting a member off needs root, for a network namespace"
    try:
        Namespace().close()
    except subprocess.CalledProcessError as error:
        return f"no network namespace here: {error.stderr.strip()}"
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@dataclass
class Losses:
    """Two members, of which one after the other is lost in the same way."""

    system: SystemUnderTest
    kind: str
    namespace: Namespace | None = None
    members: list[Child] = field(default_factory=list)
    _made: Iterator[int] = field(default_factory=count)
    _granted: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By queue: when and to whom it was granted last."""
    _read: int = 0

    def start(self, *without: str, first_without: Sequence[str] = ()) -> Child:
        """Starts a broker, which lacks the guards `without`, and both members under load; returns the producer.

        The first member, which is lost, lacks the guards `first_without`.
        """
        if self.namespace is not None:
            port = self.system.address.rpartition(":")[2]
            self.system.address = f"{self.namespace.address}:{port}"
        self.system.broker(without, default_queues=QUEUES)
        producer = self.system.producer(pause_ms=5)
        self.system.until("something is stored", lambda: self.system.seen("acked"))
        self.members = [self._member(without=first_without), self._member(stays=True)]
        self.all_work()
        return producer

    def _member(self, *, stays: bool = False, without: Sequence[str] = ()) -> Child:
        prefix = self.namespace.prefix if self.namespace is not None and not stays else ()
        forks = self.kind == "forked" and not stays
        return self.system.consumer(f"m{next(self._made)}", without, prefix, forks=forks)

    def all_work(self, seconds: float = TIMEOUT) -> None:
        """Waits until each member owns half of the queues and handles messages."""
        shares = Counter({member.name: QUEUES // len(self.members) for member in self.members})
        mark = len(self.system.look())

        def work() -> bool:
            turns = {e["by"] for e in self.system.look()[mark:] if e["e"] == "turn"}
            return Counter(self._owners().values()) == shares and shares.keys() <= turns

        self.system.until("both members work on their shares", work, seconds)

    def _owners(self) -> dict[int, str]:
        """As `SystemUnderTest.owners`, but reads each event once: there are many."""
        events = self.system.look()
        for event in events[self._read :]:
            if event["e"] == "lease_granted" and event["topic"] == TOPIC:
                self._granted[event["queue"]] = max(
                    self._granted.get(event["queue"], (0, "")), (event["t"], event["member"])
                )
        self._read = len(events)
        return {queue: member for queue, (_, member) in self._granted.items()}

    def trial(self) -> list[float]:
        """Loses the first member, brings it or another one back; returns for how many seconds each queue waited."""
        lost_at, lost = self.lose()
        waits = self.waits(lost_at, lost)
        self.bring_back()
        self.all_work()
        return waits

    def lose(self) -> tuple[int, set[int]]:
        """Returns when the first member was lost, in nanoseconds, and the queues that it owned."""
        victim = self.members[0]
        lost = {queue for queue, owner in self._owners().items() if owner == victim.name}
        assert lost
        {"killed": self._kill, "frozen": self._freeze, "forked": self._kill, "cut off": self._cut_off}[self.kind](
            victim
        )
        return next(e["t"] for e in reversed(self.system.look()) if e["e"] == "fault"), lost

    def _kill(self, victim: Child) -> None:
        self.system.kill(victim)

    def _freeze(self, victim: Child) -> None:
        self.system.freeze(victim)

    def _cut_off(self, victim: Child) -> None:
        assert self.namespace is not None
        self.system.fault("cut off", victim, "start")
        self.namespace.drop()

    def waits(self, lost_at: int, lost: set[int], seconds: float = 60.0) -> list[float]:
        """Waits until another member works on all lost queues; for each, the seconds until its first turn."""
        victim, first = self.members[0].name, dict[int, int]()
        mark = max(0, len(self.system.events) - 500)  # the other's newest lines may be read before the loss's own

        def is_next_turn(event: Event) -> bool:
            return event["e"] == "turn" and event["queue"] in lost and event["by"] != victim and event["t"] > lost_at

        def taken_over() -> bool:
            for event in filter(is_next_turn, self.system.look()[mark:]):
                first.setdefault(event["queue"], event["t"])
            return lost <= first.keys()

        self.system.until("the other member works on all lost queues", taken_over, seconds)
        return [(first[queue] - lost_at) / 1e9 for queue in lost]

    def bring_back(self) -> None:
        """Thaws or reconnects the lost member, or starts another one in place of a killed one."""
        victim = self.members[0]
        if self.kind == "frozen":
            self.system.thaw(victim)
        elif self.kind == "cut off":
            assert self.namespace is not None
            self.namespace.deliver()
            self.system.fault("cut off", victim, "end")
        else:
            self.system.end_children(victim)
            self.members[0] = self._member()


@contextlib.contextmanager
def losses_in(system: SystemUnderTest, kind: str) -> Iterator[Losses]:
    with contextlib.ExitStack() as cleanup:
        namespace = None
        if kind == "cut off":
            namespace = Namespace()
            cleanup.callback(namespace.close)
        yield Losses(system, kind, namespace)


KINDS = ("killed", "frozen", "forked", "cut off")
