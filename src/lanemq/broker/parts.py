"""The parts of a broker that its handlers share."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lanemq.broker.config import BrokerOptions
from lanemq.broker.notices import Notices
from lanemq.broker.recording import Recording
from lanemq.broker.storage.delays import DelayDelivery
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.parking import Parking
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.broker.storage.unread import UnreadMessages
from lanemq.broker.waking import HeldPull, Waking
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.core.brokering.disk_space import LowSpace
from lanemq.core.brokering.group_offsets import OFFSET_BYTES, Forgotten, GroupOffsets
from lanemq.core.brokering.lock_table import ForgottenLeases, LockTable, Verdict
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.membership import ConnectionId, Membership
from lanemq.core.brokering.quotas import GroupUse, OverQuota, Quota, Quotas
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.core.brokering.topic_table import MAX_QUEUES, TopicTable
from lanemq.core.brokering.traffic import Traffic
from lanemq.log.state.database import State
from lanemq.log.store import Store
from lanemq.model.errors import BrokerBusy, BrokerRefused, NotAllowed
from lanemq.model.figures import Distribution
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.address import Address
from lanemq.net.descriptors import DescriptorReserve
from lanemq.net.peer import Peer
from lanemq.net.server import Joining
from lanemq.net.server_tls import TlsDetector
from lanemq.net.turns import Turns
from lanemq.net.unwritten_replies import UnwrittenReplies
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import SubscriptionGroupConfig
from lanemq.wire.signing import ACCESS_KEY


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
    loop_delay: Distribution = field(default_factory=Distribution)
    """Seconds by which the housekeeping's timer was late."""


