"""A scheduler whose runs a program takes without waiting, such as a front that hands them to its own clients."""

from collections.abc import Callable

from lanemq.client.consumer.turns.scheduler import MessageRun, Scheduler
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.runs import LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import Millis


class TakingScheduler(Scheduler):
    """Calls `on_work`, from any thread and with the mutex held, whenever there may be a run to take."""

    def __init__(self, lanes: LaneScheduler[Message], clock: Clock, on_work: Callable[[], None]) -> None:
        super().__init__(lanes, clock)
        self._on_work = on_work

    def take_now(self, most: int) -> MessageRun | Millis | None:
        """A run of at most so many messages; or when a held lane may run again, None if none is held."""
        with self as lanes:
            run = lanes.next_run(now=self._clock.now(), most=most)
        return run if isinstance(run, LaneRun) else run.until

    def _wake(self, most: int) -> None:
        self._on_work()

    def _wake_all(self) -> None:
        self._on_work()
