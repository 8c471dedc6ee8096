"""The home screen: five questions, each answered by a word, a figure and a colour, and what happened lately."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lanemq.clock import wall_time
from lanemq.console.links import group_link
from lanemq.console.snapshot import GroupNow, Snapshot
from lanemq.console.trends import ConsoleEvent, Trends, TrendSample
from lanemq.console.views.groups import unread_deleted
from lanemq.console.views.pipelines import PipelineNow
from lanemq.console.views.plots import Drawn, Plot, one_a_minute, plot
from lanemq.console.views.waiting import waiting_rows, waiting_view
from lanemq.console.wording import number, span
from lanemq.core.lane_status import LaneStatus
from lanemq.model.units import Millis
from lanemq.model.wording import plural

Level = Literal["good", "warn", "bad", "none"]
LATE_SECONDS = 60.0
"""A group that is later than this is shown as late."""
HELD_SECONDS = 1.0
"""A key whose oldest message is so much older than what its group handles is named."""
MAX_EVENTS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One question and its answer."""

    name: str
    question: str
    answer: str
    detail: str
    level: Level
    link: str
    explained: str


@dataclass(frozen=True, slots=True)
class OrderVerdict:
    """The newest result of checking the history."""

    verdict: str
    """`pass`, `violation` or `unknown`; `none yet` before the first result."""
    events: int
    violations: int
    at: Millis
    problem: str = ""
    """Why a newer check failed; the other values are those of the last one that did not."""


@dataclass(frozen=True, slots=True)
class HomeView:
    """The home screen."""

    tiles: tuple[Tile, ...]
    events: tuple[ConsoleEvent, ...]
    empty: bool
    """Whether there is no topic yet."""
    rates: Plot | None
    """Messages stored and finished per second; this and the next are None until there are two samples."""
    late: Plot | None
    """The lag of the group that is furthest behind, in seconds."""
    figures: tuple["HomeFigures", ...]
    """What the plots show, as text: about one row per minute, the newest first."""


@dataclass(frozen=True, slots=True)
class HomeFigures:
    """The figures of one sample."""

    at: datetime
    stored: float | None
    finished: float | None
    """Per second, as `stored`; None for the first sample."""
    late: float | None
    """Seconds; None while it is unknown."""


RATES = (Drawn("stored", "accent", "stored"), Drawn("finished", "busy", "finished"))
LATE = (Drawn("late", "warn", "s"),)


def home_view(
    now: Snapshot, trends: Trends, verdict: OrderVerdict | None, pipelines: Sequence[PipelineNow] = ()
) -> HomeView:
    events = tuple(reversed(trends.events))[:MAX_EVENTS_SHOWN]
    tiles = (_up(now), _stuck(now, pipelines), _late(now, pipelines), _failed(now, pipelines), _order(now, verdict))
    series = plot_series(list(trends.samples))
    figures = [
        HomeFigures(wall_time(sample.at), stored, finished, late)
        for sample, stored, finished, late in zip(
            trends.samples, series["stored"], series["finished"], series["late"], strict=True
        )
    ]
    return HomeView(
        tiles,
        events,
        not now.error and not now.topics,
        plot(series, RATES),
        plot(series, LATE),
        one_a_minute(figures, lambda each: each.at.timestamp() * 1000) if len(figures) > 1 else (),
    )


def _up(now: Snapshot) -> Tile:
    silent = {each.name for each in now.brokers if each.error}
    up = len(now.brokers) - len(silent)
    # A name server does not list a broker that has no master, but topics know where their queues are.
    away = sorted(silent | {name for topic in now.topics for name in topic.away})
    read_only = [each.name for each in now.brokers if each.info.get("laneReadOnly", "false") != "false"]
    level: Level = "good"
    if now.refused:
        answer, detail, level = "Unknown", f"the brokers answer, and refuse the console: {now.error}", "bad"
    elif now.error or not up:
        answer, detail, level = "Down", now.error or "no broker answers", "bad"
    elif away:
        verb = "does not answer" if len(away) == 1 else "do not answer"
        answer, detail, level = "In part", f"{', '.join(away)} {verb}", "warn"
    elif now.other_clusters:
        answer, detail, level = "In part", now.other_clusters, "warn"
    elif read_only:
        answer, detail, level = "Read-only", f"{', '.join(read_only)} cannot write to its disk", "bad"
    else:
        answer, detail = "Up", f"{plural(up, 'broker')}, {plural(len(now.topics), 'topic')}"
    return Tile(
        name="Up",
        question="Is it up?",
        answer=answer,
        detail=detail,
        level=level,
        link="/settings",
        explained="Whether every broker answers and accepts messages.",
    )


