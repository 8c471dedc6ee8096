"""Everything that waits: keys that are held or parked, and dead letters, of all groups and pipelines."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.admin.retries import GroupRetry
from lanemq.client.admin.watching import HeldLaneView, UnknownMember
from lanemq.clock import wall_time
from lanemq.console.links import dead_link, group_link, key_link, lane_query, pipeline_link
from lanemq.console.snapshot import Snapshot
from lanemq.console.views.pipelines import PipelineNow
from lanemq.core.lane_status import LaneStatus
from lanemq.model.wording import plural

State = Literal["parked", "held", "in retry", "redriving"]
NO_QUEUE = -1
"""The number of the queue in rows about several."""
MAX_NAMED = 5
"""Members that a note names."""
MAX_LISTED = 1_000
"""Keys that a page lists. A page with all of many would have megabytes, and is sent again whenever it changes."""
_ORDER: dict[State, int] = {"parked": 0, "redriving": 1, "held": 2, "in retry": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """A lane that waits, of a group or of a pipeline."""

    group: str
    """The name of the group, or of the pipeline."""
    group_link: str
    topic: str = ""
    """Empty for a pipeline: a key may have messages of several."""
    broker: str = ""
    queue: int = NO_QUEUE
    key: str | None
    state: State
    messages: int
    first: int | None = None
    attempts: int
    since: datetime | None
    retry_in: float | None = None
    """Seconds until the next attempt; None if there is none by itself."""
    reason: str
    key_link: str
    link: str = ""
    """The page that shows its messages, and offers to redrive or discard them; empty for a lane in a member."""
    chosen: str = ""
    """How a form names the lane to redrive it; empty if it is not parked at a broker."""
    asked: str = ""
    """What a person has asked for, and a pipeline has not done yet."""
    is_whole_queue: bool = False
    """Whether all keys of the queue wait, because a handler takes it in offset order."""
    parked_in: str = ""
    """The member in whose memory the lane is parked; empty for other lanes."""


@dataclass(frozen=True, slots=True)
class DeadLettersRow:
    """The dead letters of a group or of a pipeline."""

    name: str
    name_link: str
    is_pipeline: bool
    count: int
    newest: datetime | None
    link: str


@dataclass(frozen=True, slots=True)
class WaitingView:
    """The screen."""

    rows: tuple[WaitingRow, ...]
    """Those that need a person first."""
    dead: tuple[DeadLettersRow, ...]
    parked: int
    held: int
    dead_letters: int
    notes: tuple[str, ...]
    """Why the list is not complete."""


def waiting_view(now: Snapshot, pipelines: Sequence[PipelineNow] = ()) -> WaitingView:
    of_groups = waiting_rows(now)
    rows, not_listed = listed(
        sorted((*of_groups, *(row for each in pipelines for row in pipeline_rows(each, now))), key=_rank)
    )
    dead = tuple(dead_rows(now, pipelines))
    own = {each.group for each in pipelines}  # their members hold no keys: the checkpoint has them
    parked = sum(row.state == "parked" for row in of_groups)
    return WaitingView(
        rows,
        dead,
        parked + sum(each.parked for each in pipelines),
        len(of_groups) - parked + sum(each.held for each in pipelines),
        sum(each.count for each in dead),
        (
            *not_listed,
            *member_notes(each for each in now.unknown if each.group not in own),
            *([now.retries.note] if now.retries.note else []),
            *pipeline_notes(pipelines),
            *apache_notes(now),
        ),
    )


def listed(rows: Sequence[WaitingRow]) -> tuple[tuple[WaitingRow, ...], list[str]]:
    """The rows that a page lists, and a sentence if these are not all."""
    if len(rows) <= MAX_LISTED:
        return tuple(rows), []
    return tuple(rows[:MAX_LISTED]), [
        f"The list is not complete: it has the first {MAX_LISTED:,} of {len(rows):,} keys, those that need a person "
        f"first. lanemq parked list has all that are parked at a broker."
    ]


def apache_notes(now: Snapshot) -> list[str]:
    """What brokers other than LaneMQ's do not offer."""
    names = [each.name for each in now.brokers if not each.lane]
    if not names:
        return []
    which = f"{names[0]} is not a LaneMQ broker" if len(names) == 1 else f"{', '.join(names)} are not LaneMQ brokers"
    return [f"{which}: parked keys wait in the memory of their members, and are let go there with App.resume."]


def _rank(row: WaitingRow) -> tuple[int, float, str, str, int, str]:
    """What waits for longest comes first."""
    since = math.inf if row.since is None else row.since.timestamp()
    return _ORDER[row.state], since, row.group, row.topic, row.queue, row.key or ""


def member_notes(unknown: Iterable[UnknownMember]) -> list[str]:
    """A sentence for each group whose held keys are not all known, with the members that it concerns."""
    by_group: dict[str, list[UnknownMember]] = {}
    for each in unknown:
        by_group.setdefault(each.group, []).append(each)
    return [
        f"The list is not complete: keys that members of group {group} hold are missing. "
        + "; ".join(f"{each.owner}: {each.why}" for each in found[:MAX_NAMED])
        + (f"; and {plural(len(found) - MAX_NAMED, 'other member')}." if len(found) > MAX_NAMED else ".")
        for group, found in by_group.items()
    ]


