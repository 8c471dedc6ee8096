"""Traffic: how many messages and bytes came and went, by topic and group, in the last minute, hour and day.

The figures are those that RocketMQ's tools ask for. They count since the start of the broker and are kept in memory.
A `Tally` takes samples of itself when it is changed, at most one every ten seconds, so that idle tallies cost nothing.
A window therefore begins at a sample, and may be longer than its name says by one step between samples.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from lanemq.model.units import Millis

TEN_SECONDS, MINUTE, TEN_MINUTES, HOUR, DAY = 10_000, 60_000, 600_000, 3_600_000, 86_400_000

_RINGS = ((TEN_SECONDS, MINUTE), (TEN_MINUTES, HOUR), (HOUR, DAY))
"""Step between samples, and the longest window that these samples serve."""

LATENCY_LIMITS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""RocketMQ: StoreStatsService. The last group of sends took longer than all of these."""


class _Sample(NamedTuple):
    at: Millis
    total: int
    times: int


class Window(NamedTuple):
    """What was added in a window."""

    total: int
    times: int
    millis: int

    def since(self, age: int) -> "Window":
        """The window of something that exists for `age` ms: not longer than that, and at least a second."""
        return self._replace(millis=max(min(self.millis, age), 1000))

    @property
    def per_second(self) -> float:
        return self.total * 1000 / self.millis

    @property
    def times_per_second(self) -> float:
        return self.times * 1000 / self.millis

    @property
    def average(self) -> float:
        """The mean amount of one addition."""
        return self.total / self.times if self.times else 0.0