def _why_unknown(now: Snapshot) -> str:
    return "the brokers refuse the console" if now.refused else "the brokers do not answer"


def stalled(now: Snapshot) -> Iterator[GroupNow]:
    """Groups that have messages to process and no member, although members are what they need."""
    return (group for group in now.groups if group.lag and not group.members and not group.reported)


def stopped(now: Snapshot, pipelines: Sequence[PipelineNow]) -> list[PipelineNow]:
    """Pipelines that have messages to process and do not run. One whose group is stalled is counted as that group."""
    counted = {group.name for group in stalled(now)}
    return [
        each
        for each in pipelines
        if each.status is not None and each.status.lag and not each.status.running and each.group not in counted
    ]


def _stuck(now: Snapshot, pipelines: Sequence[PipelineNow]) -> Tile:
    parked = [lane for lane in now.parked if lane.status is LaneStatus.PARKED]
    keys = len(parked) + sum(each.parked for each in pipelines)
    messages = sum(lane.messages for lane in parked) + sum(each.parked_messages for each in pipelines)
    in_members = [row for row in waiting_rows(now) if row.parked_in]
    without = len(list(stalled(now)))
    level: Level = "none" if now.error else "good"
    answers, details, link = list[str](), list[str](), "/waiting"
    if keys:
        answers.append(plural(keys, "key"))
        details.append(f"{plural(messages, 'message')} parked until you redrive or discard")
        level = "bad"
    if in_members:
        answers = [plural(keys + len(in_members), "key")]
        waiting = plural(sum(row.messages for row in in_members), "message")
        details.append(f"{waiting} parked in members' memory until you resume them there")
        level = "bad"
    if without:
        answers.append(plural(without, "group"))
        group = "1 group has" if without == 1 else f"{without} groups have"
        details.append(f"{group} messages to process and no member online")
        level, link = (level, link) if answers[:-1] else ("warn", "/groups")
    if still := stopped(now, pipelines):
        answers.append(plural(len(still), "pipeline"))
        which = f"pipeline {still[0].name} does" if len(still) == 1 else f"{len(still)} pipelines do"
        details.append(f"{which} not run and {'has' if len(still) == 1 else 'have'} messages to process")
        level, link = (level, link) if answers[:-1] else ("warn", "/pipelines")
    unread = _unread(pipelines)
    if unread:
        details.append(unread)
        level = "none" if level == "good" else level
    answer, detail = ", ".join(answers), "; ".join(details)
    if now.error:
        level = "none"
        answer, detail = (answer, detail) if now.brokers else ("Unknown", _why_unknown(now))
    return Tile(
        name="Stuck",
        question="Is anything stuck?",
        answer=answer or ("Unknown" if unread else "Nothing"),
        detail=detail or "no key waits for a person",
        level=level,
        link=link,
        explained="Keys parked after their retries, groups without a member, and pipelines that are behind and do not "
        "run.",
    )


def _unread(pipelines: Sequence[PipelineNow]) -> str:
    """Which pipelines are not known; empty if all are."""
    names = [each.name for each in pipelines if each.status is None]
    if len(names) > 1:
        return f"{len(names)} pipelines were not read"
    return f"pipeline {names[0]} was not read" if names else ""


@dataclass(frozen=True, slots=True)
class _Behind:
    """A group or a pipeline that has not finished everything."""

    name: str
    messages: int
    seconds: float | None
    """Without keys that are held."""
    link: str
    oldest: float | None = None
    """Age of the oldest message, those of held keys included."""


def _behind(now: Snapshot, pipelines: Sequence[PipelineNow]) -> list[_Behind]:
    groups = [
        _Behind(each.name, each.lag, each.backlog_seconds, "/groups", each.lag_seconds)
        for each in now.groups
        if each.lag
    ]
    named = {group.name for group in now.groups}
    read = [each.status for each in pipelines if each.status is not None and each.group not in named]
    return groups + [
        _Behind(f"pipeline {each.pipeline}", each.lag, each.lag_seconds, "/pipelines") for each in read if each.lag
    ]


def _late(now: Snapshot, pipelines: Sequence[PipelineNow]) -> Tile:
    behind = _behind(now, pipelines)
    level: Level = "none" if now.error else "good"
    answer, detail, link = "0 s", "every group and pipeline is up to date", "/groups"
    if behind:
        latest = max(behind, key=lambda each: each.seconds or 0)
        answer, link = span(latest.seconds), latest.link
        detail = f"{latest.name}: {number(latest.messages)} behind"
        level = "warn" if (latest.seconds or 0) > LATE_SECONDS else "good"
        unknown = [each for each in behind if each.seconds is None]
        if unknown and level == "good":
            answer, level, link = "Unknown", "none", unknown[0].link
            detail = f"{unknown[0].name}: {number(unknown[0].messages)} behind; its age is not known"
        detail += _oldest_held(behind)
    if now.error:
        level = "none"
        answer, detail = (answer, detail) if now.brokers else ("Unknown", _why_unknown(now))
    return Tile(
        name="Late",
        question="How late are we?",
        answer=answer,
        detail=detail,
        level=level,
        link=link,
        explained="How long ago the messages were stored that a group or a pipeline handles now. A key that is held "
        "between two attempts does not make its group late: the oldest one is beside it. Parked messages do not "
        "count.",
    )


