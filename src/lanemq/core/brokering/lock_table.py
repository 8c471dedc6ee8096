"""Who may consume which queue for a group, and until when.

The rule guarded here: per group and queue there is at most one live owner, and epochs only grow. The epoch is
what makes a wrong guess harmless: a frozen owner that wakes after its queue was given away still believes in
its lease, but everything it sends carries the smaller epoch, and `verdict` tells it apart.

When the epoch grows:
  1. the queue was never owned, or its last owner released it: the next owner gets a new epoch, even if it is
     the same client, so that a late release of the former lease cannot end the new one;
  2. another owner takes over an expired lease: new epoch;
  3. the owner asks again, even late, and nobody came between: the epoch stays, its work is still its own;
  4. a deleted topic's leases are forgotten (`forget_topic`), but not how high they were: whoever takes a queue of
     a new topic of that name gets a higher epoch than anybody had in the old one.

A lease is live while `now < expires_at`. Stock RocketMQ clients use their lock for 30 s without asking, so
theirs lives 60 s and survives a lost connection. LaneMQ clients ask for the lease they want, and it ends early
when their connection is gone, but not before they certainly start nothing any more (`keep_alive`).

The table does not know connections, topics or disks. `LockGrant.changes` must be on disk before the answer
leaves: an epoch that was answered and then forgotten could be given out twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple, TypeAlias

from lanemq.core.brokering.keep_alive import KeepAlives, keep_alive_deadline
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis

STOCK_LEASE_MS = Millis(60_000)
"""RocketMQ: `RebalanceLockManager`, `REBALANCE_LOCK_MAX_LIVE_TIME`."""

NOBODY = ""
NO_EPOCH = Epoch(0)


class Lease(NamedTuple):
    """One queue in one member's hands."""

    queue: MessageQueue
    owner: str
    epoch: Epoch
    expires_at: Millis
    changed: bool = False
    """True if the epoch is new: the owner must read its start offset again before the first message."""


class Refusal(NamedTuple):
    """A queue that stays with its holder; asking again before `remaining` has passed is in vain."""

    queue: MessageQueue
    holder: str
    remaining: Millis


class LeaseRow(NamedTuple):
    """What must survive a restart about one queue of one group. `owner` is empty after a release."""

    group: str
    queue: MessageQueue
    owner: str
    epoch: Epoch
    lease_ms: Millis
    stock: bool


class LockGrant(NamedTuple):
    """The answer to one batch of queues. A partial grant is a success, as in RocketMQ."""

    granted: tuple[Lease, ...]
    refused: tuple[Refusal, ...]
    changes: tuple[LeaseRow, ...]
    """To be persisted before the answer is sent. Empty for a plain renewal."""
    serial: int = 0
    """To be named in keep-alives (`keep_alive`)."""