@dataclass(slots=True)
class Parts:
    """Made once by `app`. The tables are used on the event loop only, so they need no locks."""

    options: BrokerOptions
    clock: Clock
    store: Store
    state: State
    thread: DiskThread
    """For messages only."""
    row_thread: DiskThread
    """For everything in `state.db`, and for indexes: a flood of changes must not delay messages."""
    search_thread: DiskThread
    """For searches by key: they take long, and must not delay what the others write."""
    group_commit: GroupCommit
    unwritten: UnwrittenReplies
    turns: Turns
    """For work that would hold the event loop for long."""
    notices: Notices
    advertised: Address
    topics: TopicTable
    topic_keeper: TopicKeeper
    members: Membership
    locks: LockTable
    offsets: GroupOffsets
    unread: UnreadMessages
    producers: ProducerTable
    polls: LongPolls[HeldPull]
    waking: Waking
    delays: DelayQueueCursors
    delay_delivery: DelayDelivery
    recording: Recording
    parking: Parking
    groups: dict[str, SubscriptionGroupConfig]
    """Settings of the groups that were configured; every other group has RocketMQ's defaults."""
    low_space: LowSpace
    reserve: DescriptorReserve
    tls: TlsDetector | None
    """None: the broker takes plain connections only."""
    group_use: GroupUse
    quotas: Quotas = field(default_factory=Quotas)
    parties: dict[ConnectionId, str] = field(default_factory=dict)
    """The parties of the connections that sent a heartbeat (`party`)."""
    producer_users: dict[str, str] = field(default_factory=dict)
    """Producer id → the user who sent with it first, on a broker with users."""
    counters: Counters = field(default_factory=Counters)
    traffic: Traffic = field(default_factory=Traffic)
    in_force: Mapping[str, object] = field(default_factory=dict)
    """Values that the broker uses instead of the given options: limits that 0 stands for, the monitor's address."""
    versions: dict[ConnectionId, ClientVersion] = field(default_factory=dict)
    """The clients behind the connections that sent a heartbeat."""
    stopping: bool = False
    """Whether the broker finishes what it has accepted, and accepts no connection any more."""

    def ownership(self, peer: Peer, group: str, topic: str, queue_id: int, claim: Claim) -> Verdict:
        """Whether the sender of a request owns the queue.

        A LaneMQ client names its lease in the request; a stock client is known by the heartbeat of its connection.
        """
        queue = MessageQueue(topic, self.options.name, queue_id)
        owner = claim.lane_client or self.members.client_of(ConnectionId(peer.number)) or ""
        epoch = None if claim.lane_epoch is None else Epoch(claim.lane_epoch)
        return self.locks.verdict(group, queue, owner, epoch, now=self.clock.now())

    def party(self, peer: Peer, request: Command | None) -> str:
        """Who is charged for a request: its user, or its address on a broker without users."""
        if self.options.users is None or request is None:
            return f"address {peer.origin}"
        return f"user {request.ext.get(ACCESS_KEY, '')!r}"

    def use_group(self, peer: Peer, request: Command, group: str) -> None:
        """Note that a group is used; raises `BrokerRefused` if it is new and the party has too many."""
        self.use_groups(peer, request, (group,))

    def use_groups(self, peer: Peer, request: Command, groups: Collection[str]) -> None:
        """Note that groups are used; raises `BrokerRefused` if the party has too many, and then notes none of them."""
        new = [group for group in groups if group not in self.group_use]
        if new:
            self.refuse_over(self.quotas.charge_all(Quota.GROUPS, self.party(peer, request), new))
        now = self.clock.now()
        for group in groups:
            self.group_use.used(group, now)

    def charge_topic(self, peer: Peer, request: Command | None, name: str, queues: int) -> None:
        """Charge a new topic and new queues to their creator; raises `BrokerRefused` if the party created too many."""
        known, party = self.topics.get(name), self.party(peer, request)
        if known is None:
            self.refuse_over(self.quotas.charge(Quota.TOPICS, party, name))
        more = min(queues, MAX_QUEUES) - (0 if known is None else known.queues)
        over = self.quotas.add(Quota.QUEUES, party, name, more) if more > 0 else None
        if over is not None:
            self.uncharge_topic(name)
        self.refuse_over(over)

    def uncharge_topic(self, name: str) -> None:
        """Give back the charge of a topic or of queues that do not exist, or no more."""
        known = self.topics.get(name)
        if known is None:
            self.quotas.let_go(Quota.TOPICS, name)
        self.quotas.lower(Quota.QUEUES, name, 0 if known is None else known.queues)

    def charge_seats(self, peer: Peer, request: Command, count: int) -> None:
        """Charge a connection's seats in groups; raises `BrokerRefused` if it has, or its party has, too many."""
        name = f"connection {peer.number}"
        self.refuse_over(self.quotas.set(Quota.SEATS, self.party(peer, request), name, count))

    def refuse_over(self, over: OverQuota | None) -> None:
        """Raise if a quota was exceeded."""
        if over is not None:
            self.counters.refusals.add(RefusalReason.QUOTA)
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, str(over))

    def begin_row(self, peer: Peer) -> None:
        """Count a request that is answered when its rows are saved; raises if the connection has too many."""
        over = self.quotas.add(Quota.ROWS, f"connection {peer.number}", f"{peer.number}", 1)
        if over is not None:
            self.counters.refusals.add(RefusalReason.QUOTA)
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, str(over))

    def end_row(self, peer: Peer) -> None:
        self.quotas.let_go(Quota.ROWS, f"{peer.number}", 1)

    def begin_held(self, peer: Peer, request: Command, weight: int) -> OverQuota | None:
        """Count a pull that is held, as `weight` pulls; the refusal if the connection or the party holds too many."""
        over = self.quotas.add(Quota.HELD_PULLS, self.party(peer, request), f"connection {peer.number}", weight)
        if over is not None:
            self.counters.refusals.add(RefusalReason.QUOTA)
        return over

    def end_held(self, peer: Peer, weight: int) -> None:
        self.quotas.let_go(Quota.HELD_PULLS, f"connection {peer.number}", weight)

    def charge_offsets(self, peer: Peer, request: Command, group: str, more: int) -> OverQuota | None:
        """Charge what a request would add to the offsets and finished ranges of a group; the refusal if its party has
        too much."""
        wanted = self.offsets.bytes(group) + more
        over = self.quotas.set(Quota.OFFSETS, self.party(peer, request), group, wanted)
        if over is not None:
            self.counters.refusals.add(RefusalReason.QUOTA)
        return over

    def refuse_new_offsets(self, peer: Peer, request: Command, group: str, count: int) -> None:
        """Charge offsets that a group does not have yet; raises `BrokerRefused` if its party has too many."""
        over = self.charge_offsets(peer, request, group, count * OFFSET_BYTES)
        if over is not None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, str(over))

    def give_back_offsets(self, groups: Iterable[str]) -> None:
        """Charge groups for no more offsets than they have left."""
        for group in groups:
            self.quotas.lower(Quota.OFFSETS, group, self.offsets.bytes(group))

    def forget_offsets(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Remove the offsets of a deleted group or topic from memory, and what they were charged with."""
        if group is not None:
            self._free_offsets(self.offsets.forget_group(group))
        if topic is not None:
            self._free_offsets(self.offsets.forget_topic(topic))

    def _free_offsets(self, forgotten: Forgotten) -> None:
        self.give_back_offsets(forgotten.groups)
        self.turns.begin_later(forgotten.steps)

    def forget_parked(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Remove the parked lanes of a deleted group or topic."""
        self.turns.begin_later(self.parking.forget(group=group, topic=topic))

    def forget_leases(self, *, group: str | None = None, topic: str | None = None) -> Epoch:
        """Remove the leases of a deleted group or topic from memory, and what they were charged with.

        Returns the floor of the epochs, which must be saved before their rows are deleted.
        """
        if group is not None:
            self._free_leases(self.locks.forget_group(group))
        if topic is not None:
            self._free_leases(self.locks.forget_topic(topic))
        return self.locks.floor

    def _free_leases(self, forgotten: ForgottenLeases) -> None:
        for group in forgotten.groups:
            self.quotas.lower(Quota.LEASES, group, self.locks.count(group))
        if self.recording.on:  # at once: in the history, the end of a lease is before the next owner's
            self.recording.withdrawn(row for row in forgotten.steps if row is not None)
        else:
            self.turns.begin_later(forgotten.steps)

    def charge_parked(self, peer: Peer, request: Command, group: str, more: int) -> OverQuota | None:
        """Charge what a request would park more in a group; the refusal if its party has too much.

        What has left the lanes of a party's groups is given back when there is no room without it.
        """
        quotas, lanes, quota = self.quotas, self.parking.lanes, Quota.PARKED_BYTES
        party, wanted = self.party(peer, request), lanes.weight(group) + more
        over = quotas.set(quota, party, group, wanted)
        if over is not None:
            for name in quotas.names(quota, quotas.payer(quota, group) or party):
                quotas.set(quota, party, name, lanes.weight(name))
            over = quotas.set(quota, party, group, wanted)
        if over is not None:
            self.counters.refusals.add(RefusalReason.QUOTA)
        return over

    def begin_search(self, peer: Peer, request: Command) -> None:
        """Count a search; raises `BrokerBusy` if the connection or the party has too many under way."""
        over = self.quotas.add(Quota.SEARCHES, self.party(peer, request), f"connection {peer.number}", 1)
        if over is not None:
            self.counters.refusals.add(RefusalReason.QUOTA)
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, str(over))

    def end_search(self, peer: Peer) -> None:
        self.quotas.let_go(Quota.SEARCHES, f"connection {peer.number}", 1)

    def refuse_other_client(self, peer: Peer, request: Command, client_id: str, *, releases: bool) -> None:
        """Raise if a connection would release or refresh the leases of another connection's client.

        A client that has just reconnected may refresh its leases before its heartbeat, and while the broker has not
        noticed the end of its old connection: then the same user or address is enough.
        """
        connection, own = ConnectionId(peer.number), self.members.connections_of(client_id)
        if not own or connection in own:
            return
        stranger = releases or self.members.client_of(connection) is not None
        if stranger or self.party(peer, request) not in {self.parties.get(each) for each in own}:
            self.counters.refusals.add(RefusalReason.NOT_ALLOWED)
            raise NotAllowed(
                ResponseCode.NO_PERMISSION,
                f"client {client_id} is connected elsewhere: its locks can be changed on its own connection only; "
                f"send a heartbeat first, or use another client id",
            )

    def max_retries(self, group: str, asked: int | None) -> int | None:
        """How often a group's message is retried: as the request says, else as the group's settings say."""
        if asked is not None and asked >= 0:
            return asked
        settings = self.groups.get(group)
        return None if settings is None else settings.retry_max_times
