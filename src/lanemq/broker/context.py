"""What handlers share: tables, threads and counters. The rules are elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lanemq.broker.charges import Charges
from lanemq.broker.config import BrokerOptions
from lanemq.broker.group_queues import GroupQueues
from lanemq.broker.notices import Notices
from lanemq.broker.recording import Recording
from lanemq.broker.storage.delays import DelayDelivery
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.progress_keeper import ProgressKeeper
from lanemq.broker.storage.saved_filters import SavedFilters
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.broker.storage.unread import UnreadMessages
from lanemq.broker.waking import HeldPull, Waking
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.core.brokering.disk_space import LowSpace
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.members.group import ConnectionId
from lanemq.core.brokering.members.membership import Membership
from lanemq.core.brokering.progress_store import QueueLog
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.refusals import RefusalCounts
from lanemq.core.brokering.topic_table import TopicTable
from lanemq.core.brokering.traffic import Traffic
from lanemq.log.state.database import State
from lanemq.log.state.group_rows import GroupRows
from lanemq.log.store import Store
from lanemq.model.figures import Distribution
from lanemq.net.address import Address
from lanemq.net.serving.descriptors import DescriptorReserve
from lanemq.net.serving.loop_slices import LoopSlices
from lanemq.net.serving.outbox import Outbox
from lanemq.net.serving.server import Joining
from lanemq.net.serving.server_tls import TlsDetector
from lanemq.wire.route_bodies import SubscriptionGroupConfig


class ConnectedClient(NamedTuple):
    """The client behind a connection, as its last heartbeat says."""

    language: str
    version: int
    party: str
    """Who is charged for it (`Charges.party`)."""


@dataclass(slots=True)
class Counters:
    """What happened since the start; shown by the monitor and by GET_BROKER_RUNTIME_INFO."""

    refusals: RefusalCounts = field(default_factory=RefusalCounts)
    """By reason, except for requests of members that do not own the queue, which follow."""
    joining: Joining = field(default_factory=Joining)

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
    filters_given_up: int = 0
    """Topics of groups whose members waited in vain for a lost member with more tags."""
    loop_delay: Distribution = field(default_factory=Distribution)
    """Seconds by which the housekeeping's timer was late."""


def _admit(group: str) -> None:
    pass


def _always() -> bool:
    return True


def _no_users() -> str:
    return ""


@dataclass(slots=True, kw_only=True)
class GroupContext:
    """What the handlers of groups need: members, leases, progress. It has no log, so a coordinator has one too.

    The tables are used on the event loop only, so they need no locks.
    """

    clock: Clock
    state: GroupRows
    row_thread: DiskThread
    """For everything in `state.db`, and for indexes: a flood of changes must not delay messages."""
    slices: LoopSlices
    """For work that would hold the event loop for long."""
    queues: GroupQueues
    members: Membership
    locks: LockTable
    progress_keeper: ProgressKeeper
    recording: Recording
    groups: dict[str, SubscriptionGroupConfig]
    """Settings of the groups that were configured; every other group has RocketMQ's defaults."""
    charges: Charges
    admit: Callable[[str], None] = _admit
    """Raises `BrokerRefused` for a group that this process does not serve."""
    leads: Callable[[], bool] = _always
    """Whether this process may decide about groups now. Of several coordinators, only the leader may."""
    term: int = 0
    """The term of a coordinator that leads."""
    counters: Counters = field(default_factory=Counters)
    traffic: Traffic = field(default_factory=Traffic)
    clients: dict[ConnectionId, ConnectedClient] = field(default_factory=dict)
    """Of the connections that sent a heartbeat."""
    tls: TlsDetector | None = None
    """None: plain connections only."""
    stopping: bool = False
    """Whether this process finishes what it has accepted, and accepts no connection any more."""
    notices: Notices = field(init=False)
    saved_filters: SavedFilters = field(init=False)
    progress: ProgressTable = field(init=False)
    queue_log: QueueLog = field(init=False)

    def __post_init__(self) -> None:
        self.notices = Notices(self.members, self.slices)
        self.saved_filters = SavedFilters(self.members.filter_rows, self.state, self.row_thread, self.clock)
        self.progress, self.queue_log = self.progress_keeper.table, self.progress_keeper.queue_log


@dataclass(slots=True, kw_only=True)
class BrokerContext(GroupContext):
    """What the handlers of a broker share. Made once by `app`."""

    options: BrokerOptions
    state: State
    store: Store
    thread: DiskThread
    """For messages only."""
    search_thread: DiskThread
    """For searches by key: they take long, and must not delay what the others write."""
    group_commit: GroupCommit
    outbox: Outbox
    advertised: Address
    topics: TopicTable
    topic_keeper: TopicKeeper
    users: Callable[[], str] = _no_users
    """Names and rights of the users, as JSON without secrets; empty if there are none."""
    unread: UnreadMessages
    producers: ProducerTable
    polls: LongPolls[HeldPull]
    waking: Waking
    delays: DelayQueueCursors
    delay_delivery: DelayDelivery
    low_space: LowSpace
    reserve: DescriptorReserve
    producer_users: dict[str, str] = field(default_factory=dict)
    """Producer id → the user who sent with it first, on a broker with users."""
    in_force: Mapping[str, object] = field(default_factory=dict)
    """Values that the broker uses instead of the given options: limits that 0 stands for, the monitor's address."""
