"""What the send engine hands to its shells, and what it remembers per queue."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from lanemq.client.producer.outcomes import Outcome
from lanemq.client.producer.requests import Parcel
from lanemq.client.producer.waiters import Crowd
from lanemq.core.sending.batch import SendBatch
from lanemq.core.sending.frozen_keys import Freeze, FrozenKeys
from lanemq.core.sending.send_lane import SendLane
from lanemq.model.errors import Closed, ConnectFailed, LaneError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""How exact deadlines are. Idle ticks cost nothing worth counting; waking the keeper for every send would."""

CLOSE_SPARE_SECONDS = 1.0
"""How long `close` waits beyond the deadline of the youngest message: the keeper is not that exact."""

HEARTBEAT_MILLIS = 30_000
"""RocketMQ's ClientConfig.heartbeatBrokerInterval; brokers close connections that are silent for 120 s."""


@dataclass(slots=True, eq=False)
class SendRequest:
    """One batch on its way. A batch that is sent again is a new request with the same command."""

    lane: "EngineLane"
    batch: SendBatch[Parcel]
    command: Command
    sent_at: Millis

    @property
    def broker(self) -> str:
        return self.lane.queue.broker


@dataclass(slots=True)
class Work:
    """What the shell must do: write requests in this order, then tell outcomes in this order."""

    requests: list[SendRequest] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    stale_topics: list[str] = field(default_factory=list)
    hang_up: list[str] = field(default_factory=list)
    """Brokers that do not answer: close the connection, which sends everything again over a new one."""


NO_WORK = Work()


@dataclass(slots=True, eq=False)
class EngineLane:
    """One queue: its lane, and what the engine remembers beside it."""

    queue: MessageQueue
    checks_stamps: bool
    sender: SendLane[Parcel]
    under_way: dict[int, SendRequest] = field(default_factory=dict)
    """By first sequence; the newest attempt of each batch."""
    built: dict[int, Command] = field(default_factory=dict)
    """The requests of unanswered batches: a repetition must be the same bytes."""
    gathered: int = 0
    gathered_bytes: int = 0
    """Messages that wait and were never sent."""
    repeats: bool = False
    """Batches wait to be sent again; they go before anything that gathered."""
    linger_until: int = 0
    last_error: LaneError | None = None
    creates: bool = False
    """Its newest route is provisional: the topic comes into being by the first message."""
    accepted: int = 0
    """How many messages it was ever given."""
    recovering: int = 0
    """So many of those that wait were sent before, in an epoch that is over; they do not wait for company."""
    freeze: Freeze[Crowd] | None = None
    """The whole queue is frozen; the same time as `sender.frozen`."""
    frozen_keys: FrozenKeys[Crowd] = field(default_factory=FrozenKeys)

    def gather_anew(self) -> None:
        """Messages left the middle of the line, or came back to it."""
        waiting = self.sender.waiting()
        self.gathered = len(waiting)
        self.gathered_bytes = sum([parcel.size for parcel in waiting])
        self.recovering = min(self.recovering, self.gathered)

    def forget_answered(self) -> None:
        """Requests that no answer is expected for are under way no more."""
        flying = self.sender.in_flight()
        self.under_way = {first: request for first, request in self.under_way.items() if first in flying}

    def forget_requests(self) -> None:
        """The epoch is over, and with it all its requests."""
        self.under_way.clear()
        self.built.clear()

    def is_overdue(self, now: Millis, request_millis: float) -> bool:
        """A broker that does not check stamps would store a repetition twice: there, only patience helps."""
        if not self.checks_stamps or not self.under_way:
            return False
        return now - min(request.sent_at for request in self.under_way.values()) >= request_millis


class Mark:
    """Everything that had been accepted when it was made; what came later does not count."""

    def __init__(self, lanes: Iterable[EngineLane]) -> None:
        self._lanes = [(lane, lane.accepted) for lane in lanes]

    @property
    def settled(self) -> bool:
        return all(lane.accepted - lane.sender.open_span >= accepted for lane, accepted in self._lanes)


def buffer_full(size: int, seconds: float) -> RequestTimedOut:
    return RequestTimedOut(
        f"the buffer of {size} bytes stayed full for {seconds:g} s: the broker is slower than this producer"
    )


def closed() -> Closed:
    return Closed("this producer is closed: make a new one")


def not_reached(broker: str, error: Exception) -> LaneError:
    """Why a broker could not be dialled; logged here, the unexpected with its traceback."""
    if isinstance(error, LaneError):
        log.warning("cannot reach broker %s: %s", broker, error)
        return error
    log.error("dialling broker %s met something unexpected", broker, exc_info=error)
    return ConnectFailed(f"connecting to broker {broker!r} failed unexpectedly: {error!r}")
