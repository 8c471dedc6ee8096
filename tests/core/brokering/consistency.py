"""Checks that what a table keeps in several places agrees: sums with their parts, indexes with entries.

`check(table)` raises `AssertionError` if it does not. These are the only tests that look into the tables: a sum that
drifts, or an entry that is left behind, shows in their answers much later, or never.
"""

from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from lanemq.core.brokering.dedup import MAX_SEQUENCE_RANGES, ProducerTable
from lanemq.core.brokering.lock_table import NO_OWNER, LockTable
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.members.filter_rows import FilterRows
from lanemq.core.brokering.members.group import Group, add_count
from lanemq.core.brokering.members.lost_members import LostMembers
from lanemq.core.brokering.members.membership import Membership
from lanemq.core.brokering.members.seats import Seat, Seats
from lanemq.core.brokering.members.tag_filters import Relation, TopicFilters, compare
from lanemq.core.brokering.quotas import Quota, Quotas


@singledispatch
def check(table: object) -> None:
    raise TypeError(f"nothing is known of {type(table).__name__}")


@check.register
def _lock_table(table: LockTable) -> None:
    owned = {
        (group, queue): entry
        for group, topics in table._groups.items()
        for held in topics.values()
        for queue, entry in held.items()
        if entry.owner != NO_OWNER
    }
    indexed = [
        (entry.owner, key) for own in table._by_owner.values() for key, entry in own.items() if table._knows(entry)
    ]
    assert sorted(indexed) == sorted((entry.owner, key) for key, entry in owned.items())
    assert all(table._by_owner.values())
    assert {*table._keep_alives._serials, *table._keep_alives._seen} <= table._by_owner.keys()
    assert all(topics and all(topics.values()) for topics in table._groups.values())
    assert table._counts == {group: len(list(table._entries(group))) for group in table._groups}
    assert all(group in table._groups_of[topic] for group, topics in table._groups.items() for topic in topics)
    assert all(table._groups_of.values())
    assert table._highest >= max([table.floor, *(entry.epoch for entry in owned.values())])
    for (group, queue), entry in owned.items():
        assert entry.epoch > 0
        if entry.wake_at is not None:
            assert entry.wake_at <= entry.expires_at
            assert (entry.wake_at, group, queue) in table._ends


@check.register
def _producer_table(table: ProducerTable) -> None:
    assert len(table._producers) <= table._capacity
    assert table._of_topic.keys() == {key[0] for key in table._producers}
    assert {key for held in table._of_topic.values() for key in held} == table._producers.keys()
    assert table._users.keys() <= table._producers.keys()
    assert {(key, user) for user, held in table._of_user.items() for key in held} == set(table._users.items())
    assert all(0 < len(held) <= table._user_capacity for held in table._of_user.values())
    assert not table._dirty & table._gone
    assert table._dirty <= table._producers.keys()
    if table._saving is not None:
        assert table._saving.left <= table._saving.keys & table._producers.keys()
        assert table._saving.rows.keys() <= table._saving.keys
    for known in table._producers.values():
        ends = [each.sequence + each.length for each in known.ranges]
        assert not ends or ends[-1] == known.next_sequence
        assert all(end <= each.sequence for end, each in zip(ends, known.ranges[1:], strict=False))
        assert len(known.ranges) <= MAX_SEQUENCE_RANGES


@check.register
def _quotas(quotas: Quotas) -> None:
    sums: dict[tuple[Quota, str], int] = {}
    for quota, held in quotas._held.items():
        for party, count in held.values():
            sums[quota, party] = sums.get((quota, party), 0) + count
    assert sums == quotas._sums
    assert all(quotas.over(quota, party, count) is None for (quota, party), count in sums.items())


@check.register(LongPolls)
def _long_polls(polls: LongPolls[Any]) -> None:
    assert all(polls._queues.values())
    assert {poll_id for waiting in polls._queues.values() for poll_id in waiting} == polls._held.keys()
    assert sum(map(polls._counts, polls._deadlines)) == len(polls._held) <= polls._capacity


