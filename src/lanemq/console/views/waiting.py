"""Everything that waits: keys that are held or parked, of all groups, and their dead letters."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.admin.watching import HeldLaneView
from lanemq.clock import wall_time
from lanemq.console.links import key_link, lane_query
from lanemq.console.snapshot import GroupDeadLetters, Snapshot

State = Literal["parked", "held", "redriving"]
_ORDER: dict[State, int] = {"parked": 0, "redriving": 1, "held": 2}


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A lane that waits."""

    group: str
    topic: str
    broker: str
    queue: int
    key: str | None
    state: State
    messages: int
    first: int | None
    attempts: int
    since: datetime | None
    retry_in: float | None
    """Seconds until the next attempt; None if there is none by itself."""
    reason: str
    key_link: str
    link: str
    """The page that shows its messages, and offers to redrive or discard them; empty for a lane in a member."""


@dataclass(frozen=True, slots=True)
class WaitingView:
    """The screen."""

    rows: tuple[WaitingRow, ...]
    """Those that need a person first."""
    dead: tuple[GroupDeadLetters, ...]
    parked: int
    held: int
    dead_letters: int
    notes: tuple[str, ...]


def waiting_view(now: Snapshot) -> WaitingView:
    rows = waiting_rows(now)
    dead = tuple(each for each in now.dead if each.messages)
    return WaitingView(
        rows,
        dead,
        sum(row.state == "parked" for row in rows),
        sum(row.state != "parked" for row in rows),
        sum(each.messages for each in dead),
        now.notes,
    )


def waiting_rows(now: Snapshot) -> tuple[WaitingRow, ...]:
    rows = [*map(parked_row, now.parked), *(held_row(lane, now) for lane in now.held)]
    return tuple(sorted(rows, key=lambda row: (_ORDER[row.state], row.group, row.topic, row.queue, row.key or "")))


def parked_row(lane: ParkedLaneView) -> WaitingRow:
    queue = lane.queue
    return WaitingRow(
        lane.group,
        queue.topic,
        queue.broker,
        queue.queue_id,
        lane.key,
        lane.status.value,
        lane.messages,
        lane.first,
        lane.attempts,
        lane.parked_since,
        None,
        lane.reason or "no reason given",
        key_link(queue.topic, lane.key),
        f"/waiting/lane?{lane_query(lane.group, queue.topic, queue.broker, queue.queue_id, lane.key)}",
    )


def held_row(lane: HeldLaneView, now: Snapshot) -> WaitingRow:
    state = lane.state
    blocked = state.blocked_for
    return WaitingRow(
        lane.group,
        lane.queue.topic,
        lane.queue.broker,
        lane.queue.queue_id,
        lane.key,
        "held",
        state.waiting,
        state.head,
        state.attempts,
        None if blocked is None else wall_time(now.taken) - timedelta(seconds=blocked),
        state.retry_in,
        state.reason or "no reason given",
        key_link(lane.queue.topic, lane.key),
        "",
    )