def pipeline_notes(pipelines: Iterable[PipelineNow]) -> list[str]:
    notes = []
    for each in pipelines:
        if each.status is None:
            notes.append(f"The list is not complete: pipeline {each.name} was not read: {each.problem}.")
    return notes


def dead_rows(now: Snapshot, pipelines: Iterable[PipelineNow]) -> Iterator[DeadLettersRow]:
    for each in now.dead:
        if each.messages:
            link = group_link(each.group)
            yield DeadLettersRow(each.group, link, False, each.messages, each.newest, dead_link(each.group))
    for one in pipelines:
        if one.dead:
            link = pipeline_link(one.number)
            yield DeadLettersRow(one.name, link, True, one.dead, None, f"{link}#dead")


def waiting_rows(now: Snapshot) -> tuple[WaitingRow, ...]:
    """The lanes of all groups. One that is held both in its member and at a broker is listed once."""
    parked = {(lane.group, lane.queue, lane.key) for lane in now.parked}
    held = (lane for lane in now.held if (lane.group, lane.queue, lane.key) not in parked)
    rows = [*map(parked_row, now.parked), *(held_row(lane, now) for lane in held), *retry_rows(now)]
    return tuple(sorted(rows, key=_rank))


def pipeline_rows(pipeline: PipelineNow, now: Snapshot) -> Iterator[WaitingRow]:
    for lane in pipeline.keys:
        retry_in = None if lane.retry_at is None else (lane.retry_at - wall_time(now.taken)).total_seconds()
        link = pipeline_link(pipeline.number, "key", key=lane.key)
        key = None if lane.key.startswith("\0") else lane.key
        yield WaitingRow(
            group=pipeline.name,
            group_link=pipeline_link(pipeline.number),
            queue=pipeline.number,
            key=key,
            state="parked" if lane.state == "parked" else "held",
            messages=lane.messages,
            attempts=lane.failures,
            since=lane.since,
            retry_in=None if retry_in is None else max(0.0, retry_in),
            reason=lane.reason,
            key_link=link if key is not None else pipeline_link(pipeline.number),
            link=link if key is not None else pipeline_link(pipeline.number),
            asked=(lane.requested or "").replace("_", " "),
        )


def parked_row(lane: ParkedLaneView) -> WaitingRow:
    queue = lane.queue
    named = lane_query(lane.group, queue.topic, queue.broker, queue.queue_id, lane.key)
    return WaitingRow(
        group=lane.group,
        group_link=group_link(lane.group),
        topic=queue.topic,
        broker=queue.broker,
        queue=queue.queue_id,
        key=lane.key,
        state=lane.status.value,
        messages=lane.messages,
        first=lane.first,
        attempts=lane.attempts,
        since=lane.parked_since,
        reason=lane.reason or "no reason given",
        key_link=key_link(queue.topic, lane.key),
        link=f"/waiting/lane?{named}",
        chosen=named if lane.status is LaneStatus.PARKED else "",
    )


def retry_rows(now: Snapshot) -> Iterator[WaitingRow]:
    """The messages that brokers delay for a retry, a row for each key of a group. Those without a key have one row."""
    by_key: dict[tuple[str, str, str | None], list[GroupRetry]] = {}
    for each in now.retries.retries:
        by_key.setdefault((each.group, each.topic, each.key), []).append(each)
    for (group, topic, key), found in by_key.items():
        due = min((each.due for each in found if each.due is not None), default=None)
        yield WaitingRow(
            group=group,
            group_link=group_link(group),
            topic=topic,
            key=key,
            state="in retry",
            messages=len(found),
            attempts=max(each.attempts for each in found),
            since=min(each.since for each in found),
            retry_in=None if due is None else max(0.0, (due - wall_time(now.taken)).total_seconds()),
            reason="not stored with a retry: see the log of the member",
            key_link=key_link(topic, key),
        )


def held_row(lane: HeldLaneView, now: Snapshot) -> WaitingRow:
    state = lane.state
    blocked = state.blocked_for
    return WaitingRow(
        group=lane.group,
        group_link=group_link(lane.group),
        topic=lane.queue.topic,
        broker=lane.queue.broker,
        queue=lane.queue.queue_id,
        key=lane.key,
        state="parked" if lane.is_parked else "held",
        messages=state.waiting,
        first=state.head,
        attempts=state.attempts,
        since=None if blocked is None else wall_time(now.taken) - timedelta(seconds=blocked),
        retry_in=state.retry_in,
        reason=state.reason or "no reason given",
        key_link=key_link(lane.queue.topic, lane.key),
        is_whole_queue=lane.is_whole_queue,
        parked_in=lane.owner if lane.is_parked else "",
    )
