"""Membership: which clients belong to which group, as shown by heartbeats and connections.

Invariant: every change is announced exactly once. Members compute their own share of the queues from the list of
members, so each real change must reach them, and a false one would make the whole group rebalance for nothing.

A member is a client id. It may have several connections, since a reconnect overlaps with the end of the old one, and it
leaves with the last of them. Each member has its own topics, and a topic is shared among the members that subscribe to
it; topics that its heartbeat does not name are removed. If LaneMQ members filter a topic differently, only those with
the widest filter share it, and filters of which neither contains the other are a conflict (`tag_filters`). The filters
of a member that did not say that it leaves count for two more minutes (`lost_members`), and so does the widest one of
each topic after a start of the broker (`filter_rows`). For stock clients the newest version counts for the group, as in
RocketMQ.

A topic cannot be consumed in order and concurrently by one group: an ordered member owns a queue, while a concurrent
one pulls it without asking. So the broker refuses a member (`conflict`) that would consume a topic the other way than
another member does. It also refuses one that consumes all its topics in order if another member consumes all of its own
concurrently, or the reverse, even if they share no topic. Only LaneMQ members say how they consume.

A LaneMQ member states how long it may be silent, which is as long as its leases last, and shows with every keep-alive
that it is alive: its share goes to the others when its leases have ended. Stock clients send nothing but heartbeats and
get RocketMQ's two minutes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple, NewType, TypeAlias, TypeVar

from lanemq.core.brokering.filter_rows import FilterRow, FilterRows
from lanemq.core.brokering.lost_members import EARLIER, LostFilter, LostMembers
from lanemq.core.brokering.tag_filters import ALL, Tags, TopicFilters, contains, misfit
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.units import Millis

MEMBER_EXPIRY_MS = Millis(120_000)
"""RocketMQ: `ConsumerManager.CHANNEL_EXPIRED_TIMEOUT`."""

MAX_LOOKS = 2_000
"""Members that one call of `expire` looks at; removing one takes some microseconds."""

SUBSCRIPTION_BYTES, TAG_BYTES, CODE_BYTES = 600, 150, 100
"""Memory of a subscription, and of each of its tags and tag codes, beside their characters."""

ConnectionId = NewType("ConnectionId", int)

K = TypeVar("K")


class GroupSubscription(NamedTuple):
    """A group's subscription to one topic."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    tags: frozenset[str] = frozenset()
    tag_codes: frozenset[int] = frozenset()
    ordered: bool | None = None
    """Whether the member's queues need a lease; None from a stock client, which does not say, and in broadcasting."""
    shared: bool = True
    """False in broadcasting, where every member reads all queues."""

    @property
    def is_compared(self) -> bool:
        """Whether its filter is compared with those of other members. The broker filters by tags only, and refuses
        pulls with other filters."""
        return self.shared and self.expression_type in ("TAG", "")

    @property
    def bytes(self) -> int:
        """About how much memory it takes. One of 128 KiB with short tags takes megabytes."""
        tags = sum(TAG_BYTES + len(tag) for tag in self.tags)
        return SUBSCRIPTION_BYTES + len(self.expression) + tags + CODE_BYTES * len(self.tag_codes)


