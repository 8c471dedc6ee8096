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
from typing import NamedTuple

from lanemq.core.brokering.members.filter_rows import FilterRow, FilterRows
from lanemq.core.brokering.members.group import (
    ConnectionId,
    Group,
    GroupHeartbeat,
    GroupSubscription,
    has_filter,
    only_kind,
)
from lanemq.core.brokering.members.lost_members import EARLIER, LostFilter, LostMembers
from lanemq.core.brokering.members.payers import Payers
from lanemq.core.brokering.members.seats import Seat, Seats
from lanemq.core.brokering.members.tag_filters import ALL, Tags, TopicFilters, misfit
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.units import Millis

MEMBER_EXPIRY_MS = Millis(120_000)
"""RocketMQ: `ConsumerManager.CHANNEL_EXPIRED_TIMEOUT`."""

MAX_LOOKS = 2_000
"""Members that one call of `expire` looks at; removing one takes some microseconds."""


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


class Membership:
    """All consumer groups of one broker."""

    def __init__(self, *, expiry_ms: int = MEMBER_EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self.filter_rows = FilterRows(self.widest)
        self._lost = LostMembers(Millis(expiry_ms), self.filter_rows)
        self._leaving: set[tuple[str, str]] = set()
        """Group and client id of members that said that they leave, and have another connection."""
        self._groups: dict[str, Group] = {}
        self._seats = Seats()
        self._payers = Payers()

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
        self._seats.connected(connection, client_id)
        changed = []
        for name, beat in groups.items():
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = Group(name, beat, self._lost, self.filter_rows)
            group.latest = beat
            self._lost.remove(name, client_id)
            self._leaving.discard((name, client_id))
            self._seats.take(Seat(name, connection, client_id), expiry=expiry_ms, now=now)
            joined = client_id not in group.members
            group.members.setdefault(client_id, set()).add(connection)
            if group.subscribe(client_id, beat.subscriptions) or joined:
                changed.append(name)
            self._payers.pay(name, client_id, payer, sum(each.bytes for each in group.topics[client_id].values()))
        return Changes(tuple(changed))

    def filter_conflict(self, client_id: str, groups: Mapping[str, GroupHeartbeat]) -> FilterConflict | None:
        """The first member whose filter of a topic neither contains that of this client nor is contained in it."""
        for name, beat in groups.items():
            known = self._groups.get(name)
            for mine in beat.subscriptions:
                theirs = None if known is None else known.misfit(client_id, mine)
                if known is not None and theirs is not None:
                    others = (other for other in sorted(known.topics) if other != client_id)
                    member = next(other for other in others if has_filter(known.topics[other], mine.topic, theirs))
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
                if {only_kind(mine.values()), only_kind(theirs.values())} == {True, False}:
                    return Conflict(name, other, None, only_kind(theirs.values()) is True)
        return None

    def seats_with(self, connection: ConnectionId, client_id: str, groups: Iterable[str]) -> int:
        """How many seats a connection has after such a heartbeat; a seat is one client in one group."""
        return self._seats.count_with(connection, client_id, groups)

    def bytes_with(self, payer: str, client_id: str, groups: Mapping[str, GroupHeartbeat]) -> int:
        """How many bytes of subscriptions a payer pays for after such a heartbeat, at most.

        They are counted by client and not by connection: a client keeps them until its last connection has ended.
        """
        total = self._payers.total(payer)
        for name, beat in groups.items():
            known = self._groups.get(name)
            held = {} if known is None else known.topics.get(client_id, {})
            for each in {each.topic: each for each in beat.subscriptions}.values():
                now = held.get(each.topic, each)
                total += each.bytes if now == each else max(each.bytes, now.bytes)
            total -= self._payers.paid(payer, name, client_id)
        return total

    def alive(self, connection: ConnectionId, client_id: str, group: str, *, now: Millis) -> bool:
        """Record another request of a member; false if it is no member on this connection and must send a heartbeat."""
        return self._seats.heard(Seat(group, connection, client_id), now=now)

    def leave(self, connection: ConnectionId, client_id: str, group: str) -> Changes:
        """Remove a client that leaves a group; its connection may serve others."""
        known = self._groups.get(group)
        if known is not None and connection in known.members.get(client_id, ()):
            self._leaving.add((group, client_id))
            return self._remove([Seat(group, connection, client_id)])
        waited = self._waits_for(group)
        if client_id != EARLIER and self._lost.remove(group, client_id):  # it is back only to say so
            self._payers.pay(group, client_id, "", 0)
        return Changes((group,) if self._waits_for(group) != waited else ())

    def disconnected(self, connection: ConnectionId, *, now: Millis) -> Changes:
        changes = self._remove(self._seats.of_connection(connection), now=now)
        self._seats.disconnected(connection)
        return changes

    def expire(self, *, now: Millis) -> Changes:
        """Remove members that were silent for too long, even if their connection is open.

        Each call looks at a limited number of members; the next one continues.
        """
        given_up = self._give_up(now)
        removed = self._remove(sorted(self._seats.expired(now=now, limit=MAX_LOOKS)), now=now)
        return Changes(tuple(dict.fromkeys((*removed.groups, *(each.group for each in given_up)))), given_up)

    def _give_up(self, now: Millis) -> tuple[LostFilter, ...]:
        """Forget lost members whose time is over; returns those that present members wait for no more."""
        given_up: dict[tuple[str, str], LostFilter] = {}
        for name, client_id in self._lost.due(now=now, limit=MAX_LOOKS):
            filters, group = tuple(self._lost.of_member(name, client_id)), self._groups.get(name)
            waited = [each for each in filters if group is not None and group.wider_lost(each.topic) == each.tags]
            self._lost.remove(name, client_id)
            self._payers.pay(name, client_id, "", 0)
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
            self._payers.pay(group, EARLIER, "", size)
        self.filter_rows.restored(known)

    def forget_topic(self, topic: str) -> None:
        """Forget the filters that lost members had for a deleted topic."""
        for group in self._lost.groups(topic):
            for ended in self._lost.left(group, topic, ALL):
                self._payers.pay(group, ended, "", 0)

    def forget(self, group: str) -> None:
        """Forget the lost members of a deleted group."""
        for key in self._lost.members() if self._lost.topics(group) else ():
            if key[0] == group:
                self._lost.remove(*key)
                self._payers.pay(*key, "", 0)

    def paused(self, duration: Millis, *, now: Millis) -> None:
        """Do not count this time as silence: the broker itself did not run and could not receive anything.

        Once per silence. What a live member has sent waits in its socket and is received before the next pause; if
        every pause counted, an overloaded broker, which pauses all the time, would never remove a lost member.
        """
        self._lost.paused(duration, now=now)
        self._seats.paused(duration, now=now)

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
        return self._seats.client_of(connection)

    def connected(self, client_id: str) -> bool:
        """Whether the client has a connection; its leases end only with the last one."""
        return bool(self._seats.connections_of(client_id))

    def connections_of(self, client_id: str) -> tuple[ConnectionId, ...]:
        """The connections of a client, the newest first; producers have some too."""
        return self._seats.connections_of(client_id)

    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    def snapshot(self, group: str) -> GroupView | None:
        known = self._groups.get(group)
        if known is None:
            return None
        newest = (known.newest(topic) for topic in sorted(known.subscribers))
        subscriptions = tuple(each for each in newest if each is not None)
        return GroupView(self.members(group), subscriptions, *known.latest[1:])

    def _waits_for(self, group: str) -> dict[str, Tags]:
        """Topic → the filter of lost members that present members of the group wait for."""
        known = self._groups.get(group)
        wider = {} if known is None else {topic: known.wider_lost(topic) for topic in self._lost.topics(group)}
        return {topic: tags for topic, tags in wider.items() if tags is not None}

    def _remove(self, seats: Iterable[Seat], now: Millis | None = None) -> Changes:
        """Remove connections of members, who leave, or are lost `now`."""
        changed: dict[str, None] = {}
        for seat in seats:
            if not self._seats.leave(seat):
                continue
            name, connection, client_id = seat
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
        group, payer = self._groups[name], self._payers.of(name, client_id)
        held = group.topics[client_id]
        counted = {topic: each for topic, each in held.items() if each.ordered is not None and each.is_compared}
        group.leave(client_id)
        if now is None or (name, client_id) in self._leaving:
            self._leaving.discard((name, client_id))
            self._payers.pay(name, client_id, "", 0)
            for topic, subscription in counted.items():
                for ended in self._lost.left(name, topic, subscription.tags):
                    self._payers.pay(name, ended, "", 0)
        else:
            self._lost.add(name, client_id, {topic: each.tags for topic, each in counted.items()}, now=now)
            self._payers.pay(name, client_id, payer, sum(each.bytes for each in counted.values()))
