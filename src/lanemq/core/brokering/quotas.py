"""Quotas: how much of a broker's memory and disk one party may take.

A party is the user of a request, or its address on a broker without users. What is new is charged to the party that
names it first, and stays charged until it is gone. What existed before the broker's start belongs to no party, until
one adds to it.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import islice, takewhile
from typing import NamedTuple

from lanemq.model.units import Millis

MAX_HEARTBEAT_NAMES = 1_000
"""Groups and topics in one heartbeat."""
MAX_CLIENT_ID_CHARS = 255
MIN_QUEUES = 20
"""A new topic is charged for at least this many queues."""
UNUSED_NAME_MS = Millis(600_000)
"""How long a group is remembered that has no member, no offset, no lease and no parked lane."""


class Limit(NamedTuple):
    """How much one party and one connection may have; None: as much as they like."""

    what: str
    """How a refusal names it."""
    of_party: int | None
    of_connection: int | None
    hint: str
    """What the client can do."""
    passes: bool = False
    """Whether it ends by itself: then a refusal says "busy", and the client tries again."""


class Quota(Enum):
    """All quotas. A test in tests/load or tests/broker shows why each is needed."""

    GROUPS = Limit("groups", 2_000, None, "use existing groups, or wait until unused ones are forgotten")
    LEASES = Limit("queue locks", 100_000, None, "unlock some, or consume with more users or from more addresses")
    QUEUES = Limit(
        "queues of topics created", 200_000, None,
        "use fewer queues, delete topics, or let an administrator create them",
    )  # fmt: skip
    """A topic takes memory too: one with fewer queues counts as `MIN_QUEUES`."""
    OFFSETS = Limit(
        "bytes of offsets and finished ranges", 128 * 1024 * 1024, None,
        "commit in fewer groups or queues, delete groups, or commit with more users or from more addresses",
    )  # fmt: skip
    """About 380,000 offsets without finished ranges."""
    SEATS = Limit(
        "seats in groups", 50_000, 2_000, "use one client id per connection, fewer groups, or more users or addresses"
    )
    """A seat is one client in one group, as a consumer or as a producer."""
    SUBSCRIPTIONS = Limit(
        "bytes of subscriptions", 128 * 1024 * 1024, None,
        "subscribe to fewer topics and tags, or with more users or from more addresses",
    )  # fmt: skip
    """About 200,000 subscriptions without tags."""
    PARKED_BYTES = Limit(
        "bytes of parked lanes", 128 * 1024 * 1024, None,
        "redrive or discard parked lanes, or park with more users or from more addresses",
    )  # fmt: skip
    """About 80,000 lanes with short keys."""
    ROWS = Limit("unfinished requests that are saved", None, 1_000, "wait for answers before sending more", passes=True)
    SEARCHES = Limit("searches under way", 100, 10, "wait for answers before asking more", passes=True)
    HELD_PULLS = Limit(
        "pulls that wait for messages", 50_000, 5_000,
        "pull with more connections, users or addresses, or ask again later", passes=True,
    )  # fmt: skip


class OverQuota(NamedTuple):
    """A refusal."""

    quota: Quota
    party: str
    limit: int

    def __str__(self) -> str:
        what, hint = self.quota.value.what, self.quota.value.hint
        return f"{self.party} may have {self.limit} {what}, and with this request it would have more: {hint}"


class Quotas:
    """What every party has, under names: groups, topics or connections."""

    def __init__(self, of_party: Mapping[Quota, int] = {}, of_connection: Mapping[Quota, int] = {}) -> None:
        """Limits that differ from the table."""
        self._of_party = {quota: of_party.get(quota, quota.value.of_party) for quota in Quota}
        self._of_connection = {quota: of_connection.get(quota, quota.value.of_connection) for quota in Quota}
        self._held: dict[Quota, dict[str, tuple[str, int]]] = {quota: {} for quota in Quota}
        """Name → the party that is charged for it, and how much."""
        self._sums: dict[tuple[Quota, str], int] = {}
        """No zeros."""

    def add(self, quota: Quota, party: str, name: str, count: int = 1) -> OverQuota | None:
        """Charge more under a name, to the party that has it already, if there is one; the refusal if that is too
        much, and then nothing changes."""
        over = self.over_with(quota, party, name, count)
        if over is None:
            held_by, before = self._held[quota].get(name, (party, 0))
            self._held[quota][name] = (held_by, before + count)
            self._sums[quota, held_by] = self.charged(quota, held_by) + count
        return over

    def over_with(self, quota: Quota, party: str, name: str, count: int = 1) -> OverQuota | None:
        """What `add` would return. Changes nothing."""
        held_by, before = self._held[quota].get(name, (party, 0))
        if (limit := self._of_connection[quota]) is not None and before + count > limit:
            return OverQuota(quota, name, limit)
        return self.over(quota, held_by, self.charged(quota, held_by) + count)

    def over(self, quota: Quota, party: str, total: int) -> OverQuota | None:
        """The refusal of a total; None if the party may have it."""
        limit = self._of_party[quota]
        return None if limit is None or total <= limit else OverQuota(quota, party, limit)

    def set(self, quota: Quota, party: str, name: str, count: int) -> OverQuota | None:
        """Charge a name with `count` in all; the refusal if that is too much, and then nothing changes."""
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
        returned = before if count is None else min(count, before)
        if returned < before:
            self._held[quota][name] = (party, before - returned)
        left = self._sums[quota, party] - returned
        if left:
            self._sums[quota, party] = left
        else:
            del self._sums[quota, party]

    def lower(self, quota: Quota, name: str, count: int) -> None:
        """Give back what a name is charged with beyond `count`."""
        before = self._held[quota].get(name, ("", 0))[1]
        if before > count:
            self.let_go(quota, name, before - count)

    def beside(self, quota: Quota, party: str, name: str) -> list[str]:
        """The names that are charged to the party of a name; to this party, if the name is not charged."""
        payer = self._held[quota].get(name, (party, 0))[0]
        return [each for each, (charged, _) in self._held[quota].items() if charged == payer]

    def charged(self, quota: Quota, party: str) -> int:
        return self._sums.get((quota, party), 0)


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
