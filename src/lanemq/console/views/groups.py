"""Groups: all of them, one with its queues and owners, and the preview of a reset."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from lanemq.client.admin.resets import ShownChange, shown_changes
from lanemq.client.admin.views import GroupMember, OffsetChange
from lanemq.clock import wall_time
from lanemq.console.snapshot import GroupNow, Snapshot
from lanemq.console.trends import Trend, Trends, TrendSample
from lanemq.console.views.waiting import WaitingRow, member_notes, waiting_rows
from lanemq.console.wording import NONE, span
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

COURSE_STEP_MS = 60_000
"""The table of a group's lag has a row for each minute."""
FULL_LEASE = 5.0
"""Seconds of a LaneMQ member's lease by default; a lease bar is full at this length."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list."""

    name: str
    state: str
    level: str
    members: int
    topics: tuple[str, ...]
    lag: int
    lag_seconds: float | None
    """None while a broker rebuilds the index of the oldest message."""
    trend: Trend
    rate: float | None
    drained_in: str
    """When the lag will be gone if it goes on shrinking as in the last minute; `growing` or `not shrinking` if not."""
    held: int
    parked: int
    dead: int
    """Dead letters."""
    broadcasting: bool = False
    """Each member keeps its own offsets, so the lag is not shown."""


@dataclass(frozen=True, slots=True)
class OwnedQueue:
    """A queue of a group."""

    topic: str
    number: int
    broker: str
    offset: int
    end: int
    lag: int
    """Messages that are not finished."""
    lag_seconds: float | None
    age_unknown: bool
    owner: str | None
    epoch: int | None
    lease: float | None
    """Seconds left."""


@dataclass(frozen=True, slots=True)
class LagRow:
    """How far a group was behind at one moment."""

    at: datetime
    lag: int
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class LagCourse:
    """The course of a group's lag since the console started, at most ten minutes: what its plots show, as text."""

    rows: tuple[LagRow, ...]
    """About one per minute, the newest first."""
    most: LagRow
    """The largest lag of all samples, not only of the rows."""


@dataclass(frozen=True, slots=True)
class GroupScreen:
    """One group."""

    row: GroupRow
    course: LagCourse | None
    """None until there are two samples."""
    queues: tuple[OwnedQueue, ...]
    members: tuple[tuple[GroupMember, int], ...]
    """Each member, and how many queues it owns."""
    waiting: tuple[WaitingRow, ...]
    notes: tuple[str, ...]


def group_rows(now: Snapshot, trends: Trends) -> tuple[GroupRow, ...]:
    return tuple(_row(group, now, trends) for group in now.groups)


def group_view(name: str, now: Snapshot, trends: Trends) -> GroupScreen | None:
    """None if there is no such group."""
    group = now.group(name)
    if group is None:
        return None
    queues = tuple(
        OwnedQueue(
            each.at.queue.topic,
            each.at.queue.queue_id,
            each.at.queue.broker,
            each.at.offset,
            each.at.end,
            each.at.lag,
            None if each.lag_ms is None else each.lag_ms / 1000,
            each.age_unknown,
            each.at.owner,
            each.at.epoch,
            None if each.lease_ms is None else each.lease_ms / 1000,
        )
        for each in group.queues
    )
    owned = {member.client_id: sum(each.owner == member.client_id for each in queues) for member in group.members}
    members = tuple((member, owned[member.client_id]) for member in group.members)
    waiting = tuple(row for row in waiting_rows(now) if row.group == name)
    course = lag_course(name, trends.samples)
    unknown = member_notes(each for each in now.unknown if each.group == name)
    notes = (*([group.note] if group.note else []), *unknown)
    return GroupScreen(_row(group, now, trends), course, queues, members, waiting, notes)


def lag_series(name: str, samples: Sequence[TrendSample]) -> dict[str, list[float | None]]:
    """The plots of a group: messages and seconds behind. A sample in which it was not known is a gap."""
    late = [sample.lag_seconds.get(name) for sample in samples]
    return {
        "time": [sample.at / 1000 for sample in samples],
        "behind": [sample.lag.get(name) for sample in samples],
        "late": [None if each is None else round(each, 2) for each in late],
    }


def lag_course(name: str, samples: Iterable[TrendSample]) -> LagCourse | None:
    """The same figures as text."""
    known = [
        LagRow(wall_time(sample.at), sample.lag[name], sample.lag_seconds[name])
        for sample in samples
        if name in sample.lag
    ]
    if len(known) < 2:
        return None
    rows = [known[-1]]
    for each in reversed(known):
        if (rows[-1].at - each.at).total_seconds() * 1000 >= COURSE_STEP_MS:
            rows.append(each)
    if rows[-1] is not known[0]:
        rows.append(known[0])
    return LagCourse(tuple(rows), max(known, key=lambda each: (each.lag, each.lag_seconds or 0)))


def _row(group: GroupNow, now: Snapshot, trends: Trends) -> GroupRow:
    waiting = [row for row in waiting_rows(now) if row.group == group.name]
    trend, rate = trends.trend(group.name), trends.done_rate(group.name)
    state, level = _state(group)
    return GroupRow(
        group.name,
        state,
        level,
        len(group.members),
        group.topics,
        group.lag,
        group.lag_seconds,
        trend,
        rate,
        drained_in(group.lag, trend, trends.drain_rate(group.name)),
        sum(row.state != "parked" for row in waiting),
        sum(row.state == "parked" for row in waiting),
        sum(each.messages for each in now.dead if each.group == group.name),
        group.broadcasting,
    )


def drained_in(lag: int, trend: Trend, drain_rate: float | None) -> str:
    """`drain_rate`: messages per second by which the lag shrinks, net of what arrives."""
    if not lag or drain_rate is None:
        return NONE
    if drain_rate > 0:
        return span(lag / drain_rate)
    return "growing" if trend is Trend.GROWING else "not shrinking"


def _state(group: GroupNow) -> tuple[str, str]:
    if group.members:
        return ("running", "good")
    return ("no member", "warn") if group.lag else ("offline", "none")


@dataclass(frozen=True, slots=True)
class ResetPreview:
    """What a reset does."""

    rows: tuple[OffsetChange, ...]
    repeats: int
    skips: int
    forgets: int
    """Messages that are finished above the committed offsets, and are among the repeated ones."""
    shown: tuple[str, ...]
    """What the page shows about each queue, for its form: `parse_shown` reads it."""


def reset_preview(plan: Sequence[OffsetChange]) -> ResetPreview:
    return ResetPreview(
        tuple(plan),
        sum(each.repeats for each in plan),
        sum(each.skips for each in plan),
        sum(each.finished.above(each.after - 1).count for each in plan),
        tuple(
            f"{each.queue.queue_id} {each.after} {each.repeats} {each.skips} {int(each.goes_back)} {each.queue.broker}"
            for each in shown_changes(plan)
        ),
    )


_SHOWN = re.compile(r"(\d{1,9}) (\d{1,19}) (\d{1,19}) (\d{1,19}) ([01]) (.+)", re.ASCII | re.DOTALL)


def parse_shown(topic: str, texts: Iterable[str]) -> tuple[ShownChange, ...]:
    """What a form says that its page showed; `InvalidOption` if it does not."""
    found = []
    for text in texts:
        if (match := _SHOWN.fullmatch(text)) is None:
            raise InvalidOption("the form does not say what its page showed: open the page again")
        number, after, repeats, skips, back, broker = match.groups()
        queue = MessageQueue(topic, broker, int(number))
        found.append(ShownChange(queue, QueueOffset(int(after)), int(repeats), int(skips), back == "1"))
    return tuple(found)
