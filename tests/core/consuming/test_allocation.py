"""Every queue has exactly one owner, in whatever order the lists arrive."""

import random
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.consuming.allocation import (
    Allocate,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    nearby_machine_room,
)
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("orders", broker, number) for number in range(count)]


def members(count: int, room: str = "m") -> list[str]:
    return [f"{room}@{number:02}" for number in range(count)]


def ids(part: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in part]


NEARBY = nearby_machine_room(averagely, lambda queue: queue.broker, lambda member: member.split("@")[0])
COMPLETE: dict[str, Allocate] = {
    "averagely": averagely,
    "by circle": averagely_by_circle,
    "consistent hash": consistent_hash(),
    "nearby": NEARBY,
}


@pytest.mark.row("A46")
def test_averagely_gives_every_queue_one_owner_for_all_sizes_up_to_32() -> None:
    for count in range(33):
        for size in range(1, 33):
            everything, group = queues(count), members(size)
            parts = [averagely(everything, group, me) for me in group]
            assert [queue for part in parts for queue in part] == everything
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.row("A46")
@pytest.mark.parametrize("name", COMPLETE)
@given(count=st.integers(0, 20), other=st.integers(0, 5), size=st.integers(1, 8), shuffle=st.integers(0, 9))
def test_shares_are_disjoint_complete_and_independent_of_input_order(
    name: str, count: int, other: int, size: int, shuffle: int
) -> None:
    everything = queues(count, "m") + queues(other, "far")
    group = members(size) + members(2, "n")
    shuffled_queues, shuffled_group = everything[:], group[:]
    random.Random(shuffle).shuffle(shuffled_queues)
    random.Random(shuffle + 1).shuffle(shuffled_group)
    owned: list[MessageQueue] = []
    for me in group:
        part = COMPLETE[name](everything, group, me)
        assert part == COMPLETE[name](shuffled_queues, shuffled_group, me)
        owned += part
    assert sorted(owned) == sorted(everything)


@pytest.mark.row("A46")
@pytest.mark.parametrize("name", COMPLETE)
def test_unknown_member_or_empty_lists_get_nothing(name: str) -> None:
    allocate = COMPLETE[name]
    assert allocate(queues(4), members(2), "stranger") == []
    assert allocate([], members(2), "m@00") == []
    assert allocate(queues(4), [], "m@00") == []


@pytest.mark.parametrize(("me", "mine"), [("m@00", [0, 1, 2]), ("m@01", [3, 4, 5]), ("m@02", [6, 7])])
def test_averagely_gives_contiguous_shares(me: str, mine: list[int]) -> None:
    assert ids(averagely(queues(8), members(3), me)) == mine


def test_by_circle_deals_one_by_one() -> None:
    assert ids(averagely_by_circle(queues(8), members(3), "m@01")) == [1, 4, 7]


def test_members_are_sorted_as_java_sorts_text() -> None:
    """U+1F600 is two surrogates in Java, which sort before U+FB01; Python sorts them the other way round."""
    group = ["\ufb01", "\U0001f600"]
    assert ids(averagely(queues(2), group, "\U0001f600")) == [0]


def test_consistent_hash_follows_rocketmqs_ring() -> None:
    """Computed here from the description of the ring: ten points per member, the first four bytes of the MD5."""

    def at(text: str) -> int:
        return int(md5(text.encode()).hexdigest()[:8], 16)

    group = members(3)
    ring = sorted((at(f"{member}-{n}"), member) for member in group for n in range(10))
    for queue in queues(16):
        spot = at(f"MessageQueue [topic=orders, brokerName=broker-a, queueId={queue.queue_id}]")
        owner = next((member for point, member in ring if point >= spot), ring[0][1])
        assert queue in consistent_hash()(queues(16), group, owner)


def test_consistent_hash_moves_only_the_queues_of_a_member_that_left() -> None:
    allocate, group = consistent_hash(), members(5)
    before = {queue: me for me in group for queue in allocate(queues(64), group, me)}
    after = {queue: me for me in group[:-1] for queue in allocate(queues(64), group[:-1], me)}
    assert all(after[queue] == me for queue, me in before.items() if me != group[-1])


def test_consistent_hash_without_virtual_nodes_is_refused() -> None:
    with pytest.raises(InvalidOption, match="virtual_nodes"):
        consistent_hash(0)


def test_by_config_returns_its_fixed_list() -> None:
    mine = queues(2)
    assert by_config(mine)(queues(9), members(3), "m@02") == mine


def test_by_machine_room_leaves_other_rooms_out_and_shares_the_rest() -> None:
    everything = queues(5, "east@a") + queues(3, "west@b") + queues(2, "roomless")
    parts = [by_machine_room({"east"})(everything, members(2), me) for me in members(2)]
    assert [ids(part) for part in parts] == [[0, 1, 4], [2, 3]]
    assert {queue.broker for part in parts for queue in part} == {"east@a"}
    assert by_machine_room({"east"})(everything, members(2), "stranger") == []


def test_nearby_keeps_queues_in_their_room_and_shares_rooms_without_members() -> None:
    everything = queues(4, "m") + queues(2, "n") + queues(2, "empty")
    group = [*members(2, "m"), *members(1, "n")]
    mine = {me: {queue.broker for queue in NEARBY(everything, group, me)} for me in group}
    assert mine["m@00"] == {"m", "empty"}
    assert "m" not in mine["n@00"]
    assert "n" in mine["n@00"]
