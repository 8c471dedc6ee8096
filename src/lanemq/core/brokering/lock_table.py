"""The lock table: which member may consume which queue for a group, and until when.

Invariant: a group's queue has at most one live owner, and epochs only grow. Epochs make a wrong guess harmless: an
owner that was frozen and wakes up after its queue was granted to another still assumes its lease, but everything that
it sends carries the smaller epoch, and `verdict` recognises it.

When the epoch grows:
  1. the queue was never owned, or its last owner released it: the next owner gets a new epoch, even if it is the same
     client, so that a late release of the former lease cannot end the new one;
  2. another owner takes over an expired lease: new epoch;
  3. the owner renews, even late, and no other was granted the queue in between: the epoch stays;
  4. a topic or a group is deleted: its leases are removed (`forget_topic`, `forget_group`), and every new owner's
     epoch is above the highest one that was ever granted until then.

A lease is live while `now < expires_at`. Stock RocketMQ clients use their lock for 30 s without asking, so theirs lives
60 s and survives a lost connection. LaneMQ clients choose the length of their lease. It ends early when their
connection is lost, but not before they certainly start no more turns (`keep_alive`).

The caller must save `LockGrant.changes` before it answers: an epoch that was answered and then lost could be given out
twice.

A deleted group or topic may have a hundred thousand leases. They end at once, because nothing leads to them any more;
what they occupy is freed in steps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple, TypeAlias

from lanemq.core.brokering.keep_alive import KeepAlives, keep_alive_deadline
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis

STOCK_LEASE_MS = Millis(60_000)
"""RocketMQ: `RebalanceLockManager`, `REBALANCE_LOCK_MAX_LIVE_TIME`."""

MIN_LEASE_MS = Millis(500)
"""The shortest lease that a LaneMQ client gets, whatever it asks for."""
DISCONNECT_GRACE_MS = Millis(500)
"""How long a LaneMQ client's leases outlive its connection at least; longer while the client may still start turns
(`keep_alive`). Short: a client that reconnects loses its queues. Long: take-overs after a crash are slow."""
MAX_LOOKS = 2_000
"""Leases that one call of `expire` looks at; each takes about two microseconds."""

NO_OWNER = ""
NO_EPOCH = Epoch(0)


class Lease(NamedTuple):
    """The ownership of one queue by one member."""

    queue: MessageQueue
    owner: str
    epoch: Epoch
    expires_at: Millis
    changed: bool = False
    """Whether the epoch is new: the owner must read its start offset again before the first message."""


class Refusal(NamedTuple):
    """A queue that stays with its holder, at least for `remaining` unless the holder releases it."""

    queue: MessageQueue
    holder: str
    remaining: Millis


class SavedLease(NamedTuple):
    """The saved state of one queue of one group. `owner` is empty after a release."""

    group: str
    queue: MessageQueue
    owner: str
    epoch: Epoch
    lease_ms: Millis
    stock: bool


class LockGrant(NamedTuple):
    """The result of one lock request. A partial grant is a success, as in RocketMQ."""

    granted: tuple[Lease, ...]
    refused: tuple[Refusal, ...]
    changes: tuple[SavedLease, ...]
    """The rows to save before the answer is sent. Empty for a plain renewal."""
    serial: int = 0
    """The serial that keep-alives name (`keep_alive`)."""


class ForgottenLeases(NamedTuple):
    """What a deletion has removed from the table."""

    groups: tuple[str, ...]
    """The groups that had a lease."""
    steps: Iterator[SavedLease | None]
    """Frees the memory, one lease in each step, and yields the lease if it had an owner. The table may change in
    between."""


@dataclass(frozen=True, slots=True)
class Current:
    """The client is the last owner. Its lease may have expired, but the queue was granted to no other since."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stale:
    """The client is not the owner. `holder` is empty if the queue has no live owner."""

    holder: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Unowned:
    """The queue has no owner, and the client claims no lease."""


Verdict: TypeAlias = Current | Stale | Unowned