@dataclass(frozen=True, slots=True)
class Current:
    """The asker is the last owner. Its lease may have run out, but the queue was given to nobody since."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stale:
    """The asker is not the owner. `holder` is empty if the queue has none at present."""

    holder: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Unowned:
    """Nobody owns the queue and the asker claims no lease: nothing to protect."""


Verdict: TypeAlias = Current | Stale | Unowned


class _Entry:
    """The mutable state behind one `LeaseRow`.

    `epoch` never falls. `owner` is NOBODY if and only if the lease was released or never given.
    """

    __slots__ = (
        "epoch", "expires_at", "group", "keep_alive_deadline", "keep_alive_timeout", "lease_ms",
        "owner", "queue", "stock", "wake_at",
    )  # fmt: skip

    def __init__(self, group: str, queue: MessageQueue, epoch: Epoch) -> None:
        self.group = group
        self.queue = queue
        self.owner = NOBODY
        self.epoch = epoch
        self.expires_at = Millis(0)
        self.lease_ms = Millis(0)
        self.stock = False
        self.keep_alive_timeout = Millis(0)
        """How long the owner starts turns after a request."""
        self.keep_alive_deadline = Millis(0)
        """It starts none after this, keep-alives apart. Never moves back while the owner stays the same."""
        self.wake_at: Millis | None = None
        """When the table looks at this lease next, never after `expires_at`; None once its end was told."""

    def live(self, now: Millis) -> bool:
        return now < self.expires_at

    def lease(self, *, changed: bool = False) -> Lease:
        return Lease(self.queue, self.owner, self.epoch, self.expires_at, changed)

    def row(self) -> LeaseRow:
        return LeaseRow(self.group, self.queue, self.owner, self.epoch, self.lease_ms, self.stock)


class LockTable:
    """All leases of one broker."""

    def __init__(self, stock_lease_ms: int = STOCK_LEASE_MS, first_serial: int = 1) -> None:
        self._stock_lease_ms = Millis(stock_lease_ms)
        self.floor = NO_EPOCH
        """No forgotten lease had a higher epoch; every queue that is new here begins above it."""
        self._groups: dict[str, dict[MessageQueue, _Entry]] = {}
        # Exactly the entries whose `owner` it is, so that a disconnect touches nothing else.
        self._by_owner: dict[str, dict[tuple[str, MessageQueue], _Entry]] = {}
        self._keep_alives = KeepAlives(first_serial)
        # Renewals leave the heap alone: an item that comes up early is put back with the lease's true end.
        self._ends: list[tuple[Millis, str, MessageQueue]] = []

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
        """Take or renew every queue that no other member holds.

        `lease` is None for a stock client. One longer than the stock lease is cut to it; `expires_at` tells.
        `keep_alive_timeout` is for how long the owner starts turns after this request; None: the whole lease.
        """
        if owner == NOBODY:
            raise InvalidOption("a lock request without a client id was refused: send a client id")
        if lease is not None and lease <= 0:
            raise InvalidOption(f"a lease of {lease} ms was refused: ask for 1 ms or more")
        lease_ms = self._stock_lease_ms if lease is None else min(lease, self._stock_lease_ms)
        timeout = lease_ms if keep_alive_timeout is None else min(keep_alive_timeout, lease_ms)
        held = self._groups.get(group, {})
        granted: list[Lease] = []
        refused: list[Refusal] = []
        changes: list[LeaseRow] = []
        for queue in queues:
            entry = held.get(queue)
            if entry is None:
                held = self._groups.setdefault(group, held)
                entry = held[queue] = _Entry(group, queue, self.floor)
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
            granted.append(entry.lease(changed=changed))
        serial = self._keep_alives.serial(owner) if granted else 0
        return LockGrant(tuple(granted), tuple(refused), tuple(changes), serial)

    def release(
        self, group: str, queues: Iterable[MessageQueue], owner: str, *, epoch: Epoch | None, now: Millis
    ) -> tuple[LeaseRow, ...]:
        """End the owner's leases; the rows returned are those that ended, to be persisted.

        A LaneMQ client names the epoch it releases. A stock client cannot, so its client id alone decides.
        """
        held = self._groups.get(group, {})
        released = []
        for queue in queues:
            entry = held.get(queue)
            if entry is None or entry.owner != owner or epoch not in (None, entry.epoch):
                continue
            self._disown(entry)
            entry.owner = NOBODY
            entry.expires_at = min(entry.expires_at, now)
            released.append(entry.row())
        return tuple(released)

    def forget_topic(self, topic: str) -> tuple[LeaseRow, ...]:
        """End the leases of a deleted topic; its rows may go from the disk once `floor` is on it.

        Its owners stand where the deleted queue ended: with the old epoch they would read on there in a new topic
        of the same name, and pass over everything before.
        """
        gone = [entry for held in self._groups.values() for queue, entry in list(held.items()) if queue.topic == topic]
        for entry in gone:
            self._disown(entry)
            self.floor = max(self.floor, entry.epoch)
            del self._groups[entry.group][entry.queue]
            if not self._groups[entry.group]:
                del self._groups[entry.group]
        return tuple(entry.row() for entry in gone if entry.owner != NOBODY)

    def keep_alive(self, owner: str, serial: int, *, now: Millis) -> bool:
        """Whether the owner may go on starting turns in what it was granted under the serial. Extends no lease."""
        return self._keep_alives.keep_alive(owner, serial, now=now)

    def disconnected(self, owner: str, *, grace: Millis, now: Millis) -> tuple[tuple[str, Lease], ...]:
        """Let a LaneMQ owner's leases end as soon as it certainly starts no more turns, and not before `grace` from
        now; a renewal in time undoes it.

        The groups and leases whose end came nearer. The owner may not know that its connection is lost, so what it
        was told last is what it goes by. Stock clients use their locks whatever happens, so theirs run on.
        """
        shortened = []
        for entry in self._by_owner.get(owner, {}).values():
            end = max(
                Millis(now + grace), self._keep_alives.until(owner, entry.keep_alive_timeout, entry.keep_alive_deadline)
            )
            if entry.stock or entry.expires_at <= end:
                continue
            entry.expires_at = end
            self._watch(entry)
            shortened.append((entry.group, entry.lease()))
        if shortened:
            self._keep_alives.cut(owner)
        return tuple(shortened)

    def verdict(self, group: str, queue: MessageQueue, owner: str, epoch: Epoch | None, *, now: Millis) -> Verdict:
        """Whether a pull or commit comes from the queue's owner.

        With an epoch (LaneMQ), doubt means no: only owner and epoch of the last grant are Current. That grant
        may have expired: as long as nobody was granted the queue since, accepting the offset of work that was
        done harms nobody. A release ends the epoch for good.
        Without an epoch (stock), the client id alone decides, and a queue without live owner is Unowned.
        """
        entry = self._groups.get(group, {}).get(queue)
        if entry is None:
            return Unowned() if epoch is None else Stale(NOBODY, Epoch(0))
        if entry.owner == owner and epoch in (None, entry.epoch):
            return Current(entry.epoch)
        if entry.live(now):
            return Stale(entry.owner, entry.epoch)
        return Unowned() if epoch is None else Stale(NOBODY, entry.epoch)

    def latest(self, group: str, queue: MessageQueue) -> Lease | None:
        """The last lease of a queue, whether it has ended or not."""
        entry = self._groups.get(group, {}).get(queue)
        return entry.lease() if entry is not None else None

    def holder(self, group: str, queue: MessageQueue, *, now: Millis) -> Lease | None:
        """The live lease of a queue, if there is one."""
        entry = self._groups.get(group, {}).get(queue)
        return entry.lease() if entry is not None and entry.live(now) else None

    def holds_any(self, group: str, *, now: Millis) -> bool:
        """Whether the group consumes in order right now; decides about its dead letters (see `delay`)."""
        return any(entry.live(now) for entry in self._groups.get(group, {}).values())

    def expire(self, *, now: Millis) -> tuple[tuple[str, Lease], ...]:
        """The groups and leases that ran out since the last call, each once; their queues can be taken."""
        ended = []
        while (end := self.next_deadline()) is not None and end <= now:
            _, group, queue = heappop(self._ends)
            entry = self._groups[group][queue]
            entry.wake_at = None
            ended.append((group, entry.lease()))
        return tuple(ended)

    def next_deadline(self) -> Millis | None:
        """When the next lease runs out."""
        while self._ends:
            wake_at, group, queue = self._ends[0]
            entry = self._groups.get(group, {}).get(queue)
            if entry is None:
                heappop(self._ends)
            elif entry.wake_at != wake_at or entry.owner == NOBODY:
                heappop(self._ends)
                entry.wake_at = None if entry.wake_at == wake_at else entry.wake_at
            elif entry.expires_at > wake_at:
                entry.wake_at = entry.expires_at
                heapreplace(self._ends, (entry.expires_at, group, queue))
            else:
                return wake_at
        return None

    def restore(self, rows: Iterable[LeaseRow], *, floor: Epoch = NO_EPOCH, now: Millis) -> None:
        """Load what was persisted and give every lease its full length again.

        Its owner may still be working and could not renew while the broker was away. Without this, the first
        asker after a restart would share the queue with it.
        """
        self.floor = max(self.floor, floor)
        for row in rows:
            held = self._groups.setdefault(row.group, {})
            entry = held.setdefault(row.queue, _Entry(row.group, row.queue, NO_EPOCH))
            self._disown(entry)
            entry.owner, entry.epoch = row.owner, max(entry.epoch, row.epoch)
            entry.lease_ms, entry.stock = row.lease_ms, row.stock
            if row.owner != NOBODY:
                self._by_owner.setdefault(row.owner, {})[row.group, row.queue] = entry
                self._extend(entry, Millis(now + row.lease_ms))
                self._extend_deadline(entry, row.lease_ms, now)  # what it was told before the restart is not known here

    def snapshot(self, *, now: Millis) -> dict[str, tuple[Lease, ...]]:
        """The live leases of every group, for people."""
        return {
            group: tuple(entry.lease() for _, entry in sorted(held.items()) if entry.live(now))
            for group, held in self._groups.items()
        }

    def _hand_over(self, entry: _Entry, owner: str) -> None:
        self._disown(entry)
        entry.owner = owner
        entry.epoch = Epoch(entry.epoch + 1)
        entry.keep_alive_deadline = Millis(0)
        self._by_owner.setdefault(owner, {})[entry.group, entry.queue] = entry

    def _disown(self, entry: _Entry) -> None:
        own = self._by_owner.get(entry.owner)
        if own is None:
            return
        own.pop((entry.group, entry.queue), None)
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

    def _check(self) -> None:
        owned = {
            (group, queue): entry
            for group, held in self._groups.items()
            for queue, entry in held.items()
            if entry.owner != NOBODY
        }
        indexed = [(entry.owner, key) for own in self._by_owner.values() for key, entry in own.items()]
        assert sorted(indexed) == sorted((entry.owner, key) for key, entry in owned.items())
        assert all(self._by_owner.values())
        assert self._keep_alives.known() <= self._by_owner.keys()
        for (group, queue), entry in owned.items():
            assert entry.epoch > 0
            if entry.wake_at is not None:
                assert entry.wake_at <= entry.expires_at
                assert (entry.wake_at, group, queue) in self._ends
