"""A broker or a coordinator as its monitor sees it.

All calls come from the monitor's threads, so they read single values only.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from lanemq.clock import Clock
from lanemq.model.errors import InvalidOption, LaneError
from lanemq.model.figures import MetricSample
from lanemq.model.units import Millis
from lanemq.net.address import Address

if TYPE_CHECKING:
    from lanemq.net.serving.monitor import Monitor

log = logging.getLogger(__name__)

MAX_SILENCE_MS = 10_000
"""Without a tick of the housekeeping for so long, the event loop counts as hung. A tick is due every 50 ms."""
READ_SECONDS = 5.0
"""How long a request for metrics waits for the event loop."""


class Phase(Enum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class ProcessFigures(Protocol):
    """What a process shows of itself."""

    def problems(self) -> list[str]: ...

    async def read(self) -> list[MetricSample]: ...


class Health:
    """Whether a process is live and ready, and its figures."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._phase = Phase.STARTING
        self._figures: ProcessFigures | None = None
        self._last_tick: Callable[[], Millis] = clock.now

    def running(self, figures: ProcessFigures, last_tick: Callable[[], Millis]) -> None:
        """The process serves clients from now on."""
        self._figures, self._last_tick = figures, last_tick
        self._phase = Phase.RUNNING

    def stopping(self) -> None:
        """The process accepts nothing any more."""
        self._phase = Phase.STOPPING

    def live_problem(self) -> str | None:
        return hung(self._phase, Millis(self._clock.now() - self._last_tick()))

    def ready_problems(self) -> list[str]:
        hang = self.live_problem()
        problems = [] if hang is None else [hang]
        if self._phase is Phase.STARTING:
            problems.append("starting: what is on disk is read")
        elif self._phase is Phase.STOPPING:
            problems.append("stopping")
        if self._figures is not None:
            problems += self._figures.problems()
        return problems

    def samples(self) -> list[MetricSample]:
        if self._figures is None or self._phase is not Phase.RUNNING:
            raise LaneError(f"no figures while this process is {self._phase.value}")
        reading = self._figures.read()
        try:
            read = asyncio.run_coroutine_threadsafe(reading, self._loop)
            try:
                return read.result(READ_SECONDS)
            except TimeoutError as error:
                read.cancel()  # else the loop would continue with it, and be later still for the next scrape
                raise LaneError(f"no figures: the event loop did not answer within {READ_SECONDS:.0f} s") from error
        except (RuntimeError, concurrent.futures.CancelledError) as error:  # the loop has ended in between
            reading.close()
            raise LaneError("no figures: this process is stopping") from error


def hung(phase: Phase, silent: Millis) -> str | None:
    """Why the process should be restarted. A start may take long, so only a running broker can hang."""
    if phase is not Phase.RUNNING or silent <= MAX_SILENCE_MS:
        return None
    return f"the event loop has not run for {silent / 1000:.0f} s"


def open_monitor(listen: Address | None, health: Health, *, required: bool) -> "Monitor | None":
    """Opened before anything is read from disk, so that a long start is visible as such."""
    if listen is None:
        return None
    from lanemq.net.serving.monitor import Monitor  # costs 50 ms, which most tests and examples save

    try:
        return Monitor(listen, health)
    except OSError as error:
        if required:
            raise InvalidOption(
                f"the monitor cannot listen on {listen}: {error.strerror or error}; choose another address, "
                "or turn it off"
            ) from error
        log.info("no monitor: %s: %s", listen, error)
        return None