class GroupHeartbeat(NamedTuple):
    """One group in a heartbeat. The three texts are wire values, kept for operators."""

    subscriptions: tuple[GroupSubscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Changes(NamedTuple):
    """The groups whose members must be notified, each once."""

    groups: tuple[str, ...]
    given_up: tuple[LostFilter, ...] = ()
    """Filters of lost members that count no more, so that present members may skip what only those select."""


class Conflict(NamedTuple):
    """A member with which a new one cannot share its group. `topic` None: they have no topic in common."""

    group: str
    member: str
    topic: str | None
    member_is_ordered: bool


class FilterConflict(NamedTuple):
    """A member whose tags of a topic neither contain those of a new one nor are contained in them."""

    group: str
    member: str
    topic: str
    theirs: Tags
    mine: Tags
    until: Millis | None = None
    """Until when the filter counts, if the member was lost."""


class WidestFilter(NamedTuple):
    """The widest filter of a topic's LaneMQ members, present and lost, and whether others have another one."""

    widest: Tags | None
    differ: bool


class GroupView(NamedTuple):
    """One group, for operators."""

    members: tuple[str, ...]
    subscriptions: tuple[GroupSubscription, ...]
    consume_type: str
    message_model: str
    from_where: str


_Member: TypeAlias = tuple[ConnectionId, str]
"""A connection and its client id."""


class _Expiry:
    """How long a member may be silent on one connection, and when it stops being a member if it stays silent."""

    __slots__ = ("after", "at", "extended", "serial")

    def __init__(self, after: Millis, now: Millis) -> None:
        self.after = after
        self.at = Millis(now + after)
        self.extended = False
        """Whether a pause of the broker was added since the member's last request."""
        self.serial = 0
        """Tells it from an earlier one of the same member in the heap of expiries."""


@dataclass(slots=True)
class _Group:
    """A group. It exists only while it has a member, and a member only while it has a connection.

    The counts are kept with every change, so that a heartbeat costs by what it names and not by the number of members.
    """

    name: str
    latest: GroupHeartbeat
    lost: LostMembers
    rows: FilterRows
    members: dict[str, set[ConnectionId]] = field(default_factory=dict)
    topics: dict[str, dict[str, GroupSubscription]] = field(default_factory=dict)
    """Client id → topic → subscription."""
    subscribers: dict[str, int] = field(default_factory=dict)
    """Topic → how many members subscribe to it."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number of topics → how many members have that many."""
    kinds: dict[tuple[str, bool], int] = field(default_factory=dict)
    """(topic, ordered) → how many members consume it that way."""
    only: dict[bool, int] = field(default_factory=dict)
    """How many members consume all their topics in order (True), and how many none of them (False)."""
    filters: dict[str, TopicFilters] = field(default_factory=dict)
    """Topic → the tag filters of its members; none is empty."""

    def subscribe(self, client_id: str, named: Iterable[GroupSubscription]) -> bool:
        """Take a member's subscriptions from its heartbeat; True if that may move queues.

        Queues move with the set of its topics, and with the tags of a LaneMQ member.
        """
        held = self.topics.get(client_id)
        wanted = {subscription.topic: subscription for subscription in named}
        if held == wanted:
            return False
        taken = dict(wanted)
        for topic, known in (held or {}).items():
            if topic in wanted and wanted[topic].version <= known.version:
                taken[topic] = known
        if held is not None:
            self._count(held, -1)
        self.topics[client_id] = taken
        self._count(taken, 1)
        return held is None or _moves_queues(held, taken)

    def leave(self, client_id: str) -> None:
        del self.members[client_id]
        self._count(self.topics.pop(client_id), -1)

    def _count(self, topics: Mapping[str, GroupSubscription], by: int) -> None:
        _add(self.sizes, len(topics), by)
        for topic, subscription in topics.items():
            _add(self.subscribers, topic, by)
            if subscription.ordered is not None:
                _add(self.kinds, (topic, subscription.ordered), by)
            if subscription.is_compared:
                self._count_filter(topic, subscription, by)
        kind = _only_kind(topics.values())
        if kind is not None:
            _add(self.only, kind, by)

    def _count_filter(self, topic: str, subscription: GroupSubscription, by: int) -> None:
        filters = self.filters.setdefault(topic, TopicFilters())
        if subscription.ordered is None:
            filters.add_stock(subscription.tags, by)
        else:
            before = filters.widest
            (filters.add if by > 0 else filters.remove)(subscription.tags)
            if filters.widest != before:
                self.rows.changed(self.name, topic)
        if not filters:
            del self.filters[topic]

    def widest(self, topic: str) -> Tags | None:
        """The filter, of a LaneMQ member or a lost one, that selects all that others select."""
        lost, filters = self.wider_lost(topic), self.filters.get(topic)
        if lost is not None:
            return lost
        return None if filters is None else filters.widest

    def wider_lost(self, topic: str) -> Tags | None:
        """The widest filter of lost members, if present members select less."""
        lost, filters = self.lost.widest(self.name, topic), self.filters.get(topic)
        live = None if filters is None else filters.widest
        return lost if lost is not None and live is not None and not contains(live, lost) else None

    def waits(self, subscription: GroupSubscription) -> bool:
        """Whether a member gets no queue of the topic, because another one has a wider filter."""
        return (
            subscription.ordered is not None
            and subscription.is_compared
            and subscription.tags != self.widest(subscription.topic)
        )

    def misfit(self, client_id: str, subscription: GroupSubscription) -> Tags | None:
        """A filter of another member with which the subscription cannot share its topic."""
        filters = self.filters.get(subscription.topic)
        if filters is None or subscription.ordered is None or not subscription.is_compared:
            return None
        own = self.topics.get(client_id, {}).get(subscription.topic)
        counts = own is not None and own.ordered is not None and own.is_compared
        return filters.misfit(subscription.tags, own.tags if own is not None and counts else None)

    def may_conflict(self, client_id: str, mine: Mapping[str, GroupSubscription]) -> bool:
        """Whether the counts leave room for a conflict with another member; `Membership.conflict` looks for it."""
        own = self.topics.get(client_id, {})
        for topic, subscription in mine.items():
            if subscription.ordered is not None:
                other = not subscription.ordered
                if self.kinds.get((topic, other), 0) > (topic in own and own[topic].ordered is other):
                    return True
        kind = _only_kind(mine.values())
        return kind is not None and self.only.get(not kind, 0) > (_only_kind(own.values()) is (not kind))

    @property
    def has_concurrent(self) -> bool:
        """Whether a member consumes a topic concurrently."""
        return any(not ordered for _, ordered in self.kinds)

    @property
    def is_covered(self) -> bool:
        """Whether a member subscribes to every topic of the group."""
        return len(self.subscribers) in self.sizes

    def with_all_topics(self) -> list[str]:
        """The members that subscribe to every topic of the group, and wait for none of them if there are such.

        None of them if they wait for a lost member, who will be back or is given up.
        """
        clients = [client for client, topics in self.topics.items() if len(topics) == len(self.subscribers)]
        is_lost = any(self.wider_lost(topic) is not None for topic in self.lost.topics(self.name))
        if not is_lost and not any(len(filters.counts) > 1 for filters in self.filters.values()):
            return clients
        ready = [client for client in clients if not any(map(self.waits, self.topics[client].values()))]
        return ready if ready or is_lost else clients

    def newest(self, topic: str) -> GroupSubscription | None:
        """The subscription to a topic with the highest version."""
        subscriptions = [topics[topic] for topics in self.topics.values() if topic in topics]
        return max(subscriptions, key=lambda each: each.version, default=None)


class Membership:
    """All consumer groups of one broker."""

    def __init__(self, *, expiry_ms: int = MEMBER_EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self.filter_rows = FilterRows(self.widest)
        self._lost = LostMembers(Millis(expiry_ms), self.filter_rows)
        self._leaving: set[tuple[str, str]] = set()
        """Group and client id of members that said that they leave, and have another connection."""
        self._groups: dict[str, _Group] = {}
        # Every connection of every group.
        self._expiries: dict[tuple[str, _Member], _Expiry] = {}
        # Every key of `_expiries` once, with a time at which it does not expire later: an item that is due early is put
        # back with the real time, so that requests of members do not change the heap.
        self._ends: list[tuple[Millis, int, tuple[str, _Member]]] = []
        self._serial = 0
        # The same by connection, so that a disconnect touches no others.
        self._by_connection: dict[ConnectionId, set[tuple[str, _Member]]] = {}
        self._clients: dict[ConnectionId, str] = {}
        self._connections_of: dict[str, set[ConnectionId]] = {}
        self._payers: dict[tuple[str, str], tuple[str, int]] = {}
        """Group and client id → who pays for its subscriptions, and their bytes."""
        self._paid: dict[str, int] = {}
        """Payer → bytes of all subscriptions that it pays for; no zeros."""

    def heartbeat(
        self,
        connection: ConnectionId,
        client_id: str,
        groups: Mapping[str, GroupHeartbeat],
        *,
        now: Millis,
        expiry: Millis | None = None,
        payer: str = "",
    ) -> Changes:
        """Record a heartbeat of a client for these groups. A group that it no longer names expires.

        `expiry` is how long the client may be silent, at most as long as a stock client; None for a stock client.
        `payer` pays for the subscriptions of the client from now on (`bytes_with`).
        """
        expiry_ms = Millis(self._expiry_ms if expiry is None else min(expiry, self._expiry_ms))
        self._name(connection, client_id)
        changed = []
        for name, beat in groups.items():
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = _Group(name, beat, self._lost, self.filter_rows)
            group.latest = beat
            self._lost.remove(name, client_id)
            self._leaving.discard((name, client_id))
            joined = self._add(name, group, (connection, client_id), _Expiry(expiry_ms, now))
            if group.subscribe(client_id, beat.subscriptions) or joined:
                changed.append(name)
            self._pay(name, client_id, payer, sum(each.bytes for each in group.topics[client_id].values()))
        return Changes(tuple(changed))

    def filter_conflict(self, client_id: str, groups: Mapping[str, GroupHeartbeat]) -> FilterConflict | None:
        """The first member whose filter of a topic neither contains that of this client nor is contained in it."""
        for name, beat in groups.items():
            known = self._groups.get(name)
            for mine in beat.subscriptions:
                theirs = None if known is None else known.misfit(client_id, mine)
                if known is not None and theirs is not None:
                    others = (other for other in sorted(known.topics) if other != client_id)
                    member = next(other for other in others if _has_filter(known.topics[other], mine.topic, theirs))
                    return FilterConflict(name, member, mine.topic, theirs, mine.tags)
                lost = self._lost_misfit(name, client_id, mine)
                if lost is not None:
                    return FilterConflict(name, lost.member, mine.topic, lost.tags, mine.tags, lost.until)
        return None

    def _lost_misfit(self, group: str, client_id: str, mine: GroupSubscription) -> LostFilter | None:
        """A lost member, other than this client, with whose filter the subscription cannot share its topic."""
        lost = self._lost.filters(group, mine.topic)
        if lost is None or mine.ordered is None or not mine.is_compared:
            return None
        theirs = misfit(mine.tags, (tags for tags, clients in lost.clients.items() if clients.keys() != {client_id}))
        return None if theirs is None else self._lost.last(group, mine.topic, theirs)

    def conflict(self, client_id: str, groups: Mapping[str, GroupHeartbeat]) -> Conflict | None:
        """The first member that consumes in order what this client would consume concurrently, or the reverse."""
        for name, beat in groups.items():
            known = self._groups.get(name)
            mine = {each.topic: each for each in beat.subscriptions if not each.topic.startswith(RETRY_PREFIX)}
            if known is None or not known.may_conflict(client_id, mine):
                continue
            for other in sorted(known.topics.keys() - {client_id}):
                theirs = known.topics[other]
                for topic in sorted(mine.keys() & theirs.keys()):
                    if {mine[topic].ordered, theirs[topic].ordered} == {True, False}:
                        return Conflict(name, other, topic, theirs[topic].ordered is True)
                if {_only_kind(mine.values()), _only_kind(theirs.values())} == {True, False}:
                    return Conflict(name, other, None, _only_kind(theirs.values()) is True)
        return None

    def seats_with(self, connection: ConnectionId, client_id: str, groups: Iterable[str]) -> int:
        """How many seats a connection has after such a heartbeat; a seat is one client in one group."""
        held = self._by_connection.get(connection, set())
        return len(held) + sum((name, (connection, client_id)) not in held for name in groups)

    def bytes_with(self, payer: str, client_id: str, groups: Mapping[str, GroupHeartbeat]) -> int:
        """How many bytes of subscriptions a payer pays for after such a heartbeat, at most.

        They are counted by client and not by connection: a client keeps them until its last connection has ended.
        """
        total = self._paid.get(payer, 0)
        for name, beat in groups.items():
            known = self._groups.get(name)
            held = {} if known is None else known.topics.get(client_id, {})
            for each in {each.topic: each for each in beat.subscriptions}.values():
                total += max(each.bytes, held[each.topic].bytes) if each.topic in held else each.bytes
            paid_by, paid = self._payers.get((name, client_id), (payer, 0))
            if paid_by == payer:
                total -= paid
        return total

    def alive(self, connection: ConnectionId, client_id: str, group: str, *, now: Millis) -> bool:
        """Record another request of a member; false if it is no member on this connection and must send a heartbeat."""
        expiry = self._expiries.get((group, (connection, client_id)))
        if expiry is None:
            return False
        expiry.at = Millis(now + expiry.after)
        expiry.extended = False
        return True

    def leave(self, connection: ConnectionId, client_id: str, group: str) -> Changes:
        """Remove a client that leaves a group; its connection may serve others."""
        known = self._groups.get(group)
        if known is not None and connection in known.members.get(client_id, ()):
            self._leaving.add((group, client_id))
            return self._remove([(group, (connection, client_id))])
        waited = self._waits_for(group)
        if client_id != EARLIER and self._lost.remove(group, client_id):  # it is back only to say so
            self._pay(group, client_id, "", 0)
        return Changes((group,) if self._waits_for(group) != waited else ())

    def disconnected(self, connection: ConnectionId, *, now: Millis) -> Changes:
        changes = self._remove(sorted(self._by_connection.get(connection, ())), now=now)
        self._by_connection.pop(connection, None)
        self._name(connection, None)
        return changes

    def expire(self, *, now: Millis) -> Changes:
        """Remove members that were silent for too long, even if their connection is open.

        Each call looks at a limited number of members; the next one continues.
        """
        gone = []
        for _ in range(MAX_LOOKS):
            if not self._ends or self._ends[0][0] > now:
                break
            _, serial, key = self._ends[0]
            expiry = self._expiries.get(key)
            if expiry is None or expiry.serial != serial:
                heappop(self._ends)
            elif expiry.at > now:
                heapreplace(self._ends, (expiry.at, serial, key))
            else:
                heappop(self._ends)
                gone.append(key)
        given_up = self._give_up(now)
        removed = self._remove(sorted(gone, key=lambda key: (key[0], key[1][0])), now=now)
        return Changes(tuple(dict.fromkeys((*removed.groups, *(each.group for each in given_up)))), given_up)

    def _give_up(self, now: Millis) -> tuple[LostFilter, ...]:
        """Forget lost members whose time is over; returns those that present members wait for no more."""
        given_up: dict[tuple[str, str], LostFilter] = {}
        for name, client_id in self._lost.due(now=now, limit=MAX_LOOKS):
            filters, group = tuple(self._lost.of_member(name, client_id)), self._groups.get(name)
            waited = [each for each in filters if group is not None and group.wider_lost(each.topic) == each.tags]
            self._lost.remove(name, client_id)
            self._pay(name, client_id, "", 0)
            for each in waited:
                if group is not None and group.wider_lost(each.topic) != each.tags:
                    given_up.setdefault((name, each.topic), each)
        return tuple(given_up.values())

    def restore(self, rows: Iterable[FilterRow], *, now: Millis) -> None:
        """After a start: the widest filters of before count as if their members had been lost now."""
        known = list(rows)
        groups: dict[str, dict[str, Tags]] = {}
        for group, topic, tags in known:
            if tags is not None:
                groups.setdefault(group, {})[topic] = tags
        for group, topics in groups.items():
            self._lost.add(group, EARLIER, topics, now=now)
            size = sum(GroupSubscription(topic, tags=tags).bytes for topic, tags in topics.items())
            self._pay(group, EARLIER, "", size)
        self.filter_rows.restored(known)

    def forget_topic(self, topic: str) -> None:
        """Forget the filters that lost members had for a deleted topic."""
        for group in self._lost.groups(topic):
            for ended in self._lost.left(group, topic, ALL):
                self._pay(group, ended, "", 0)

    def forget(self, group: str) -> None:
        """Forget the lost members of a deleted group."""
        for key in self._lost.members() if self._lost.topics(group) else ():
            if key[0] == group:
                self._lost.remove(*key)
                self._pay(*key, "", 0)

    def paused(self, duration: Millis, *, now: Millis) -> None:
        """Do not count this time as silence: the broker itself did not run and could not receive anything.

        Once per silence. What a live member has sent waits in its socket and is received before the next pause; if
        every pause counted, an overloaded broker, which pauses all the time, would never remove a lost member.
        """
        self._lost.paused(duration, now=now)
        for expiry in self._expiries.values():
            if not expiry.extended:
                expiry.at = min(Millis(expiry.at + duration), Millis(now + expiry.after))
                expiry.extended = True

    def members(self, group: str) -> tuple[str, ...]:
        """The client ids, each once and sorted: every member must see the same list."""
        known = self._groups.get(group)
        return () if known is None else tuple(sorted(known.members))

    def members_of(self, group: str, topic: str) -> tuple[str, ...]:
        """The members that subscribe to a topic, sorted.

        Without those that wait for the end of members with a wider filter.

        A retry topic goes to the members that have all topics of the group, if there are any: a message there may
        belong to any of these topics, and a member without that topic has no handler for it.
        """
        known = self._groups.get(group)
        if known is None:
            return ()
        if topic.startswith(RETRY_PREFIX) and known.is_covered:
            return tuple(sorted(known.with_all_topics()))
        return tuple(
            sorted(c for c, topics in known.topics.items() if topic in topics and not known.waits(topics[topic]))
        )

    def widest(self, group: str, topic: str) -> Tags | None:
        """The filter of a LaneMQ member, present or lost, that selects all that others of the group select; None if
        there is no such member."""
        known = self._groups.get(group)
        widest = None if known is None else known.widest(topic)
        return self._lost.widest(group, topic) if widest is None else widest

    def waits(self, group: str, topic: str, client_id: str) -> bool:
        """Whether a member may take no queue of a topic, because another one has a wider filter."""
        known = self._groups.get(group)
        mine = None if known is None else known.topics.get(client_id, {}).get(topic)
        return known is not None and mine is not None and known.waits(mine)

    def selections(self, group: str) -> Mapping[str, WidestFilter]:
        """Topic → what its LaneMQ members select, present and lost ones."""
        known, selections = self._groups.get(group), dict[str, WidestFilter]()
        for topic in dict.fromkeys((*(known.filters if known is not None else ()), *self._lost.topics(group))):
            filters = None if known is None else known.filters.get(topic)
            lost = self._lost.filters(group, topic)
            both = {*(filters.counts if filters else ()), *(lost.clients if lost else ())}
            selections[topic] = WidestFilter(self.widest(group, topic), len(both) > 1)
        return selections

    def filters(self, group: str, topic: str) -> TopicFilters | None:
        """The tag filters of a topic's present members."""
        known = self._groups.get(group)
        return None if known is None else known.filters.get(topic)

    def waited_for(self, group: str, topic: str) -> LostFilter | None:
        """The lost member that present members with fewer tags wait for."""
        known = self._groups.get(group)
        tags = None if known is None else known.wider_lost(topic)
        return None if tags is None else self._lost.last(group, topic, tags)

    def mixed_filters(self, group: str, topic: str) -> TopicFilters | None:
        """The filters of a topic, if members of the group have different ones."""
        filters = self.filters(group, topic)
        return filters if filters is not None and filters.mixed else None

    def narrower_members(self, group: str) -> Iterator[tuple[str, int]]:
        """The topics of a group, and how many members have a narrower filter than others.

        One topic in each step; the group may change in between.
        """
        known = self._groups.get(group)
        for topic in tuple(known.filters) if known is not None else ():
            yield topic, self.narrower(group, topic)

    def narrower(self, group: str, topic: str) -> int:
        """How many members have a narrower filter of a topic than others, present or lost."""
        known = self._groups.get(group)
        filters = None if known is None else known.filters.get(topic)
        return 0 if known is None or filters is None else filters.narrower(known.wider_lost(topic))

    def retry_queues(self, group: str) -> int:
        """How many queues the group's retry topic needs.

        One, if a member has all topics. Otherwise one for each member: a member passes a message of a topic that it
        does not have on to the next queue, until it comes to a member that has the topic. Ordered groups and stock
        clients need one.
        """
        known = self._groups.get(group)
        if known is None or known.is_covered or not known.has_concurrent:
            return 1
        return len(known.topics)

    def connections(self, group: str) -> tuple[ConnectionId, ...]:
        """The connections of all members."""
        known = self._groups.get(group)
        return () if known is None else tuple(sorted(set().union(*known.members.values())))

    def subscription(self, group: str, topic: str) -> GroupSubscription | None:
        known = self._groups.get(group)
        return None if known is None else known.newest(topic)

    def client_of(self, connection: ConnectionId) -> str | None:
        """The client of a connection; None before its first heartbeat."""
        return self._clients.get(connection)

    def connected(self, client_id: str) -> bool:
        """Whether the client has a connection; its leases end only with the last one."""
        return client_id in self._connections_of

    def connections_of(self, client_id: str) -> tuple[ConnectionId, ...]:
        """The connections of a client, the newest first; producers have some too."""
        return tuple(sorted(self._connections_of.get(client_id, ()), reverse=True))

    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    def snapshot(self, group: str) -> GroupView | None:
        known = self._groups.get(group)
        if known is None:
            return None
        newest = (known.newest(topic) for topic in sorted(known.subscribers))
        subscriptions = tuple(each for each in newest if each is not None)
        return GroupView(self.members(group), subscriptions, *known.latest[1:])

    def _add(self, name: str, group: _Group, seat: _Member, expiry: _Expiry) -> bool:
        """Add a connection of a member; returns whether the client, not only this connection, is new in the group."""
        known = self._expiries.get((name, seat))
        if known is not None and known.after <= expiry.after:
            known.after, known.at, known.extended = expiry.after, expiry.at, False
        else:
            self._serial = expiry.serial = self._serial + 1
            self._expiries[name, seat] = expiry
            heappush(self._ends, (expiry.at, expiry.serial, (name, seat)))
            if len(self._ends) > 2 * len(self._expiries) + 64:
                self._ends = [(each.at, each.serial, key) for key, each in self._expiries.items()]
                heapify(self._ends)
        connection, client_id = seat
        joined = client_id not in group.members
        group.members.setdefault(client_id, set()).add(connection)
        self._by_connection.setdefault(connection, set()).add((name, seat))
        return joined

    def _waits_for(self, group: str) -> dict[str, Tags]:
        """Topic → the filter of lost members that present members of the group wait for."""
        known = self._groups.get(group)
        wider = {} if known is None else {topic: known.wider_lost(topic) for topic in self._lost.topics(group)}
        return {topic: tags for topic, tags in wider.items() if tags is not None}

    def _remove(self, keys: Iterable[tuple[str, _Member]], now: Millis | None = None) -> Changes:
        """Remove connections of members, who leave, or are lost `now`."""
        changed: dict[str, None] = {}
        for name, seat in keys:
            if self._expiries.pop((name, seat), None) is None:
                continue
            connection, client_id = seat
            self._by_connection[connection].discard((name, seat))
            members = self._groups[name].members
            members[client_id].discard(connection)
            if not members[client_id]:
                self._end(name, client_id, now)
                changed[name] = None
            if not members:
                del self._groups[name]
        return Changes(tuple(changed))

    def _end(self, name: str, client_id: str, now: Millis | None) -> None:
        """Remove a member without connections. What counts of a lost one is paid for as before."""
        group, payer = self._groups[name], self._payers.get((name, client_id), ("", 0))[0]
        held = group.topics[client_id]
        counted = {topic: each for topic, each in held.items() if each.ordered is not None and each.is_compared}
        group.leave(client_id)
        if now is None or (name, client_id) in self._leaving:
            self._leaving.discard((name, client_id))
            self._pay(name, client_id, "", 0)
            for topic, subscription in counted.items():
                for ended in self._lost.left(name, topic, subscription.tags):
                    self._pay(name, ended, "", 0)
        else:
            self._lost.add(name, client_id, {topic: each.tags for topic, each in counted.items()}, now=now)
            self._pay(name, client_id, payer, sum(each.bytes for each in counted.values()))

    def _pay(self, group: str, client_id: str, payer: str, size: int) -> None:
        """Set who pays for the subscriptions of a client, and how much."""
        before, paid = self._payers.pop((group, client_id), (payer, 0))
        if paid:
            _add(self._paid, before, -paid)
        if size:
            self._payers[group, client_id] = (payer, size)
            _add(self._paid, payer, size)

    def _name(self, connection: ConnectionId, client_id: str | None) -> None:
        """Set the client of a connection, in both directions; None when the connection was closed."""
        former = self._clients.pop(connection, None)
        if former is not None:
            self._connections_of[former].discard(connection)
            if not self._connections_of[former]:
                del self._connections_of[former]
        if client_id is not None:
            self._clients[connection] = client_id
            self._connections_of.setdefault(client_id, set()).add(connection)


def _add(counts: dict[K, int], key: K, by: int) -> None:
    """Change a count; no zeros are kept."""
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]


def _moves_queues(held: Mapping[str, GroupSubscription], taken: Mapping[str, GroupSubscription]) -> bool:
    return held.keys() != taken.keys() or any(
        taken[topic].ordered is not None and taken[topic].tags != known.tags for topic, known in held.items()
    )


def _has_filter(topics: Mapping[str, GroupSubscription], topic: str, tags: Tags) -> bool:
    subscription = topics.get(topic)
    return subscription is not None and subscription.ordered is not None and subscription.tags == tags


def _only_kind(subscriptions: Iterable[GroupSubscription]) -> bool | None:
    """True or False if all of them are ordered, or none is; None if both occur, or a stock client does not say."""
    kinds = {each.ordered for each in subscriptions if not each.topic.startswith(RETRY_PREFIX)}
    return kinds.pop() if len(kinds) == 1 else None