class _Entry:
    """The mutable state behind one `SavedLease`.

    `epoch` never decreases. `owner` is NO_OWNER if and only if the lease was released or never granted.
    """

    __slots__ = (
        "epoch", "expires_at", "group", "keep_alive_deadline", "keep_alive_timeout", "lease_ms",
        "owner", "queue", "serial", "stock", "wake_at",
    )  # fmt: skip

    def __init__(self, group: str, queue: MessageQueue, epoch: Epoch) -> None:
        self.group = group
        self.queue = queue
        self.owner = NO_OWNER
        self.epoch = epoch
        self.expires_at = Millis(0)
        self.lease_ms = Millis(0)
        self.stock = False
        self.keep_alive_timeout = Millis(0)
        """How long after a request the owner starts turns."""
        self.keep_alive_deadline = Millis(0)
        """When it stops, keep-alives aside. Never moves back while the owner stays the same."""
        self.serial = 0
        """The owner's serial at its last request for this queue; 0 if that was before the broker's start."""
        self.wake_at: Millis | None = None
        """The entry's time in the heap, never after `expires_at`; None once `expire` returned the lease."""

    def live(self, now: Millis) -> bool:
        return now < self.expires_at

    def lease(self, *, changed: bool = False) -> Lease:
        return Lease(self.queue, self.owner, self.epoch, self.expires_at, changed)

    def row(self) -> SavedLease:
        return SavedLease(self.group, self.queue, self.owner, self.epoch, self.lease_ms, self.stock)


_NO_TOPICS: dict[str, dict[MessageQueue, _Entry]] = {}


