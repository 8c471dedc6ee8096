"""A scheduler whose runs a program takes without waiting, such as a front that hands them to its own clients."""

from collections.abc import Callable

from lanemq.client.consumer.turns.scheduler import MessageRun, Scheduler
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.runs import LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.wire.lane_bodies import FrontClientsBody


class TakingScheduler(Scheduler):
    """Calls `on_work`, from any thread and with the mutex held, whenever there may be a run to take."""

    def __init__(self, lanes: LaneScheduler[Message], clock: Clock, on_work: Callable[[], None]) -> None:
        super().__init__(lanes, clock)
        self._on_work = on_work
        self._taken: dict[tuple[MessageQueue, str | None], str] = {}
        self._clients = FrontClientsBody()

    def take_now(self, most: int) -> MessageRun | Millis | None:
        """A run of at most so many messages; or when a held lane may run again, None if none is held."""
        with self as lanes:
            run = lanes.next_run(now=self._clock.now(), most=most)
        return run if isinstance(run, LaneRun) else run.until

    def handed_to(self, run: MessageRun, client: str) -> None:
        """Notes who runs a lane; an empty name ends it."""
        if client:
            self._taken[run.queue, run.key] = client
        else:
            self._taken.pop((run.queue, run.key), None)

    def now_has(self, clients: FrontClientsBody) -> None:
        """Notes the clients that there are."""
        self._clients = clients

    def client_of(self, queue: MessageQueue, key: str | None) -> str:
        return self._taken.get((queue, key), "")

    def clients(self) -> FrontClientsBody | None:
        return self._clients

    def _wake(self, most: int) -> None:
        self._on_work()

    def _wake_all(self) -> None:
        self._on_work()
