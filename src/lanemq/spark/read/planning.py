"""Turns positions into the ranges of a batch and its tasks, with rate limits and data losses. Pure functions.

Invariants: a queue's range is in one task unless `ordered` is false; a limit is never exceeded; the same start and end
always give the same ranges, and with the same `least` the same tasks; a message that no longer exists is always
reported; an empty range gets no task.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final, NamedTuple

from lanemq.clock import wall_time
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.spark.offsets import Bounds, Positions, Stored, creation_key

Reads = Callable[[str], bool]
"""Whether a query's options select a topic."""

MESSAGES_PER_TASK: Final = 100_000
"""A batch has a task for each so many messages. A task costs 10 to 35 ms of CPU time, a message 2 to 3 µs. Fewer: that
cost shows. More: a large batch uses fewer cores than an elastic cluster could add, and a failed task repeats more."""


def _all(_: str) -> bool:
    return True


class OffsetRange(NamedTuple):
    """Offsets of one queue from `first` up to, but not including, `end`."""

    queue: MessageQueue
    first: QueueOffset
    end: QueueOffset


@dataclass(frozen=True, slots=True)
class ResumePoints:
    """Where reading continues in each queue, and what can no longer be read."""

    offsets: Positions
    set_back: Positions
    """Queues that end before the position, with where reading continues. This batch reads nothing from them."""
    losses: tuple[str, ...]


def replaced_queues(
    start: Positions, created: Mapping[str, int], now: Mapping[str, int], bounds: Mapping[MessageQueue, Bounds]
) -> Positions:
    """Queues of topics that were created again since `start`, with their first offset.

    `created` and `now` say when the topics were created, then and now. Queues of which nothing was read are left out.
    """
    return {
        queue: bounds[queue].first
        for queue, at in start.items()
        if at and queue in bounds and _differ(created.get(creation_key(queue)), now.get(creation_key(queue)))
    }


def queues_left_out(
    start: Positions, created: Mapping[str, int], now: Mapping[str, int], bounds: Mapping[MessageQueue, Bounds]
) -> frozenset[MessageQueue]:
    """Queues that a topic does not have any more since it was created again: their positions mean nothing."""
    return frozenset(
        queue
        for queue in start
        if queue not in bounds and _differ(created.get(creation_key(queue)), now.get(creation_key(queue)))
    )


def lasting_topics(created: Mapping[str, int], now: Mapping[str, int]) -> frozenset[str]:
    """The keys of topics that are known to be the same, then and now."""
    return frozenset(key for key, at in created.items() if now.get(key) == at)


def other_log(queue: MessageQueue, at: int, before: int, now: int) -> str:
    """The loss of a query at offset `at` if the message below it was stored at `before`, and that of today at `now`."""
    return (
        f"{queue}: message {at - 1} was stored at {_shown(before)}, and now another one has its offset, stored at "
        f"{_shown(now)}: the broker was restored from an older backup, or has lost the end of its log, and the query "
        f"would skip newer messages below {at}. A new checkpoint with startingTimestamp={before + 1} reads them; a "
        f"pipeline begins with an empty checkpoint and table"
    )


def _shown(stored: int) -> str:
    return wall_time(stored).isoformat(timespec="milliseconds")


def other_ends(start: Positions, before: Stored, now: Stored) -> Iterator[str]:
    """A loss for each queue that ends at the query's position, but with another message than when it was read."""
    for queue, at in start.items():
        was, end = before.get(queue), now.get(queue)
        if was is not None and end is not None and was.offset == end.offset == at - 1 and was.stored != end.stored:
            yield other_log(queue, at, was.stored, end.stored)


def _differ(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and before != now


def replaced_loss(queue: MessageQueue, at: int) -> str:
    return (
        f"{queue}: the query is at offset {at} of a topic that was deleted and created again since; what the old topic "
        f"held after that is gone"
    )


def resume_points(
    start: Positions, bounds: Mapping[MessageQueue, Bounds], reads: Reads = _all, lasting: Collection[str] = ()
) -> ResumePoints:
    """Where to continue from `start`, given what the queues hold now. A new queue begins at its first message.

    A queue that ends before the position belongs to a topic that was created again, and is read from its first message;
    unless its topic is one of `lasting`: then the broker was restored from a backup, and the query has read all of it.
    """
    offsets: Positions = {}
    set_back: Positions = {}
    losses = [_gone(queue, start[queue], reads) for queue in start if queue not in bounds]
    for queue, (first, end) in bounds.items():
        at = start.get(queue, first)
        if at > end:
            is_same = creation_key(queue) in lasting
            set_back[queue] = end if is_same else first
            losses.append(_ends_before(queue, at, end, _RESTORED if is_same else _RECREATED))
            continue
        offsets[queue] = max(at, first)
        if at < first:
            losses.append(f"{queue}: messages {at} to {first - 1} are gone, the first one left is {first}")
    return ResumePoints(offsets, set_back, tuple(losses))


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a batch reads."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def plan_batch(
    start: Positions, end: Positions, bounds: Mapping[MessageQueue, Bounds], reads: Reads = _all
) -> BatchPlan:
    """The ranges of the batch from `start` to `end`; a queue whose end is before its start is not read."""
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for queue, until in sorted(end.items()):
        held = bounds.get(queue)
        if held is None:
            if until > start.get(queue, 0):
                losses.append(_gone(queue, start.get(queue, QueueOffset(0)), reads))
            continue
        at = start.get(queue, held.first)
        if at >= until:
            continue
        first, last = max(at, min(held.first, until)), min(until, held.end)
        if first > at:
            losses.append(f"{queue}: messages {at} to {first - 1} are gone, the first one left is {held.first}")
        if last < until:
            losses.append(_ends_before(queue, until, held.end, _RECREATED))
        if first < last:
            ranges.append(OffsetRange(queue, QueueOffset(first), QueueOffset(last)))
    return BatchPlan(tuple(ranges), tuple(losses))