class LockTable:
    """All leases of one broker."""

    def __init__(self, stock_lease_ms: int = STOCK_LEASE_MS, first_serial: int = 1) -> None:
        self._stock_lease_ms = Millis(stock_lease_ms)
        self.floor = NO_EPOCH
        """At least the highest epoch of any removed lease; every new owner's epoch is above it."""
        self._highest = NO_EPOCH
        """The highest epoch that was ever granted."""
        self._groups: dict[str, dict[str, dict[MessageQueue, _Entry]]] = {}
        """Group → topic → queue → its lease; nothing is empty."""
        self._groups_of: dict[str, dict[str, None]] = {}
        """Topic → the groups with leases in it, so that its deletion costs by what it had. While a forgotten group is
        being freed, it may still be here."""
        self._counts: dict[str, int] = {}
        """Group → how many leases it has."""
        # Owner → its entries, so that a disconnect touches no others; also forgotten ones that are not freed yet.
        self._by_owner: dict[str, dict[tuple[str, MessageQueue], _Entry]] = {}
        self._keep_alives = KeepAlives(first_serial)
        # Renewals do not change the heap: an item that is due early is put back with the lease's real end.
        self._ends: list[tuple[Millis, str, MessageQueue]] = []

    @property
    def highest_epoch(self) -> Epoch:
        """The highest epoch that was ever granted, or may have been."""
        return max(self._highest, self.floor)

    def acquire(
        self,
        group: str,
        queues: Iterable[MessageQueue],
        owner: str,
        *,
        lease: Millis | None,
        keep_alive_timeout: Millis | None = None,
        now: Millis,
    ) -> LockGrant:
        """Grant or renew every queue that no other member holds.

        `lease` is None for a stock client; longer ones are limited to the stock lease.
        `keep_alive_timeout` is how long after this request the owner starts turns; None: the whole lease.
        """
        if owner == NO_OWNER:
            raise InvalidOption("a lock request without a client id was refused: send a client id")
        if lease is not None and lease <= 0:
            raise InvalidOption(f"a lease of {lease} ms was refused: ask for 1 ms or more")
        lease_ms = self._stock_lease_ms if lease is None else min(lease, self._stock_lease_ms)
        timeout = lease_ms if keep_alive_timeout is None else min(keep_alive_timeout, lease_ms)
        granted: list[Lease] = []
        refused: list[Refusal] = []
        changes: list[SavedLease] = []
        serial = 0
        for queue in queues:
            entry = self._find(group, queue) or self._add(group, queue, self.floor)
            if entry.owner != owner and entry.live(now):
                refused.append(Refusal(queue, entry.owner, Millis(entry.expires_at - now)))
                continue
            changed = entry.owner != owner
            if changed:
                self._hand_over(entry, owner)
            if changed or entry.lease_ms != lease_ms or entry.stock != (lease is None):
                entry.lease_ms, entry.stock = lease_ms, lease is None
                changes.append(entry.row())
            self._extend(entry, Millis(now + lease_ms))
            self._extend_deadline(entry, timeout, now)
            # Not before a queue is granted: an owner without leases has no serial.
            entry.serial = serial = serial or self._keep_alives.serial(owner)
            granted.append(entry.lease(changed=changed))
        return LockGrant(tuple(granted), tuple(refused), tuple(changes), serial)

    def raise_floor(self, floor: Epoch) -> None:
        """Grant only epochs above this one from now on: it was granted by somebody who is not known here."""
        self.floor = max(self.floor, floor)
        self._highest = max(self._highest, floor)

    def count_new(self, group: str, queues: Iterable[MessageQueue]) -> int:
        """How many of the queues the group never had a lease of."""
        return sum(self._find(group, queue) is None for queue in set(queues))

    def count(self, group: str) -> int:
        """How many leases of a group are remembered, those that ended included."""
        return self._counts.get(group, 0)

    def forget_group(self, group: str) -> ForgottenLeases:
        """Remove the leases of a group that is gone; its rows may be deleted from disk once `floor` is saved."""
        gone = self._groups.pop(group, {})
        if not gone:
            return ForgottenLeases((), iter(()))
        del self._counts[group]
        self.floor = self._highest
        return ForgottenLeases((group,), self._free_group(group, gone))

    def forget_topic(self, topic: str) -> ForgottenLeases:
        """Remove the leases of a deleted topic; their rows may be deleted from disk once `floor` is saved.

        With their old epochs, the owners would continue in a new topic of that name at the offset where the old one
        ended, and skip everything before it.
        """
        gone: dict[str, dict[MessageQueue, _Entry]] = {}
        for group in self._groups_of.pop(topic, ()):
            topics = self._groups.get(group, {})
            held = topics.pop(topic, None)
            if held is None:
                continue
            gone[group] = held
            self._counts[group] -= len(held)
            if not topics:
                del self._groups[group], self._counts[group]
        if gone:
            self.floor = self._highest
        return ForgottenLeases(tuple(gone), self._free(list(gone.values())))

    def _free_group(self, group: str, gone: dict[str, dict[MessageQueue, _Entry]]) -> Iterator[SavedLease | None]:
        while gone:
            topic, held = gone.popitem()
            if topic not in self._groups.get(group, {}):
                groups = self._groups_of.get(topic, {})
                groups.pop(group, None)
                if not groups:
                    self._groups_of.pop(topic, None)
            yield from self._free([held])

    def _free(self, gone: list[dict[MessageQueue, _Entry]]) -> Iterator[SavedLease | None]:
        while gone:
            held = gone.pop()
            while held:
                _, entry = held.popitem()
                self._disown(entry)
                yield entry.row() if entry.owner != NO_OWNER else None

    def release(
        self, group: str, queues: Iterable[MessageQueue], owner: str, *, epoch: Epoch | None, now: Millis
    ) -> tuple[SavedLease, ...]:
        """End leases of the owner; returns the rows to save.

        A LaneMQ client names the epoch that it releases. For a stock client the client id alone decides.
        """
        released = []
        for queue in queues:
            entry = self._find(group, queue)
            if entry is None or entry.owner != owner or epoch not in (None, entry.epoch):
                continue
            self._disown(entry)
            entry.owner = NO_OWNER
            entry.expires_at = min(entry.expires_at, now)
            released.append(entry.row())
        return tuple(released)

    def keep_alive(self, owner: str, serial: int, *, now: Millis) -> bool:
        """Whether the owner may continue starting turns in what it was granted under the serial. Extends no lease."""
        return self._keep_alives.keep_alive(owner, serial, now=now)

    def disconnected(self, owner: str, *, grace: Millis, now: Millis) -> Iterator[tuple[str, Lease] | None]:
        """Shorten a LaneMQ owner's leases: they end when it certainly starts no more turns, at least `grace` from now.

        Each step takes one lease, because an owner may have a hundred thousand, and yields its group and the lease if
        it was shortened. The table may change between two steps. A lease that is renewed in between keeps its length,
        and one that is not reached yet only ends later than it could. So that the owner does not start turns in a lease
        that another step has shortened, the first step makes it renew its leases before its next keep-alive counts.

        A renewal in time undoes it. The owner may not know that its connection is lost, so it continues until its
        keep-alive deadline. Stock clients use their locks in any case, so their leases do not change.
        """
        own = tuple(self._by_owner.get(owner, {}).values())
        if not own:
            return
        self._keep_alives.cut(owner)
        cut, earliest = self._keep_alives.serial(owner), Millis(now + grace)
        for entry in own:
            shortened = None
            if entry.owner == owner and entry.serial < cut and not entry.stock and self._knows(entry):
                stops = self._keep_alives.until(owner, entry.keep_alive_timeout, entry.keep_alive_deadline)
                end = max(earliest, stops)
                if entry.expires_at > end:
                    entry.expires_at = end
                    self._watch(entry)
                    shortened = (entry.group, entry.lease())
            yield shortened

    def verdict(self, group: str, queue: MessageQueue, owner: str, epoch: Epoch | None, *, now: Millis) -> Verdict:
        """Whether a pull or commit comes from the queue's owner.

        With an epoch (LaneMQ), only owner and epoch of the last grant are Current. That grant may have expired: while
        the queue was granted to no other, its commits are harmless. A release ends the epoch for good.
        Without an epoch (stock), the client id alone decides, and a queue without a live owner is Unowned.
        """
        entry = self._find(group, queue)
        if entry is None:
            return Unowned() if epoch is None else Stale(NO_OWNER, Epoch(0))
        if entry.owner == owner and epoch in (None, entry.epoch):
            return Current(entry.epoch)
        if entry.live(now):
            return Stale(entry.owner, entry.epoch)
        return Unowned() if epoch is None else Stale(NO_OWNER, entry.epoch)

    def latest(self, group: str, queue: MessageQueue) -> Lease | None:
        """The last lease of a queue, live or not."""
        entry = self._find(group, queue)
        return entry.lease() if entry is not None else None

    def holds_any(self, group: str, *, now: Millis) -> bool:
        """Whether the group has a live lease, so it consumes in order; decides about its dead letters (see `delay`)."""
        return any(entry.live(now) for entry in self._entries(group))

    def has_owner(self, group: str) -> bool:
        """Whether a member of the group owns a queue, or owned it last and may come back to continue (`Current`)."""
        return any(entry.owner != NO_OWNER for entry in self._entries(group))

    def groups(self) -> tuple[str, ...]:
        """The groups that ever had a lease and are not forgotten."""
        return tuple(self._groups)

    def owned_topics(self, group: str) -> set[str]:
        """The topics of the queues that have an owner, or had one that may come back to continue."""
        topics = self._groups.get(group, _NO_TOPICS)
        return {topic for topic, held in topics.items() if any(entry.owner != NO_OWNER for entry in held.values())}

    def expire(self, *, now: Millis) -> tuple[tuple[str, Lease], ...]:
        """Groups and leases that expired, each once. Their queues have been free since their time, reported or not.

        Each call looks at a limited number of leases: a client may have a hundred thousand, which end together.
        """
        ended = []
        for _ in range(MAX_LOOKS):
            if not self._ends or self._ends[0][0] > now:
                break
            wake_at, group, queue = self._ends[0]
            entry = self._find(group, queue)
            if entry is not None and entry.wake_at == wake_at and entry.owner != NO_OWNER:
                if entry.expires_at > wake_at:
                    entry.wake_at = entry.expires_at
                    heapreplace(self._ends, (entry.expires_at, group, queue))
                    continue
                ended.append((group, entry.lease()))
            heappop(self._ends)
            if entry is not None and entry.wake_at == wake_at:
                entry.wake_at = None
        return tuple(ended)

    def restore(self, rows: Iterable[SavedLease], *, floor: Epoch = NO_EPOCH, now: Millis) -> None:
        """Load saved leases and give each its full length again.

        The owner may still be working and could not renew while the broker was down. Without this, the first other
        member that asks would share the queue with it.
        """
        self.raise_floor(floor)
        for row in rows:
            entry = self._find(row.group, row.queue) or self._add(row.group, row.queue, NO_EPOCH)
            self._disown(entry)
            entry.owner, entry.epoch = row.owner, max(entry.epoch, row.epoch)
            self._highest = max(self._highest, entry.epoch)
            entry.lease_ms, entry.stock = row.lease_ms, row.stock
            if row.owner != NO_OWNER:
                self._by_owner.setdefault(row.owner, {})[row.group, row.queue] = entry
                self._extend(entry, Millis(now + row.lease_ms))
                self._extend_deadline(entry, row.lease_ms, now)  # its own timeout is not saved

    def in_steps(self, group: str | None, *, now: Millis) -> Iterator[tuple[str, Lease | None]]:
        """The live leases of a group, or of all groups; None in place of every lease that has ended.

        The table may change in between.
        """
        for name in tuple(self._groups) if group is None else (group,):
            for entry in tuple(self._entries(name)):
                yield name, entry.lease() if entry.live(now) else None

    def snapshot(self, *, now: Millis) -> dict[str, tuple[Lease, ...]]:
        """The live leases of every group, for operators."""
        return {
            group: tuple(
                entry.lease() for entry in sorted(self._entries(group), key=lambda each: each.queue) if entry.live(now)
            )
            for group in self._groups
        }

    def _find(self, group: str, queue: MessageQueue) -> _Entry | None:
        held = self._groups.get(group, _NO_TOPICS).get(queue.topic)
        return None if held is None else held.get(queue)

    def _knows(self, entry: _Entry) -> bool:
        """Whether a lease has not been forgotten."""
        return self._find(entry.group, entry.queue) is entry

    def _entries(self, group: str) -> Iterator[_Entry]:
        """All of a group."""
        return chain.from_iterable(held.values() for held in self._groups.get(group, _NO_TOPICS).values())

    def _add(self, group: str, queue: MessageQueue, epoch: Epoch) -> _Entry:
        topics = self._groups.setdefault(group, {})
        held = topics.get(queue.topic)
        if held is None:
            held = topics[queue.topic] = {}
            self._groups_of.setdefault(queue.topic, {})[group] = None
        self._counts[group] = self._counts.get(group, 0) + 1
        entry = held[queue] = _Entry(group, queue, epoch)
        return entry

    def _hand_over(self, entry: _Entry, owner: str) -> None:
        self._disown(entry)
        entry.owner = owner
        entry.epoch = Epoch(max(entry.epoch, self.floor) + 1)
        self._highest = max(self._highest, entry.epoch)
        entry.keep_alive_deadline = Millis(0)
        self._by_owner.setdefault(owner, {})[entry.group, entry.queue] = entry

    def _disown(self, entry: _Entry) -> None:
        own, key = self._by_owner.get(entry.owner), (entry.group, entry.queue)
        if own is None or own.get(key) is not entry:
            return  # it has no owner, or it was forgotten, and its owner has a new lease of that queue
        del own[key]
        if not own:
            del self._by_owner[entry.owner]
            self._keep_alives.forget(entry.owner)

    def _extend_deadline(self, entry: _Entry, timeout: Millis, now: Millis) -> None:
        entry.keep_alive_timeout = timeout
        entry.keep_alive_deadline = max(entry.keep_alive_deadline, keep_alive_deadline(now, timeout))

    def _extend(self, entry: _Entry, until: Millis) -> None:
        if until > entry.expires_at:
            entry.expires_at = until
        if entry.wake_at is None or entry.wake_at > entry.expires_at:
            self._watch(entry)

    def _watch(self, entry: _Entry) -> None:
        entry.wake_at = entry.expires_at
        heappush(self._ends, (entry.expires_at, entry.group, entry.queue))
