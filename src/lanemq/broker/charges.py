"""Charges: what clients take is charged to their parties, and refused beyond the quotas (`core/brokering/quotas`).

What a connection has under way is taken and given back by its count. What groups and topics have is measured where it
is kept: a name is charged with what it has and what a request adds, and afterwards with no more than it has.
"""

from collections.abc import Callable, Collection, Iterable

from lanemq.clock import Clock
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.quotas import MIN_QUEUES, GroupUse, OverQuota, Quota, Quotas
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.core.brokering.topic_table import MAX_QUEUES, TopicTable
from lanemq.model.errors import BrokerBusy, BrokerRefused
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.signing import ACCESS_KEY


class Charges:
    """Used on the event loop only."""

    def __init__(
        self,
        clock: Clock,
        refusals: RefusalCounts,
        group_use: GroupUse,
        *,
        by_user: bool,
        topics: TopicTable | None = None,
        progress: ProgressTable,
        locks: LockTable,
    ) -> None:
        self._by_user = by_user
        self._clock = clock
        self._refusals = refusals
        self.group_use = group_use
        self.quotas = Quotas()
        self._topics = topics
        self._measures: dict[Quota, Callable[[str], int]] = {
            Quota.OFFSETS: progress.offset_bytes,
            Quota.LEASES: locks.count,
            Quota.PARKED_BYTES: progress.lane_bytes,
            Quota.QUEUES: self._queues,
        }

    def party(self, peer: Peer, request: Command | None) -> str:
        """Who is charged for a request: its user, or its address on a broker without users."""
        if not self._by_user or request is None:
            return f"address {peer.origin}"
        return f"user {request.ext.get(ACCESS_KEY, '')!r}"

    def refuse(self, over: OverQuota | None) -> None:
        """Raise if a quota is exceeded: `BrokerBusy` for what passes, else `BrokerRefused`."""
        if over is None:
            return
        self._refusals.add(RefusalReason.QUOTA)
        if over.quota.value.passes:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, str(over))
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, str(over))

    # what a connection has

    def take(self, quota: Quota, peer: Peer, request: Command, count: int = 1) -> None:
        """Charge a connection, and its party, with more; raises if it is too much."""
        self.refuse(self.quotas.add(quota, self.party(peer, request), _name(peer), count))

    def take_if_free(self, quota: Quota, peer: Peer, request: Command) -> bool:
        """As `take`, for what can no longer be refused; returns whether it was charged."""
        return self.quotas.add(quota, self.party(peer, request), _name(peer)) is None

    def refuse_if_taken(self, quota: Quota, peer: Peer, request: Command) -> None:
        """Raise if `take` would. Charges nothing."""
        self.refuse(self.quotas.over_with(quota, self.party(peer, request), _name(peer)))

    def take_in_all(self, quota: Quota, peer: Peer, request: Command, count: int) -> None:
        """Charge a connection with `count` in all; raises if that is too much."""
        self.refuse(self.quotas.set(quota, self.party(peer, request), _name(peer), count))

    def give_back(self, quota: Quota, peer: Peer, count: int | None = 1) -> None:
        """Give back what a connection was charged with, or all of it."""
        self.quotas.let_go(quota, _name(peer), count)

    # what groups and topics have

    def grow(self, quota: Quota, peer: Peer, request: Command | None, name: str, more: int) -> OverQuota | None:
        """Charge what a request would add to a group or topic; the refusal, which is counted, if it is too much."""
        party, measure = self.party(peer, request), self._measures[quota]
        over = self.quotas.set(quota, party, name, measure(name) + more)
        if over is not None and quota is Quota.PARKED_BYTES:
            # What has left the lanes of its groups is given back only here.
            self.shrink(quota, self.quotas.beside(quota, party, name))
            over = self.quotas.set(quota, party, name, measure(name) + more)
        if over is not None:
            self._refusals.add(RefusalReason.QUOTA)
        return over

    def must_grow(self, quota: Quota, peer: Peer, request: Command | None, name: str, more: int) -> None:
        """As `grow`; raises `BrokerRefused` if it is too much."""
        over = self.grow(quota, peer, request, name, more)
        if over is not None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, str(over))

    def shrink(self, quota: Quota, names: Iterable[str]) -> None:
        """Charge groups or topics for no more than they have left."""
        for name in names:
            self.quotas.lower(quota, name, self._measures[quota](name))

    def create_topic(self, peer: Peer, request: Command | None, name: str, queues: int) -> None:
        """Charge a new topic or new queues; raises if they are too much. `shrink` follows if they are not created."""
        more = max(MIN_QUEUES, min(queues, MAX_QUEUES)) - self._queues(name)
        if more > 0:
            self.must_grow(Quota.QUEUES, peer, request, name, more)

    def _queues(self, topic: str) -> int:
        known = None if self._topics is None else self._topics.get(topic)
        return 0 if known is None else max(MIN_QUEUES, known.queues)

    def use_groups(self, peer: Peer, request: Command, groups: Collection[str]) -> None:
        """Note that groups are used; raises `BrokerRefused` if the party has too many, and then notes none of them."""
        new = [group for group in groups if group not in self.group_use]
        if new:
            party = self.party(peer, request)
            self.refuse(self.quotas.over(Quota.GROUPS, party, self.quotas.charged(Quota.GROUPS, party) + len(new)))
            for group in new:
                self.quotas.set(Quota.GROUPS, party, group, 1)
        now = self._clock.now()
        for group in groups:
            self.group_use.used(group, now)

    def forget_group(self, group: str) -> None:
        self.group_use.forget(group)
        self.quotas.let_go(Quota.GROUPS, group)


def _name(peer: Peer) -> str:
    return f"connection {peer.number}"
