"""Which member of a group consumes which queues.

There is no coordinator: every member computes the whole allocation for itself and keeps its own part. That
only works when all of them sort alike and use the same strategy, so both lists are sorted here, as RocketMQ
sorts them, before anything else. Over all members the parts are disjoint and complete (except `by_config`,
which does what it is told, and `by_machine_room`, which leaves out foreign rooms). A member that is not in
the list gets nothing, and so does everybody while queues or members are unknown.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from hashlib import md5

from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue

Allocate = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""(all queues of a topic, all members of the group, me) to my queues."""


def averagely(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Neighbouring queues in shares that differ by one at most; AllocateMessageQueueAveragely, "AVG"."""
    queues, members = _sorted(queues, members)
    if not queues or me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return queues[start : start + share + (index < rest)]


def averagely_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Dealt out one by one; AllocateMessageQueueAveragelyByCircle, "AVG_BY_CIRCLE"."""
    queues, members = _sorted(queues, members)
    return queues[members.index(me) :: len(members)] if me in members else []


def consistent_hash(virtual_nodes: int = 10) -> Allocate:
    """A member that comes or goes moves few queues; AllocateMessageQueueConsistentHash, "CONSISTENT_HASH".

    Shares are uneven: this trades balance for fewer hand-overs.
    """
    if virtual_nodes < 1:
        raise InvalidOption(f"virtual_nodes={virtual_nodes} leaves the ring empty: use at least 1")

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        queues, members = _sorted(queues, members)
        if me not in members:
            return []
        ring = {_ring_hash(f"{name}-{n}"): name for name in members for n in range(virtual_nodes)}
        points = sorted(ring)
        return [queue for queue in queues if ring[_next_point(points, _ring_hash(_java_text(queue)))] == me]

    return allocate


def by_config(mine: Sequence[MessageQueue]) -> Allocate:
    """A fixed list, whoever else is there; AllocateMessageQueueByConfig, "CONFIG"."""
    fixed = sorted(mine)

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        return list(fixed)

    return allocate


def by_machine_room(rooms: Collection[str]) -> Allocate:
    """Only queues of brokers named `room@broker` with a room of ours; AllocateMessageQueueByMachineRoom.

    What a remainder leaves over goes to the first members, one each.
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
    """Queues stay with members of their own room; a room without members is shared by all.

    RocketMQ's AllocateMachineRoomNearby; `inner` divides the queues inside a room.
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
        # Members of other rooms ask too, and get nothing: `inner` does not find them among the neighbours.
        return sorted(q for room, part in rooms.items() for q in inner(part, neighbours.get(room, members), me))

    return allocate


def _sorted(queues: Sequence[MessageQueue], members: Sequence[str]) -> tuple[list[MessageQueue], list[str]]:
    # Java compares text by UTF-16 units, Python by code points; they part beyond the BMP.
    return sorted(set(queues)), sorted(set(members), key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _room(queue: MessageQueue) -> str | None:
    parts = queue.broker.split("@")
    return parts[0] if len(parts) == 2 else None


def _ring_hash(text: str) -> int:
    """The first four bytes of an MD5, as RocketMQ's ConsistentHashRouter takes them."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _next_point(points: list[int], at: int) -> int:
    """The first point at or behind `at`; behind the last one the ring begins again."""
    return points[bisect_left(points, at) % len(points)]


def _java_text(queue: MessageQueue) -> str:
    """`MessageQueue.toString()` in Java: what is hashed onto the ring."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