class Tally:
    """A total that only grows, and its growth in recent windows."""

    __slots__ = ("_samples", "next_sample", "times", "total")

    def __init__(self) -> None:
        self.total = 0
        self.times = 0
        self.next_sample = Millis(-(2**62))
        self._samples: tuple[deque[_Sample], ...] = tuple(deque(maxlen=longest // step + 2) for step, longest in _RINGS)

    def add(self, amount: int, *, now: Millis) -> None:
        if now >= self.next_sample:
            self.sample(now)
        self.total += amount
        self.times += 1

    def last(self, millis: int, *, now: Millis) -> Window:
        """The growth in the last `millis`, which are at most a day."""
        number = next(number for number, (_, longest) in enumerate(_RINGS) if millis <= longest)
        begin, step = now - millis, _RINGS[number][0]
        before = None
        for sample in self._samples[number]:
            if sample.at > begin:
                # Nothing was added between the step after the last sample before `begin` and this one.
                first = sample if before is None or before.at + step < begin else before
                return Window(self.total - first.total, self.times - first.times, max(millis, now - first.at))
            before = sample
        if before is not None and before.at + step >= begin:
            return Window(self.total - before.total, self.times - before.times, now - before.at)
        return Window(0, 0, millis)

    def sample(self, now: Millis) -> None:
        """Take a sample, and set when the next one is due."""
        self.next_sample = Millis(now + TEN_SECONDS)
        for samples, (step, _) in zip(self._samples, _RINGS, strict=True):
            if not samples or now - samples[-1].at >= step:
                samples.append(_Sample(now, self.total, self.times))


_NONE: dict[str, tuple[Tally, Tally]] = {}

T = TypeVar("T")

MAX_GROUP_FIGURES = 20_000
"""Pairs of group and topic with figures of their own; a client may invent groups, and each pair takes memory."""


class Traffic:
    """All figures of one broker."""

    def __init__(self) -> None:
        self.put = Tally()
        """Messages stored for producers."""
        self.put_bytes = 0
        self.got = Tally()
        """Messages in answers to pulls. Its `times` are the pulls that were answered with messages."""
        self.missed = Tally()
        """Pulls that were answered without messages."""
        self.failed_puts = 0
        self.put_millis = 0
        """Milliseconds from the request to the answer, summed over all messages."""
        self.put_counts = [0] * (len(LATENCY_LIMITS_MS) + 1)
        """How many messages were stored within each of `LATENCY_LIMITS_MS`, and later."""
        self._put_of: dict[str, tuple[Tally, Tally]] = {}
        self._got_of: dict[str, dict[str, tuple[Tally, Tally]]] = {}
        """Group → topic → messages and bytes."""
        self._sent_back_of: dict[str, dict[str, Tally]] = {}
        """Group → topic → messages."""
        self._pairs = 0
        """Entries of both."""

    def stored(self, topic: str, count: int, size: int, *, took: int, now: Millis) -> None:
        """Messages of one request are on disk."""
        if topic not in self._put_of:
            self._put_of[topic] = (Tally(), Tally())
        messages, sizes = self._put_of[topic]
        for tally, amount in ((messages, count), (sizes, size), (self.put, count)):
            if now >= tally.next_sample:  # as in `Tally.add`, without a call: every send comes here
                tally.sample(now)
            tally.total += amount
            tally.times += 1
        self.put_bytes += size
        self.put_counts[bisect_left(LATENCY_LIMITS_MS, took)] += count
        self.put_millis += took * count

    def delivered(self, group: str, topic: str, count: int, size: int, *, now: Millis) -> None:
        """One pull was answered, perhaps without messages."""
        if not count:
            self.missed.add(1, now=now)
            return
        figures = self._got_of.get(group, _NONE).get(topic)
        if figures is None and self._pairs < MAX_GROUP_FIGURES:
            figures = self._got_of.setdefault(group, {})[topic] = (Tally(), Tally())
            self._pairs += 1
        if figures is not None:
            messages, sizes = figures
            messages.add(count, now=now)
            sizes.add(size, now=now)
        self.got.add(count, now=now)

    def sent_back(self, group: str, topic: str, *, now: Millis) -> None:
        """A member sent a message back, for another attempt or as a dead letter."""
        tally = self._sent_back_of.get(group, {}).get(topic)
        if tally is None and self._pairs < MAX_GROUP_FIGURES:
            tally = self._sent_back_of.setdefault(group, {})[topic] = Tally()
            self._pairs += 1
        if tally is not None:
            tally.add(1, now=now)

    def group_moved(self, group: str, millis: int, *, now: Millis) -> bool:
        """Whether a group received messages in the last `millis`."""
        received = self._got_of.get(group, {}).values()
        return any(messages.last(millis, now=now).times for messages, _ in received)

    def put_of(self, topic: str) -> tuple[Tally, Tally]:
        """Messages and bytes stored for a topic."""
        return self._put_of.get(topic, (Tally(), Tally()))

    def got_of(self, group: str, topic: str) -> tuple[Tally, Tally]:
        """Messages and bytes that a group received of a topic."""
        return self._got_of.get(group, {}).get(topic) or (Tally(), Tally())

    def sent_back_of(self, group: str, topic: str) -> Tally:
        return self._sent_back_of.get(group, {}).get(topic) or Tally()

    def topics(self) -> Iterator[tuple[str, int, int]]:
        """Each topic with the messages and bytes stored for it. The figures may change between two of them."""
        for topic, (messages, size) in tuple(self._put_of.items()):
            yield topic, messages.total, size.total

    def groups(self) -> Iterator[tuple[str, str, int, int]]:
        """Each group and topic with the messages and bytes that the group received. As above."""
        for group, topics in tuple(self._got_of.items()):
            for topic, (messages, size) in tuple(topics.items()):
                yield group, topic, messages.total, size.total

    def forget_topic(self, topic: str) -> None:
        self._put_of.pop(topic, None)
        self._pairs -= _drop(self._got_of, topic) + _drop(self._sent_back_of, topic)

    def forget_group(self, group: str) -> None:
        self._pairs -= len(self._got_of.pop(group, ())) + len(self._sent_back_of.pop(group, ()))


def _drop(figures: dict[str, dict[str, T]], topic: str) -> int:
    """Remove a topic from the figures of all groups; returns how many groups had it."""
    having = [group for group, topics in figures.items() if topic in topics]
    for group in having:
        del figures[group][topic]
        if not figures[group]:
            del figures[group]
    return len(having)
