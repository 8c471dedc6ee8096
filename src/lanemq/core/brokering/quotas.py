"""Quotas: how much of a broker's memory and disk one party may take.

A party is the user of a request, or its address on a broker without users. What is new is charged to the party that
names it first, and stays charged until it is gone. What existed before the broker's start belongs to no party.

Requests under way that change `state.db` are counted by connection, because they end with it. Held pulls, searches and
seats in groups are limited for one connection and for the party.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice, takewhile
from typing import NamedTuple

from lanemq.model.units import Millis

MAX_HEARTBEAT_NAMES = 1_000
"""Groups and topics in one heartbeat."""
MAX_CLIENT_ID_CHARS = 255
UNUSED_NAME_MS = Millis(600_000)
"""How long a group is remembered that has no member, no offset, no lease and no parked lane."""


class Quota(Enum):
    """What is counted. The value is how a refusal names it."""

    GROUPS = "groups"
    LEASES = "queue locks"
    TOPICS = "topics created"
    QUEUES = "queues of topics created"
    OFFSETS = "bytes of offsets and finished ranges"
    ROWS = "unfinished requests that are saved"
    HELD_PULLS = "pulls that wait for messages"
    SEATS = "seats in groups"
    """A seat is one client in one group, as a consumer or as a producer."""
    SUBSCRIPTIONS = "bytes of subscriptions"
    PARKED_BYTES = "bytes of parked lanes"
    SEARCHES = "searches under way"


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """How much one party may have, and one connection of `rows` and of what is named so."""

    groups: int = 2_000
    leases: int = 100_000
    topics: int = 10_000
    queues: int = 200_000
    offsets: int = 128 * 1024 * 1024
    """About 380,000 offsets without finished ranges."""
    rows: int = 1_000
    held_pulls: int = 50_000
    held_pulls_of_connection: int = 5_000
    seats: int = 50_000
    seats_of_connection: int = 2_000
    subscriptions: int = 128 * 1024 * 1024
    """About 200,000 subscriptions without tags."""
    parked_bytes: int = 128 * 1024 * 1024
    """About 80,000 lanes with short keys."""
    searches: int = 100
    searches_of_connection: int = 10


class OverQuota(NamedTuple):
    """A refusal."""

    quota: Quota
    party: str
    limit: int

    def __str__(self) -> str:
        what, hint = self.quota.value, _HINTS[self.quota]
        return f"{self.party} may have {self.limit} {what}, and with this request it would have more: {hint}"


_HINTS = {
    Quota.GROUPS: "use existing groups, or wait until unused ones are forgotten",
    Quota.LEASES: "unlock some, or consume with more users or from more addresses",
    Quota.TOPICS: "use existing topics, or let an administrator create them",
    Quota.QUEUES: "use fewer queues, delete topics, or let an administrator create them",
    Quota.OFFSETS: "commit in fewer groups or queues, delete groups, or commit with more users or from more addresses",
    Quota.ROWS: "wait for answers before sending more",
    Quota.SEATS: "use one client id per connection, fewer groups, or more users or addresses",
    Quota.SUBSCRIPTIONS: "subscribe to fewer topics and tags, or with more users or from more addresses",
    Quota.PARKED_BYTES: "redrive or discard parked lanes, or park with more users or from more addresses",
    Quota.SEARCHES: "wait for answers before asking more",
    Quota.HELD_PULLS: "pull with more connections, users or addresses, or ask again later",
}


class Quotas:
    """What every party has."""

    def __init__(self, limits: QuotaLimits | None = None) -> None:
        limits = limits or QuotaLimits()
        self._limits = {
            Quota.GROUPS: limits.groups,
            Quota.LEASES: limits.leases,
            Quota.TOPICS: limits.topics,
            Quota.QUEUES: limits.queues,
            Quota.OFFSETS: limits.offsets,
            Quota.ROWS: limits.rows,
            Quota.HELD_PULLS: limits.held_pulls,
            Quota.SEATS: limits.seats,
            Quota.SUBSCRIPTIONS: limits.subscriptions,
            Quota.PARKED_BYTES: limits.parked_bytes,
            Quota.SEARCHES: limits.searches,
        }
        self._limits_of_name = {
            Quota.HELD_PULLS: limits.held_pulls_of_connection,
            Quota.SEATS: limits.seats_of_connection,
            Quota.SEARCHES: limits.searches_of_connection,
        }
        self._held: dict[Quota, dict[str, tuple[str, int]]] = {quota: {} for quota in Quota}
        """Name → the party that is charged for it, and how much."""
        self._sums: dict[tuple[Quota, str], int] = {}
        """No zeros."""

    def charge(self, quota: Quota, party: str, name: str, count: int = 1) -> OverQuota | None:
        """Charge a name to the party, unless it is charged already; the refusal if that is too much."""
        if name in self._held[quota]:
            return None
        return self.add(quota, party, name, count)

    def charge_all(self, quota: Quota, party: str, names: Sequence[str]) -> OverQuota | None:
        """Charge all of these names to the party, or none; the refusal if they are too many."""
        new = [name for name in names if name not in self._held[quota]]
        if self.charged(quota, party) + len(new) > self._limits[quota]:
            return OverQuota(quota, party, self._limits[quota])
        for name in new:
            self.add(quota, party, name, 1)
        return None

    def add(self, quota: Quota, party: str, name: str, count: int) -> OverQuota | None:
        """Charge more under a name, to the party that has it already, if there is one."""
        held_by, before = self._held[quota].get(name, (party, 0))
        if (limit := self._limits_of_name.get(quota)) is not None and before + count > limit:
            return OverQuota(quota, name, limit)
        total = self._sums.get((quota, held_by), 0) + count
        if total > self._limits[quota]:
            return OverQuota(quota, held_by, self._limits[quota])
        self._held[quota][name] = (held_by, before + count)
        self._sums[quota, held_by] = total
        return None

    def over(self, quota: Quota, party: str, total: int) -> OverQuota | None:
        """The refusal of a total that is counted elsewhere; None if the party may have it."""
        return OverQuota(quota, party, self._limits[quota]) if total > self._limits[quota] else None

    def set(self, quota: Quota, party: str, name: str, count: int) -> OverQuota | None:
        """Charge a name with so much and no more; the refusal if that is too much, and then nothing changes."""
        before = self._held[quota].get(name, (party, 0))[1]
        if count > before:
            return self.add(quota, party, name, count - before)
        self.let_go(quota, name, before - count)
        return None

    def let_go(self, quota: Quota, name: str, count: int | None = None) -> None:
        """Give back what a name was charged with, or a part of it."""
        held = self._held[quota].pop(name, None)
        if held is None:
            return
        party, before = held
        given = before if count is None else min(count, before)
        if given < before:
            self._held[quota][name] = (party, before - given)
        left = self._sums[quota, party] - given
        if left:
            self._sums[quota, party] = left
        else:
            del self._sums[quota, party]

    def lower(self, quota: Quota, name: str, count: int) -> None:
        """Give back what a name is charged with beyond `count`."""
        before = self._held[quota].get(name, ("", 0))[1]
        if before > count:
            self.let_go(quota, name, before - count)

    def names(self, quota: Quota, party: str) -> list[str]:
        """The names that a party is charged for."""
        return [name for name, (charged, _) in self._held[quota].items() if charged == party]

    def payer(self, quota: Quota, name: str) -> str | None:
        """The party that is charged for a name; None if the name is not charged."""
        held = self._held[quota].get(name)
        return None if held is None else held[0]

    def charged(self, quota: Quota, party: str) -> int:
        return self._sums.get((quota, party), 0)

    def _check(self) -> None:
        sums: dict[tuple[Quota, str], int] = {}
        for quota, held in self._held.items():
            for party, count in held.values():
                sums[quota, party] = sums.get((quota, party), 0) + count
        assert sums == self._sums
        assert all(count <= self._limits[quota] for (quota, _), count in sums.items())


class GroupUse:
    """When each group was used last, so that unused ones can be forgotten. Times are monotonic."""

    def __init__(self, groups: Iterable[str] = (), *, now: Millis) -> None:
        """`groups` are those known at the start: their time begins now."""
        self._last = dict.fromkeys(groups, now)
        """Ordered by use: the longest unused first."""
        self._kept: dict[str, Millis] = {}
        """Unused groups that are kept for longer, ordered in the same way."""

    def used(self, group: str, now: Millis) -> None:
        self._last.pop(group, None)
        if self._kept:
            self._kept.pop(group, None)
        self._last[group] = now

    def keep(self, group: str) -> None:
        """Do not return a group from `unused_since` any more, but from `kept_since`."""
        self._kept[group] = self._last.pop(group)

    def forget(self, group: str) -> None:
        self._last.pop(group, None)
        self._kept.pop(group, None)

    def unused_since(self, time: Millis, limit: int) -> list[str]:
        """Up to `limit` groups that were not used since a time, the longest unused first."""
        return _until(self._last, time, limit)

    def kept_since(self, time: Millis, limit: int) -> list[str]:
        """As `unused_since`, of the groups that are kept for longer."""
        return _until(self._kept, time, limit)

    def __contains__(self, group: str) -> bool:
        return group in self._last or group in self._kept

    def __len__(self) -> int:
        return len(self._last) + len(self._kept)


def _until(groups: dict[str, Millis], time: Millis, limit: int) -> list[str]:
    return list(islice(takewhile(lambda group: groups[group] <= time, groups), limit))