def available(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """The number of messages between two positions."""
    return sum(max(0, end[queue] - start[queue]) for queue in start if queue in end)


def limit_rows(start: Positions, end: Positions, limit: int) -> Positions:
    """End positions for at most `limit` messages in total, shared in proportion to each queue's backlog.

    Every queue with a backlog gets at least one message. If `limit` is too small for that, queues take turns from batch
    to batch, so that no queue waits for another one's backlog to end.
    """
    sizes = {queue: max(0, end[queue] - start[queue]) for queue in start}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    shares = dict.fromkeys(sizes, 0)
    for queue in _in_turn(start, sizes)[:limit]:
        shares[queue] = 1
    rest = limit - sum(shares.values())
    open_total = sum(sizes[queue] - shares[queue] for queue in sizes)
    for queue, size in sizes.items():
        shares[queue] += rest * (size - shares[queue]) // open_total
    left = limit - sum(shares.values())
    for queue in sorted(sizes, key=lambda each: (sizes[each], each), reverse=True):
        more = min(left, sizes[queue] - shares[queue])
        shares[queue] += more
        left -= more
    return {queue: QueueOffset(start[queue] + shares[queue]) for queue in start}


def _in_turn(start: Positions, sizes: Mapping[MessageQueue, int]) -> list[MessageQueue]:
    """Queues with a backlog. A full batch changes the sum of all positions, and with it the queue that comes first."""
    ring = sorted(start)
    first = sum(start.values()) % len(ring)
    return [queue for queue in ring[first:] + ring[:first] if sizes[queue]]


def limit_bytes(start: Positions, end: Positions, sizes: Mapping[MessageQueue, float], limit: int) -> Positions:
    """End positions for about `limit` bytes, given the message size in each queue; at least one message."""
    rows = {queue: max(0, end[queue] - start[queue]) for queue in start}
    total = sum(rows[queue] * sizes.get(queue, 1.0) for queue in rows)
    if total <= limit:
        return dict(end)
    scaled = sum(int(count * limit / total) for count in rows.values())
    return limit_rows(start, end, max(1, scaled))


def must_wait(ready: int, least: int, waited: Millis, limit: Millis) -> bool:
    """Whether a batch must still wait for `least` messages; after `limit` any message is enough."""
    return ready < least and (ready == 0 or waited < limit)


def split(ranges: Iterable[OffsetRange], least: int) -> tuple[OffsetRange, ...]:
    """Splits ranges into at least `least` partitions, if there are enough messages. Only for `ordered=false`."""
    ranges = tuple(ranges)
    total = sum(each.end - each.first for each in ranges)
    if len(ranges) >= least or not total:
        return ranges
    parts: list[OffsetRange] = []
    for each in ranges:
        size = each.end - each.first
        count = min(size, max(1, -(-least * size // total)))
        edges = [each.first + size * number // count for number in range(count + 1)]
        parts += [OffsetRange(each.queue, QueueOffset(first), QueueOffset(end)) for first, end in pairwise(edges)]
    return tuple(parts)


def pack(ranges: Iterable[OffsetRange], least: int | None) -> tuple[tuple[OffsetRange, ...], ...]:
    """Divides ranges among tasks, by their numbers of messages. A range stays whole.

    There are `least` tasks, or the smallest multiple of it with a task for each `MESSAGES_PER_TASK` messages, but not
    more tasks than ranges. None: each range is a task of its own. The largest ranges are placed first, each in the task
    that has the fewest messages, so no task has more messages than another one and its own smallest range together.
    Ranges keep their order within a task, and tasks are in the order of their first ranges.
    """
    ranges = tuple(ranges)
    sizes = [each.end - each.first for each in ranges]
    count = len(ranges) if least is None else least * max(1, -(-sum(sizes) // (least * MESSAGES_PER_TASK)))
    if count >= len(ranges):
        return tuple((each,) for each in ranges)
    loads = [(0, task) for task in range(count)]
    tasks: list[list[int]] = [[] for _ in loads]
    for at in sorted(range(len(ranges)), key=lambda at: (-sizes[at], at)):
        load, task = heappop(loads)
        tasks[task].append(at)
        heappush(loads, (load + sizes[at], task))
    return tuple(tuple(ranges[at] for at in each) for each in sorted(map(sorted, tasks)))


def _gone(queue: MessageQueue, at: int, reads: Reads) -> str:
    if not reads(queue.topic):
        return (
            f"{queue}: the checkpoint is at offset {at}, but the options no longer select topic {queue.topic}; select "
            f"it again and the query continues there"
        )
    return f"{queue}: the queue or its topic no longer exists; the query was at offset {at}"


_RESTORED: Final = "the broker was restored from an older backup, and what it held after that is gone"
_RECREATED: Final = "its topic was deleted and created again, or the broker was restored from an older backup"


def _ends_before(queue: MessageQueue, at: int, end: int, why: str) -> str:
    return f"{queue}: the query is at offset {at}, the queue ends at {end}: {why}"
