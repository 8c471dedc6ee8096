"""What the console remembers of its snapshots: rates, the course of each lag, and events in words.

Pure: a snapshot goes in, figures come out. The memory is bounded, and starts empty with each console.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from lanemq.console.links import dead_link, group_link, key_link
from lanemq.console.snapshot import GroupNow, Snapshot
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

MAX_SAMPLES = 300
"""Samples that are kept: ten minutes at one every two seconds."""
MAX_EVENTS = 50
RATE_MS = 20_000
"""Rates are means of so many milliseconds. Shorter ones jump; longer ones hide that something stopped."""
TREND_MS = 60_000
STEADY_SHARE = 0.1
"""A lag that changed by less than this share in a minute is steady."""


class Trend(Enum):
    """Where a lag is going."""

    GROWING = "growing"
    SHRINKING = "shrinking"
    STEADY = "steady"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class TrendSample:
    """The figures of one snapshot that are kept."""

    at: Millis
    stored: Mapping[str, int]
    """Sum of the queues' ends by topic."""
    done: Mapping[str, int]
    """Finished messages by group: committed offsets, and what is finished above them."""
    lag: Mapping[str, int]
    lag_seconds: Mapping[str, float | None]
    """None while it is unknown."""


@dataclass(frozen=True, slots=True)
class ConsoleEvent:
    """Something that changed between two snapshots."""

    at: Millis
    text: str
    link: str
    bad: bool = False


@dataclass(slots=True)
class Trends:
    """Samples and events, the newest last."""

    samples: deque[TrendSample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    events: deque[ConsoleEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    last: Snapshot | None = None

    def add(self, now: Snapshot) -> None:
        """Takes in a snapshot. One that failed is an event, not a sample."""
        if self.last is not None:
            self.events.extend(changes(self.last, now))
        self.last = now
        if not now.error:
            self.samples.append(_sample(now))

    def stored_rate(self, topic: str) -> float | None:
        """Messages stored per second; None until there are two samples."""
        return self._rate(lambda sample: sample.stored.get(topic))

    def done_rate(self, group: str) -> float | None:
        """Messages finished per second."""
        return self._rate(lambda sample: sample.done.get(group))

    def trend(self, group: str) -> Trend:
        """Where the group's lag is going, over the last minute."""
        lags = [(each.at, each.lag.get(group)) for each in self.samples]
        known = [(at, lag) for at, lag in lags if lag is not None]
        if len(known) < 2:
            return Trend.UNKNOWN
        newest_at, newest = known[-1]
        before = next(lag for at, lag in known if at >= newest_at - TREND_MS)
        if abs(newest - before) <= max(1.0, STEADY_SHARE * max(newest, before)):
            return Trend.STEADY
        return Trend.GROWING if newest > before else Trend.SHRINKING

    def drain_rate(self, group: str) -> float | None:
        """Messages per second by which the group's lag shrinks, net of what arrives; negative if it grows.

        The mean of the last minute, as `trend`; None until there are two samples.
        """
        return None if (rate := self._change(lambda sample: sample.lag.get(group), TREND_MS)) is None else -rate

    def _rate(self, figure: Callable[[TrendSample], int | None]) -> float | None:
        change = self._change(figure, RATE_MS)
        return None if change is None else max(0.0, change)

    def _change(self, figure: Callable[[TrendSample], int | None], millis: int) -> float | None:
        """By how much a figure changes per second, over the last `millis`."""
        if not self.samples:
            return None
        newest = self.samples[-1]
        known = [(each.at, value) for each in self.samples if (value := figure(each)) is not None]
        window = [(at, value) for at, value in known if at >= newest.at - millis]
        if len(window) < 2 or window[-1][0] <= window[0][0]:
            return None
        (begin, first), (end, last) = window[0], window[-1]
        return (last - first) * 1000 / (end - begin)


def _sample(now: Snapshot) -> TrendSample:
    return TrendSample(
        now.taken,
        {each.topic: sum(queue.end for queue in each.queues) for each in now.topics},
        {each.name: sum(queue.at.offset + queue.at.finished for queue in each.queues) for each in now.groups},
        {each.name: each.lag for each in now.groups},
        {each.name: each.backlog_seconds for each in now.groups},
    )


def changes(before: Snapshot, now: Snapshot) -> list[ConsoleEvent]:
    """What changed between two snapshots, in words."""
    if now.error or before.error:
        if bool(now.error) == bool(before.error):
            return []
        why = "the brokers refuse the console" if now.refused else "the brokers cannot be reached"
        text = f"{why}: {now.error}" if now.error else "the brokers answer again"
        return [ConsoleEvent(now.taken, text, "/", bad=bool(now.error))]
    return [*_of_groups(before, now), *_of_lanes(before, now), *_of_dead_letters(before, now)]


def _of_groups(before: Snapshot, now: Snapshot) -> Iterable[ConsoleEvent]:
    for group in now.groups:
        known = before.group(group.name)
        link = group_link(group.name)
        if known is None:
            yield ConsoleEvent(now.taken, f"group {group.name} is new", link)
            continue
        for member in sorted(_ids(group) - _ids(known)):
            yield ConsoleEvent(now.taken, f"{member} joined group {group.name}", link)
        for member in sorted(_ids(known) - _ids(group)):
            yield ConsoleEvent(now.taken, f"{member} left group {group.name}", link)
        yield from _of_owners(known, group, link, now.taken)


def _ids(group: GroupNow) -> set[str]:
    return {member.client_id for member in group.members}


def _of_owners(before: GroupNow, now: GroupNow, link: str, at: Millis) -> Iterable[ConsoleEvent]:
    owners = {each.at.queue: each.at.owner for each in before.queues}
    taken: dict[tuple[str, str | None, str], list[MessageQueue]] = {}
    for each in now.queues:
        queue, owner, former = each.at.queue, each.at.owner, owners.get(each.at.queue)
        if owner is not None and owner != former and queue in owners:
            taken.setdefault((owner, former, queue.topic), []).append(queue)
    for (owner, former, topic), queues in taken.items():
        numbers = ", ".join(str(queue.queue_id) for queue in queues)
        which = f"queue {numbers}" if len(queues) == 1 else f"queues {numbers}"
        source = f" from {former}" if former is not None else ""
        yield ConsoleEvent(at, f"{owner} took {which} of {topic}{source}, group {now.name}", link)


def _of_lanes(before: Snapshot, now: Snapshot) -> Iterable[ConsoleEvent]:
    known = {(each.group, each.queue, each.key): each.status for each in before.parked}
    for lane in now.parked:
        former = known.pop((lane.group, lane.queue, lane.key), None)
        if lane.status is LaneStatus.HELD or former is lane.status:
            continue
        name = "messages without a key" if lane.key is None else f"key {lane.key}"
        link = key_link(lane.queue.topic, lane.key)
        if lane.status is LaneStatus.REDRIVING:
            yield ConsoleEvent(now.taken, f"{name} is redriven, group {lane.group}", link)
        else:
            text = f"{name} is parked, group {lane.group}: {lane.reason or 'no reason given'}"
            yield ConsoleEvent(now.taken, text, link, bad=True)


def _of_dead_letters(before: Snapshot, now: Snapshot) -> Iterable[ConsoleEvent]:
    known = {each.group: each.messages for each in before.dead}
    for each in now.dead:
        more = each.messages - known.get(each.group, 0)
        if more > 0:
            what = "a message" if more == 1 else f"{more} messages"
            yield ConsoleEvent(now.taken, f"group {each.group} gave up {what}", dead_link(each.group), bad=True)
