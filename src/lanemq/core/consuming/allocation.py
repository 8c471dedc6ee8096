"""Which member of a group consumes which queues.

There is no coordinator: every member computes the whole allocation and takes its own share. All members must use the
same strategy and sort alike, so both lists are first sorted as RocketMQ sorts them. The shares of all members are
disjoint and complete, except with `by_config`, whose list is fixed, and `by_machine_room`, which leaves out other
rooms. A member that is not in the list gets nothing.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from hashlib import md5

from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue

Allocate = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""A strategy: takes all queues of a topic, all members of the group and this member; returns this member's queues."""


def averagely(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Contiguous shares whose sizes differ by at most one; AllocateMessageQueueAveragely, "AVG"."""
    queues, members = _sorted(queues, members)
    if not queues or me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return queues[start : start + share + (index < rest)]


def averagely_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Queues dealt out one by one; AllocateMessageQueueAveragelyByCircle, "AVG_BY_CIRCLE"."""
    queues, members = _sorted(queues, members)
    return queues[members.index(me) :: len(members)] if me in members else []


def consistent_hash(virtual_nodes: int = 10) -> Allocate:
    """A hash ring, so that few queues move when members change; AllocateMessageQueueConsistentHash, "CONSISTENT_HASH".

    The shares are uneven.
    """
    if virtual_nodes < 1:
        raise InvalidOption(f"virtual_nodes={virtual_nodes} leaves the hash ring empty: use at least 1")

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        queues, members = _sorted(queues, members)
        if me not in members:
            return []
        ring = {_ring_hash(f"{name}-{n}"): name for name in members for n in range(virtual_nodes)}
        points = sorted(ring)
        return [queue for queue in queues if ring[_next_point(points, _ring_hash(_java_text(queue)))] == me]

    return allocate


def by_config(mine: Sequence[MessageQueue]) -> Allocate:
    """A fixed list, whatever other members do; AllocateMessageQueueByConfig, "CONFIG"."""
    fixed = sorted(mine)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        return list(fixed)

    return allocate


def by_machine_room(rooms: Collection[str]) -> Allocate:
    """Only queues of brokers named `room@broker` in the given rooms; AllocateMessageQueueByMachineRoom.

    Queues left over by the division go to the first members, one each.
    """
    ours = frozenset(rooms)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        queues, members = _sorted([queue for queue in queues if _room(queue) in ours], members)
        if me not in members:
            return []
        index, count = members.index(me), len(members)
        share, rest = divmod(len(queues), count)
        mine = queues[index * share : (index + 1) * share]
        return mine + queues[share * count + index :][:1] if index < rest else mine

    return allocate


def nearby_machine_room(
    inner: Allocate, room_of_queue: Callable[[MessageQueue], str], room_of_member: Callable[[str], str]
) -> Allocate:
    """Queues go to members of the same room; all members share the queues of a room without members.

    RocketMQ's AllocateMachineRoomNearby. `inner` allocates the queues inside a room.
    """

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        queues, members = _sorted(queues, members)
        if me not in members:
            return []
        neighbours: dict[str, list[str]] = defaultdict(list)
        for member in members:
            neighbours[room_of_member(member)].append(member)
        rooms: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            rooms[room_of_queue(queue)].append(queue)
        # Members of other rooms get nothing: `inner` does not find them among the neighbours.
        return sorted(q for room, part in rooms.items() for q in inner(part, neighbours.get(room, members), me))

    return allocate


def _sorted(queues: Sequence[MessageQueue], members: Sequence[str]) -> tuple[list[MessageQueue], list[str]]:
    # Java compares text by UTF-16 units, Python by code points; the results differ beyond the BMP.
    return sorted(set(queues)), sorted(set(members), key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _room(queue: MessageQueue) -> str | None:
    parts = queue.broker.split("@")
    return parts[0] if len(parts) == 2 else None


def _ring_hash(text: str) -> int:
    """The first four bytes of the MD5, as in RocketMQ's ConsistentHashRouter."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _next_point(points: list[int], at: int) -> int:
    """The first point at or after `at`; after the last point the ring starts again."""
    return points[bisect_left(points, at) % len(points)]


def _java_text(queue: MessageQueue) -> str:
    """`MessageQueue.toString()` in Java, which is hashed onto the ring."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
