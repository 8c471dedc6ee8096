"""Whether memory is flat, process by process: looked at while a measurement runs, judged over its second half.

The sum over all processes says nothing: it grows as long as processes start, which Spark does for the first ten to
twenty seconds of a query. So each process is compared with itself, at half of the work and at its end, by the least
that it held around either moment: what lies above that is a chunk on its way and comes and goes. Something that is
kept raises the least.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.spark_common import Process, processes

SECONDS = 0.25
PART = 0.2
"""Of all batches: so many are looked at behind the half, and at the end."""
SLACK_MIB, SLACK_SHARE = 8.0, 0.05
"""What a process may differ by and still count as flat: a part of it, and a little for those that are small."""


class Sample(NamedTuple):
    """One process at one moment, by the batches that were done then."""

    batches: int
    pid: int
    role: str
    resident_mib: float


class Growth(NamedTuple):
    """What one process held least behind the half of the work, and at its end."""

    role: str
    half: float
    end: float

    @property
    def mib(self) -> float:
        return self.end - self.half

    @property
    def is_flat(self) -> bool:
        return self.mib <= max(SLACK_MIB, self.half * SLACK_SHARE)


def growth(samples: Iterable[Sample], batches: int) -> list[Growth]:
    """Of each process that was there at both moments, the one that grew most in front."""
    half: dict[int, list[float]] = defaultdict(list)
    end: dict[int, list[float]] = defaultdict(list)
    roles: dict[int, str] = {}
    for each in samples:
        roles[each.pid] = each.role
        done = each.batches / batches
        if 0.5 <= done < 0.5 + PART:
            half[each.pid].append(each.resident_mib)
        elif done >= 1 - PART:
            end[each.pid].append(each.resident_mib)
    both = half.keys() & end.keys()
    found = [Growth(roles[pid], min(half[pid]), min(end[pid])) for pid in both]
    return sorted(found, key=lambda each: -each.mib)


def started_late(samples: Iterable[Sample], batches: int) -> int:
    """How many processes there were at the end and not at the half: they would hide growth by being new."""
    seen: dict[int, list[float]] = defaultdict(list)
    for each in samples:
        seen[each.pid].append(each.batches / batches)
    return sum(min(shares) >= 0.5 + PART and max(shares) >= 1 - PART for shares in seen.values())


class Watch:
    """Looks on a thread until it is closed; `batch_done` tells it how far the work is."""

    def __init__(self, but: int) -> None:
        """`but`: the process of the broker, which is another measurement's matter."""
        self.samples: list[Sample] = []
        self.batches = 0
        self._but = but
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def batch_done(self) -> None:
        self.batches += 1
        self._look_once()  # so that there is a sample of every batch, however short

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def peak(self, role: str) -> int:
        """The most that one process of this role held."""
        return round(max((each.resident_mib for each in self.samples if each.role == role), default=0))

    def _look(self) -> None:
        while not self._done.wait(SECONDS):
            self._look_once()

    def _look_once(self) -> None:
        there = (each for each in processes(self._but) if each.resident_mib)  # the others have ended
        self.samples.extend(_sample(self.batches, each) for each in there)


def _sample(batches: int, process: Process) -> Sample:
    return Sample(batches, process.pid, process.role, process.resident_mib)
