"""Who belongs to which group, as far as heartbeats and connections tell.

The rule guarded here: a change is announced once. Members compute their own share of the queues from the
list that this table gives out, so every real change must reach them, and a change that is none would make
the whole group rebalance for nothing.

A member is a client id; it may be there through several connections (a reconnect overlaps with the end of
the old one) and leaves with the last of them. A subscription belongs to the group, as in RocketMQ: the
newest version wins, and topics that a heartbeat does not name are removed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, TypeAlias

from lanemq.model.units import Millis

MEMBER_EXPIRY_MS = Millis(120_000)
"""RocketMQ: `ConsumerManager.CHANNEL_EXPIRED_TIMEOUT`."""

ConnectionId = NewType("ConnectionId", int)


class Subscription(NamedTuple):
    """What a group wants of one topic."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    tags: frozenset[str] = frozenset()
    tag_codes: frozenset[int] = frozenset()


class GroupHeartbeat(NamedTuple):
    """What one heartbeat says about one group. The three texts are wire values, kept for the admin views."""

    subscriptions: tuple[Subscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Changes(NamedTuple):
    """The groups whose members must be told to look again, each once, in the order noticed."""

    groups: tuple[str, ...]


class GroupView(NamedTuple):
    """One group, for people."""

    members: tuple[str, ...]
    subscriptions: tuple[Subscription, ...]
    consume_type: str
    message_model: str
    from_where: str


_Seat: TypeAlias = tuple[ConnectionId, str]


@dataclass(slots=True)
class _Group:
    """Exists only while it has a member; a member only while it has a connection."""

    latest: GroupHeartbeat
    members: dict[str, set[ConnectionId]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


class Membership:
    """All consumer groups of one broker."""

    def __init__(self, *, expiry_ms: int = MEMBER_EXPIRY_MS) -> None:
        self._expiry_ms = expiry_ms
        self._groups: dict[str, _Group] = {}
        # Every seat of every group with its last heartbeat, longest silent first.
        self._seen: dict[tuple[str, _Seat], Millis] = {}
        # The same seats by connection, so that a disconnect touches nothing else.
        self._by_connection: dict[ConnectionId, set[tuple[str, _Seat]]] = {}
        self._clients: dict[ConnectionId, str] = {}
        self._connections_of: dict[str, set[ConnectionId]] = {}

    def heartbeat(
        self,
        connection: ConnectionId,
        client_id: str,
        groups: Mapping[str, GroupHeartbeat],
        *,
        now: Millis,
    ) -> Changes:
        """Note that a client is alive in these groups. One it no longer names is left by silence, later."""
        self._name(connection, client_id)
        changed = []
        for name, beat in groups.items():
            group = self._groups.setdefault(name, _Group(beat))
            group.latest = beat
            joined = self._sit(name, group, (connection, client_id), now)
            if _resubscribe(group.subscriptions, beat.subscriptions) or joined:
                changed.append(name)
        return Changes(tuple(changed))

    def leave(self, connection: ConnectionId, client_id: str, group: str) -> Changes:
        """The client says goodbye to one group; its connection may serve others."""
        return self._stand_up([(group, (connection, client_id))])

    def disconnected(self, connection: ConnectionId) -> Changes:
        changes = self._stand_up(sorted(self._by_connection.get(connection, ())))
        self._by_connection.pop(connection, None)
        self._name(connection, None)
        return changes

    def expire(self, *, now: Millis) -> Changes:
        """Remove who sent no heartbeat for too long; the connection may still be open."""
        silent = []
        for key, seen in self._seen.items():
            if seen + self._expiry_ms > now:
                break
            silent.append(key)
        return self._stand_up(silent)

    def next_deadline(self) -> Millis | None:
        for seen in self._seen.values():
            return Millis(seen + self._expiry_ms)
        return None

    def members(self, group: str) -> tuple[str, ...]:
        """Client ids, each once, sorted: every member must see the same list in the same order."""
        known = self._groups.get(group)
        return () if known is None else tuple(sorted(known.members))

    def connections(self, group: str) -> tuple[ConnectionId, ...]:
        """Where to send the group's notices."""
        known = self._groups.get(group)
        return () if known is None else tuple(sorted(set().union(*known.members.values())))

    def subscription(self, group: str, topic: str) -> Subscription | None:
        known = self._groups.get(group)
        return None if known is None else known.subscriptions.get(topic)

    def client_of(self, connection: ConnectionId) -> str | None:
        """Whose connection it is; None before its first heartbeat."""
        return self._clients.get(connection)

    def connected(self, client_id: str) -> bool:
        """Whether the client has any connection: its leases end only with the last one."""
        return client_id in self._connections_of

    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    def snapshot(self, group: str) -> GroupView | None:
        known = self._groups.get(group)
        if known is None:
            return None
        subscriptions = tuple(known.subscriptions[topic] for topic in sorted(known.subscriptions))
        return GroupView(self.members(group), subscriptions, *known.latest[1:])

    def _sit(self, name: str, group: _Group, seat: _Seat, now: Millis) -> bool:
        """True if the client is new in the group, not only this connection."""
        self._seen.pop((name, seat), None)
        self._seen[name, seat] = now
        connection, client_id = seat
        joined = client_id not in group.members
        group.members.setdefault(client_id, set()).add(connection)
        self._by_connection.setdefault(connection, set()).add((name, seat))
        return joined

    def _stand_up(self, keys: Iterable[tuple[str, _Seat]]) -> Changes:
        changed: dict[str, None] = {}
        for name, seat in keys:
            if self._seen.pop((name, seat), None) is None:
                continue
            connection, client_id = seat
            self._by_connection[connection].discard((name, seat))
            members = self._groups[name].members
            members[client_id].discard(connection)
            if not members[client_id]:
                del members[client_id]
                changed[name] = None
            if not members:
                del self._groups[name]
        return Changes(tuple(changed))

    def _name(self, connection: ConnectionId, client_id: str | None) -> None:
        """Keep both directions of "whose connection" together; None when it closed."""
        former = self._clients.pop(connection, None)
        if former is not None:
            self._connections_of[former].discard(connection)
            if not self._connections_of[former]:
                del self._connections_of[former]
        if client_id is not None:
            self._clients[connection] = client_id
            self._connections_of.setdefault(client_id, set()).add(connection)

    def _check(self) -> None:
        seats = {
            (name, (connection, client_id))
            for name, group in self._groups.items()
            for client_id, connections in group.members.items()
            for connection in connections
        }
        assert seats == self._seen.keys()
        assert seats == {key for keys in self._by_connection.values() for key in keys}
        assert self._by_connection.keys() <= self._clients.keys()
        assert {(client, c) for client, held in self._connections_of.items() for c in held} == {
            (client, connection) for connection, client in self._clients.items()
        }
        assert all(group.members and all(group.members.values()) for group in self._groups.values())
        assert list(self._seen.values()) == sorted(self._seen.values())


def _resubscribe(held: dict[str, Subscription], named: Iterable[Subscription]) -> bool:
    """Bring a group's table up to a heartbeat's; True if the set of topics changed.

    A newer expression for a known topic is taken over silently: it moves no queue.
    """
    topics = set(held)
    wanted = {subscription.topic: subscription for subscription in named}
    for topic, subscription in wanted.items():
        if topic not in held or subscription.version > held[topic].version:
            held[topic] = subscription
    for topic in topics - wanted.keys():
        del held[topic]
    return topics != wanted.keys()
