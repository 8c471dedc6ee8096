"""From positions to what is read: ranges, rate limits, losses. Pure.

The rules guarded here: a queue's range is one partition unless the query gave up order; a limit is never exceeded;
the same start and end always give the same ranges; a message that is gone is reported, never passed over
silently; and an empty range costs nothing, not even a task.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.spark.offsets import Positions
from lanemq.spark.places import Bounds

Reads = Callable[[str], bool]
"""Whether a query's options name a topic."""


def _all(_: str) -> bool:
    return True


class Span(NamedTuple):
    """Offsets of one queue from `first` up to, and not including, `end`."""

    queue: MessageQueue
    first: QueueOffset
    end: QueueOffset


@dataclass(frozen=True, slots=True)
class Begins:
    """Where reading goes on in each queue, and what cannot be read any more."""

    offsets: Positions
    set_back: Positions
    """Queues that were created again: the next position is their first message, and this batch reads nothing there."""
    losses: tuple[str, ...]


def begins(start: Positions, bounds: Mapping[MessageQueue, Bounds], reads: Reads = _all) -> Begins:
    """Where to go on from `start`, given what the queues hold now. A queue that is new begins at its first message."""
    offsets: Positions = {}
    set_back: Positions = {}
    losses = [_gone(queue, start[queue], reads) for queue in start if queue not in bounds]
    for queue, (first, end) in bounds.items():
        at = start.get(queue, first)
        if at > end:
            set_back[queue] = first
            losses.append(_recreated(queue, at, end))
            continue
        offsets[queue] = max(at, first)
        if at < first:
            losses.append(f"{queue}: messages {at} to {first - 1} are gone, the first one left is {first}")
    return Begins(offsets, set_back, tuple(losses))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch reads."""

    spans: tuple[Span, ...]
    losses: tuple[str, ...]


def plan(start: Positions, end: Positions, bounds: Mapping[MessageQueue, Bounds], reads: Reads = _all) -> Plan:
    """The ranges of a batch that was promised to go from `start` to `end`; an end before its start reads nothing."""
    spans: list[Span] = []
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
            losses.append(_recreated(queue, until, held.end))
        if first < last:
            spans.append(Span(queue, QueueOffset(first), QueueOffset(last)))
    return Plan(tuple(spans), tuple(losses))


def available(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """How many messages lie between."""
    return sum(max(0, end[queue] - start[queue]) for queue in start if queue in end)


def limit_rows(start: Positions, end: Positions, most: int) -> Positions:
    """Ends with at most `most` messages in all, shared by backlog; every queue with messages gets one if it can.

    Where there is not one for each, they take turns from batch to batch: no backlog waits for another to end.
    """
    sizes = {queue: max(0, end[queue] - start[queue]) for queue in start}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    shares = dict.fromkeys(sizes, 0)
    for queue in _in_turn(start, sizes)[:most]:
        shares[queue] = 1
    rest = most - sum(shares.values())
    open_total = sum(sizes[queue] - shares[queue] for queue in sizes)
    for queue, size in sizes.items():
        shares[queue] += rest * (size - shares[queue]) // open_total
    left = most - sum(shares.values())
    for queue in sorted(sizes, key=lambda each: (sizes[each], each), reverse=True):
        more = min(left, sizes[queue] - shares[queue])
        shares[queue] += more
        left -= more
    return {queue: QueueOffset(start[queue] + shares[queue]) for queue in start}


def _in_turn(start: Positions, sizes: Mapping[MessageQueue, int]) -> list[MessageQueue]:
    """Queues with messages. A batch that is full moves the sum of all positions by its size, and so the beginning."""
    ring = sorted(start)
    first = sum(start.values()) % len(ring)
    return [queue for queue in ring[first:] + ring[:first] if sizes[queue]]


def limit_bytes(start: Positions, end: Positions, sizes: Mapping[MessageQueue, float], most: int) -> Positions:
    """Ends with about `most` bytes, given what a message of each queue takes; at least one message, to get on."""
    rows = {queue: max(0, end[queue] - start[queue]) for queue in start}
    total = sum(rows[queue] * sizes.get(queue, 1.0) for queue in rows)
    if total <= most:
        return dict(end)
    scaled = sum(int(count * most / total) for count in rows.values())
    return limit_rows(start, end, max(1, scaled))


def must_wait(ready: int, least: int, waited: Millis, most: Millis) -> bool:
    """Whether a batch is still too small to start. One message is started at last when the delay is over."""
    return ready < least and (ready == 0 or waited < most)


def split(spans: Iterable[Span], least: int) -> tuple[Span, ...]:
    """At least `least` partitions where there are that many messages; only for queries that gave up order."""
    spans = tuple(spans)
    total = sum(span.end - span.first for span in spans)
    if len(spans) >= least or not total:
        return spans
    parts: list[Span] = []
    for span in spans:
        size = span.end - span.first
        count = min(size, max(1, -(-least * size // total)))
        edges = [span.first + size * number // count for number in range(count + 1)]
        parts += [Span(span.queue, QueueOffset(first), QueueOffset(end)) for first, end in pairwise(edges)]
    return tuple(parts)


def _gone(queue: MessageQueue, at: int, reads: Reads) -> str:
    if not reads(queue.topic):
        return (
            f"{queue}: the checkpoint stands at {at}, and the options no longer name topic {queue.topic}; name it "
            f"again and the query goes on there"
        )
    return f"{queue}: the queue or its topic is gone; the query stood at {at}"


def _recreated(queue: MessageQueue, at: int, end: int) -> str:
    return f"{queue}: the query stands at {at}, the queue ends at {end}: its topic was deleted and created again"
