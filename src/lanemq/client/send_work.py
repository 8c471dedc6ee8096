"""What the send engine hands to its shells, and what it remembers per queue."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from lanemq.client.send_outcomes import Outcome
from lanemq.client.send_requests import Parcel
from lanemq.client.send_tickets import Crowd
from lanemq.core.send_lane import SendBatch, SendLane
from lanemq.model.errors import Closed, ConnectFailed, LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.wire.command import Command

log = logging.getLogger(__name__)


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


@dataclass(slots=True)
class KnownBroker:
    """What the engine knows of a connection; the shell makes and ends it."""

    topic: str
    """One whose route knows the broker."""
    connected: bool = False
    failures: int = 0
    dialing: bool = False
    dial_at: int = 0


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
    waits_for: set[Crowd] = field(default_factory=set)
    """Frozen, and these calls have not ended: their callers do not know it yet."""
    needs_resume: bool = False
    """Frozen, and somebody may send on without knowing it: only a person opens the lane."""

    def concern(self, parcels: Iterable[Parcel]) -> None:
        """These were given up or turned away: notes who must hear of it before anything may pass them."""
        for parcel in parcels:
            if parcel.told or parcel.key is None:
                continue
            if not isinstance(parcel.ticket, Crowd):
                self.needs_resume = True
            elif not parcel.ticket.over:
                self.waits_for.add(parcel.ticket)

    @property
    def may_reopen(self) -> bool:
        """Frozen, but everybody concerned was told, and nothing is unanswered."""
        return self.sender.frozen is not None and not (self.needs_resume or self.waits_for) and self.sender.idle


class Mark:
    """Everything that had been accepted when it was made; what came later does not count."""

    def __init__(self, lanes: Iterable[EngineLane]) -> None:
        self._lanes = [(lane, lane.accepted) for lane in lanes]

    @property
    def settled(self) -> bool:
        return all(lane.accepted - lane.sender.open_span >= accepted for lane, accepted in self._lanes)


def closed() -> Closed:
    return Closed("this producer is closed: make a new one")


def not_reached(broker: str, error: Exception) -> LaneError:
    """Why a broker could not be dialled; logged here, the unexpected with its traceback."""
    if isinstance(error, LaneError):
        log.warning("cannot reach broker %s: %s", broker, error)
        return error
    log.error("dialling broker %s met something unexpected", broker, exc_info=error)
    return ConnectFailed(f"connecting to broker {broker!r} failed unexpectedly: {error!r}")
