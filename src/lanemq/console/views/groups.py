"""Groups: all of them, one with its queues and owners, and the preview of a reset."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.resets import ShownChange, shown_changes
from lanemq.client.admin.views import BrokerFigures, GroupMember, OffsetChange
from lanemq.clock import wall_time
from lanemq.console.links import pipeline_link
from lanemq.console.snapshot import GroupNow, Snapshot
from lanemq.console.trends import Trend, Trends, TrendSample
from lanemq.console.views.pipelines import PipelineNow
from lanemq.console.views.plots import Drawn, Plot, one_a_minute, plot
from lanemq.console.views.waiting import WaitingRow, listed, member_notes, pipeline_notes, pipeline_rows, waiting_rows
from lanemq.console.wording import NONE, span
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.model.wording import plural

FULL_LEASE = 5.0
"""Seconds of a LaneMQ member's lease by default; a lease bar is full at this length."""
BEHIND = (Drawn("behind", "accent", "behind"),)
LATE = (Drawn("late", "warn", "s"),)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """When the lag will be gone if it keeps shrinking as in the last minute; `growing` or `not shrinking` if not."""
    held: int | None
    """Keys; this and the two that follow are None if they are in the checkpoint of a pipeline that was not read."""
    parked: int | None
    dead: int | None
    """Dead letters."""
    broadcasting: bool = False
    """Each member keeps its own offsets, so the lag is not shown."""
    pipeline: str = ""
    """The name of the pipeline that commits as this group; empty if none does."""
    pipeline_link: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScreen:
    """One group."""

    row: GroupRow
    course: LagCourse | None
    """This and the two plots are None until there are two samples."""
    behind: Plot | None
    """The number of messages that the group has not finished."""
    late: Plot | None
    """The age of the oldest of them, in seconds."""
    queues: tuple[QueueBacklog, ...]
    members: tuple[tuple[GroupMember, int], ...]
    """Each member, and how many queues it owns."""
    waiting: tuple[WaitingRow, ...]
    notes: tuple[str, ...]
    coordinator: str = ""


def group_rows(now: Snapshot, trends: Trends, pipelines: Sequence[PipelineNow] = ()) -> tuple[GroupRow, ...]:
    """`pipelines`: all of the console. What one of them holds, parks or gives up counts for its group."""
    return tuple(_row(group, now, trends, _of_group(group.name, pipelines)) for group in now.groups)


def never_read_notes(pipelines: Iterable[PipelineNow]) -> tuple[str, ...]:
    """A sentence for each pipeline of which it is not known as which group it commits."""
    return tuple(
        f"Pipeline {each.name} was not read: {each.problem}. If it commits as a group, the keys that it holds or parks "
        f"and its dead letters are missing there."
        for each in pipelines
        if each.never_read
    )


def _of_group(name: str, pipelines: Iterable[PipelineNow]) -> tuple[PipelineNow, ...]:
    return tuple(each for each in pipelines if each.group == name)


def group_view(name: str, now: Snapshot, trends: Trends, pipelines: Sequence[PipelineNow] = ()) -> GroupScreen | None:
    """None if there is no such group. `pipelines` as in `group_rows`."""
    group = now.group(name)
    if group is None:
        return None
    own = _of_group(name, pipelines)
    owned = Counter(queue.at.owner for queue in group.queues)
    members = tuple((member, owned[member.client_id]) for member in group.members)
    waiting, not_listed = listed(
        (
            *(row for row in waiting_rows(now) if row.group == name),
            *(row for each in own for row in pipeline_rows(each, now)),
        )
    )
    course, series = lag_course(name, trends.samples), lag_series(name, list(trends.samples))
    # The members of a pipeline's group hold no keys: its checkpoint has them.
    unknown = pipeline_notes(own) if own else member_notes(each for each in now.unknown if each.group == name)
    notes = (
        *([group.note] if group.note else []),
        *not_listed,
        *unknown,
        *never_read_notes(pipelines),
        *_lost(name, now),
    )
    return GroupScreen(
        row=_row(group, now, trends, own),
        course=course,
        behind=plot(series, BEHIND, whole=True),
        late=plot(series, LATE),
        queues=group.queues,
        members=members,
        waiting=waiting,
        notes=notes,
        coordinator=group.coordinator,
    )


def unread_deleted(now: Snapshot) -> Counter[tuple[str, str]]:
    """Group and topic → messages that retention deleted before the group had finished them, as LaneMQ brokers count."""
    found = Counter[tuple[str, str]]()
    for broker in now.brokers:
        figures = BrokerFigures(broker.name, broker.address, broker.lane, broker.info)
        for (group, topic), count in figures.series("lanemq_unread_deleted_total").items():
            if count:
                found[group, topic] += int(count)
    return found


def _lost(name: str, now: Snapshot) -> Iterator[str]:
    for (group, topic), count in unread_deleted(now).items():
        if group == name:
            yield (
                f"Lost: retention deleted {plural(count, 'message')} of {topic} before this group had finished them, "
                f"since the broker's start. Let the group keep up, or run the broker with a longer retention."
            )


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
    rows = one_a_minute(known, lambda each: each.at.timestamp() * 1000)
    return LagCourse(rows, max(known, key=lambda each: (each.lag, each.lag_seconds or 0)))


def _row(group: GroupNow, now: Snapshot, trends: Trends, pipelines: Sequence[PipelineNow]) -> GroupRow:
    waiting = [row for row in waiting_rows(now) if row.group == group.name]
    held, parked = sum(row.state != "parked" for row in waiting), sum(row.state == "parked" for row in waiting)
    dead = sum(each.messages for each in now.dead if each.group == group.name)
    trend, rate = trends.trend(group.name), trends.done_rate(group.name)
    state, level = _state(group)
    return GroupRow(
        name=group.name,
        state=state,
        level=level,
        members=len(group.members),
        topics=group.topics,
        lag=group.lag,
        lag_seconds=group.lag_seconds,
        trend=trend,
        rate=rate,
        drained_in=drained_in(group.lag, trend, trends.drain_rate(group.name)),
        held=_with(held, [None if each.status is None else each.held for each in pipelines]),
        parked=_with(parked, [None if each.status is None else each.parked for each in pipelines]),
        dead=_with(dead, [each.known_dead for each in pipelines]),
        broadcasting=group.broadcasting,
        pipeline=", ".join(each.name for each in pipelines),
        pipeline_link=pipeline_link(pipelines[0].number) if pipelines else "",
    )


def _with(count: int, more: Iterable[int | None]) -> int | None:
    """The sum; None if a part of it is unknown."""
    found = list(more)
    return None if None in found else count + sum(each for each in found if each is not None)


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
    if group.reported:
        return ("query", "none")
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
