"""Runs inputs against a target: each must end in time, within its memory, and with nothing but the allowed error.

Time is the process's own, not the clock's, so that a busy machine is no hang. Memory is the address space: an input
that makes the process ask for more than `ROOM_BYTES` fails with `MemoryError`, which is allowed nowhere.
"""

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.mutating import Mutator
from tests.fuzz.targets import Target

CPU_SECONDS = 5.0
ROOM_BYTES = 256 << 20


class Hang(BaseException):
    """One input took too long. Not an `Exception`, so that no target catches it."""


class Failure(Exception):
    """An input that broke its target, with everything needed to see it again."""

    def __init__(self, target: str, seed: int, data: bytes, error: BaseException) -> None:
        super().__init__(f"{target}, seed {seed}: {error!r} from {data[:2000]!r}")


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """For this process: a bound on memory, and on the time between two calls of `tick`."""

    def too_long(*_: object) -> None:
        raise Hang(f"more than {CPU_SECONDS:.0f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, too_long)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ROOM_BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class Attack:
    """One target and the inputs of one seed."""

    def __init__(self, name: str, target: Target, seed: int) -> None:
        self.name = name
        self.cases = self.refused = 0
        self._target = target
        self._seed = seed
        self._mutator = Mutator(Random(f"{name} {seed}"), target.corpus)

    def run(self, cases: int) -> None:
        """Inside `limits`."""
        for _ in range(cases):
            self._one(self._mutator.make())

    def _one(self, data: bytes) -> None:
        self.cases += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
        try:
            self._target.call(data)
        except self._target.allowed:
            self.refused += 1
        except (Exception, Hang) as error:
            raise Failure(self.name, self._seed, data, error) from error
        finally:
            # Not left running: it would kill what comes next in this process.
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
