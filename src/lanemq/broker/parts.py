"""The parts of a broker that its handlers share."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lanemq.broker.config import BrokerOptions
from lanemq.broker.notices import Notices
from lanemq.broker.recording import Recording
from lanemq.broker.storage.delays import DelayDelivery
from lanemq.broker.storage.group_commit import GroupCommit, HeldPull, LogThread
from lanemq.broker.storage.parking import Parking
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.core.brokering.disk_space import LowSpace
from lanemq.core.brokering.group_offsets import GroupOffsets
from lanemq.core.brokering.lock_table import LockTable, Verdict
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.membership import ConnectionId, Membership
from lanemq.core.brokering.refusals import RefusalCounts
from lanemq.core.brokering.topic_table import TopicTable
from lanemq.core.brokering.traffic import Traffic
from lanemq.log.state import State
from lanemq.log.store import Store
from lanemq.model.figures import Distribution
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.address import Address
from lanemq.net.server import Peer
from lanemq.wire.route_bodies import SubscriptionGroupConfig


class Claim(Protocol):
    """The header fields by which a LaneMQ client names its lease; both are None from a stock client."""

    @property
    def lane_client(self) -> str | None: ...

    @property
    def lane_epoch(self) -> int | None: ...


class ClientVersion(NamedTuple):
    """The language and version of a client, as its heartbeats name them."""

    language: str
    version: int


@dataclass(slots=True)
class Counters:
    """What happened since the start; shown by the monitor and by GET_BROKER_RUNTIME_INFO."""

    refusals: RefusalCounts = field(default_factory=RefusalCounts)
    """By reason, except for requests of members that do not own the queue, which follow."""

    stale_pulls: int = 0
    """Pulls of stock clients (answered) and LaneMQ clients (refused)."""
    stale_commits: int = 0
    """Commits of stock clients; they may move an offset forward only."""
    refused_commits: int = 0
    """Commits of LaneMQ clients."""
    refused_parks: int = 0
    """Parking requests of LaneMQ clients that do not own the queue."""
    leases_granted: int = 0
    """Leases that went to a new owner; renewals do not count."""
    leases_released: int = 0
    leases_expired: int = 0
    loop_delay: Distribution = field(default_factory=Distribution)
    """Seconds by which the housekeeping's timer was late."""


@dataclass(slots=True)
class Parts:
    """Made once by `app`. The tables are used on the event loop only, so they need no locks."""

    options: BrokerOptions
    clock: Clock
    store: Store
    state: State
    thread: LogThread
    search_thread: LogThread
    """For searches by key: they take long, and must not delay what the log thread writes."""
    group_commit: GroupCommit
    notices: Notices
    advertised: Address
    topics: TopicTable
    topic_keeper: TopicKeeper
    members: Membership
    locks: LockTable
    offsets: GroupOffsets
    producers: ProducerTable
    polls: LongPolls[HeldPull]
    delays: DelayQueueCursors
    delay_delivery: DelayDelivery
    recording: Recording
    parking: Parking
    groups: dict[str, SubscriptionGroupConfig]
    """Settings of the groups that were configured; every other group has RocketMQ's defaults."""
    low_space: LowSpace
    counters: Counters = field(default_factory=Counters)
    traffic: Traffic = field(default_factory=Traffic)
    versions: dict[ConnectionId, ClientVersion] = field(default_factory=dict)
    """The clients behind the connections that sent a heartbeat."""

    def ownership(self, peer: Peer, group: str, topic: str, queue_id: int, claim: Claim) -> Verdict:
        """Whether the sender of a request owns the queue.

        A LaneMQ client names its lease in the request; a stock client is known by the heartbeat of its connection.
        """
        queue = MessageQueue(topic, self.options.name, queue_id)
        owner = claim.lane_client or self.members.client_of(ConnectionId(peer.number)) or ""
        epoch = None if claim.lane_epoch is None else Epoch(claim.lane_epoch)
        return self.locks.verdict(group, queue, owner, epoch, now=self.clock.now())

    def max_retries(self, group: str, asked: int | None) -> int | None:
        """How often a group's message is retried: as the request says, else as the group's settings say."""
        if asked is not None and asked >= 0:
            return asked
        settings = self.groups.get(group)
        return None if settings is None else settings.retry_max_times