@check.register
def _membership(table: Membership) -> None:
    seats = {
        Seat(name, connection, client_id)
        for name, group in table._groups.items()
        for client_id, connections in group.members.items()
        for connection in connections
    }
    assert seats == table._seats._expiries.keys()
    check(table._seats)
    for group in table._groups.values():
        _check_group(group)
    held = {
        (name, client_id): sum(each.bytes for each in topics.values())
        for name, group in table._groups.items()
        for client_id, topics in group.topics.items()
        if topics
    }
    _check_lost(table._lost)
    known = {*table._groups, *(group for group, _ in table._lost.members())}
    named = ((group, topic) for group in known for topic in table.selections(group))
    _check_rows(table.filter_rows, (key for key in named if table.widest(*key) is not None))
    payers = table._payers._members
    held |= {key: payers[key][1] for key in table._lost.members()}
    assert held == {key: size for key, (_, size) in payers.items()}
    paid: dict[str, int] = {}
    for payer, size in payers.values():
        add_count(paid, payer, size)
    assert paid == table._payers._totals


@check.register
def _seats(seats: Seats) -> None:
    expiries = seats._expiries
    assert expiries.keys() == {seat for held in seats._of_connection.values() for seat in held}
    assert seats._of_connection.keys() <= seats._clients.keys()
    assert {(client, c) for client, held in seats._connections_of.items() for c in held} == {
        (client, connection) for connection, client in seats._clients.items()
    }
    assert all(seats._connections_of.values())
    watched = {seat: at for at, serial, seat in seats._ends if seat in expiries and expiries[seat].serial == serial}
    assert watched.keys() == expiries.keys()
    assert all(watched[seat] <= expiry.at for seat, expiry in expiries.items())


def _check_group(group: Group) -> None:
    assert group.members
    assert all(group.members.values())
    assert group.members.keys() == group.topics.keys()
    fresh = Group(group.name, group.latest, group.lost, FilterRows(lambda *_: None))
    for topics in group.topics.values():
        fresh._count(topics, 1)
    assert (fresh.subscribers, fresh.sizes) == (group.subscribers, group.sizes)
    assert (fresh.kinds, fresh.only) == (group.kinds, group.only)
    assert fresh.filters.keys() == group.filters.keys()
    for topic, filters in group.filters.items():
        assert (filters.counts, filters.stock) == (fresh.filters[topic].counts, fresh.filters[topic].stock)
        _check_filters(filters)


def _check_rows(rows: FilterRows, counted: Iterable[tuple[str, str]]) -> None:
    counts = {key: rows._widest(*key) for key in counted if key not in rows._changed}
    assert counts == {key: tags for key, tags in rows._written.items() if key not in rows._changed}


def _check_lost(lost: LostMembers) -> None:
    listed = {
        (group, topic, client, tags, until)
        for group, topics in lost._filters.items()
        for topic, filters in topics.items()
        for tags, clients in filters.clients.items()
        for client, until in clients.items()
    }
    members = lost._members.items()
    assert listed == {
        (group, topic, client, tags, member.until)
        for (group, client), member in members
        for topic, tags in member.topics.items()
    }
    assert all(member.topics for _, member in members)
    assert all(lost._filters.values())
    assert all(filters for topics in lost._filters.values() for filters in topics.values())
    ends = [member.until for _, member in members]
    assert ends == sorted(ends)


@check.register
def _check_filters(filters: TopicFilters) -> None:
    assert all(count > 0 for count in (*filters.counts.values(), *filters.stock.values()))
    assert (filters.widest is None) is (not filters.counts)
    if filters.widest is not None:
        assert filters.widest in filters.counts
        assert all(compare(each, filters.widest) is not Relation.WIDER for each in filters.counts)