def _oldest_held(behind: Sequence[_Behind]) -> str:
    """The oldest key that waits while its group is further; empty if there is none."""
    held = [each for each in behind if (each.oldest or 0) - (each.seconds or 0) > HELD_SECONDS]
    if not held:
        return ""
    oldest = max(held, key=lambda each: each.oldest or 0)
    return (
        f"; its oldest held key: {span(oldest.oldest)}"
        if len(behind) == 1
        else (f"; oldest held key: {span(oldest.oldest)}, of {oldest.name}")
    )


def _failed(now: Snapshot, pipelines: Sequence[PipelineNow]) -> Tile:
    waiting = waiting_view(now, pipelines)
    held, parked, dead = waiting.held, waiting.parked, waiting.dead_letters
    level: Level = "none" if now.error else "good"
    answer, detail, link = "Nothing", "no key is retried, no dead letters", "/waiting"
    if failed := held or parked or dead:
        counted = ((held + parked, "key"), (dead, "dead letter"))
        answer, level = ", ".join(plural(count, what) for count, what in counted if count), "warn"
        kinds = ((held, "held for a retry"), (parked, "parked"))
        detail = ", ".join(f"{number(count)} {what}" for count, what in kinds if count) or "no key waits"
    elif unread := _unread(pipelines):
        answer, detail, level = "Unknown", unread, "none"
    lost = unread_deleted(now)
    if lost:
        group, topic = max(lost, key=lambda key: lost[key])
        detail = f"{group} lost messages of {topic}: retention deleted them first" + (f"; {detail}" if failed else "")
        answer, level, link = f"{number(lost.total())} lost", "bad", group_link(group)
    if now.error:
        level = "none"
        answer, detail = (answer, detail) if now.brokers else ("Unknown", _why_unknown(now))
    return Tile(
        name="Failed",
        question="What failed?",
        answer=answer,
        detail=detail,
        level=level,
        link=link,
        explained="Keys that wait for their next attempt or for a person, messages that were given up, and messages "
        "that retention deleted before a group had finished them.",
    )


def _order(now: Snapshot, verdict: OrderVerdict | None) -> Tile:
    answer, detail = "Not checked", "start the console with --history to check"
    level: Level = "none"
    if verdict is not None:
        if verdict.verdict == "pass":
            answer, level = "0 violations", "good"
        elif verdict.verdict == "violation":
            answer, level = plural(verdict.violations, "violation"), "bad"
        elif verdict.verdict == "unknown":
            answer = "Unknown"
        is_done = verdict.verdict != "none yet"
        detail = f"{_events(verdict.events)} checked" if is_done else "the first check is not done"
    if verdict is not None and verdict.problem:
        if verdict.verdict != "violation":
            answer, level = "Not checked", "warn"
        detail = "the newest check failed"
    return Tile(
        name="Order",
        question="Is all in order?",
        answer=answer,
        detail=detail,
        level=level,
        link="/check",
        explained="The checker reads what brokers, producers and consumers recorded, and looks for a broken promise.",
    )


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{number(count)} events"


def plot_series(samples: Sequence[TrendSample]) -> dict[str, list[float | None]]:
    """The two plots: messages stored and finished per second, and the latest group's lag in seconds."""
    times: list[float | None] = [sample.at / 1000 for sample in samples]
    stored = _rates(samples, [sum(sample.stored.values()) for sample in samples])
    done = _rates(samples, [sum(sample.done.values()) for sample in samples])
    late = [_latest(sample.lag_seconds.values()) for sample in samples]
    return {"time": times, "stored": stored, "finished": done, "late": late}


def _latest(ages: Collection[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return round(max(known, default=0.0), 2) if len(known) == len(ages) else None


def _rates(samples: Sequence[TrendSample], totals: Sequence[int]) -> list[float | None]:
    found: list[float | None] = [None] if samples else []
    for (before, first), (after, last) in zip(
        zip(samples, totals, strict=True), list(zip(samples, totals, strict=True))[1:], strict=False
    ):
        millis = after.at - before.at
        found.append(round(max(0, last - first) * 1000 / millis, 1) if millis > 0 else None)
    return found
