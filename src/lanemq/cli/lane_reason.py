"""Why a key does not move, as one sentence.

The order of the reasons is the order in which they must go away: a parked lane stays parked whoever owns the queue,
and without an owner nobody is there to retry. What only a member knows comes from its answer; where there is none the
sentence says so, and says what is certain anyway.
"""

from dataclasses import dataclass

from lanemq.cli.lag import Progress
from lanemq.cli.output import cell, plural, wall_time
from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.admin.views import NoAnswer
from lanemq.core.consuming.lane_view import LaneState
from lanemq.core.consuming.runs import Order
from lanemq.core.parked_lane import LaneStatus
from lanemq.wire.lane_bodies import LaneStateAnswer

OWN_TURN = "its own turn: it runs, is about to be tried again, or is held after a failure"


@dataclass(frozen=True, slots=True)
class GroupOfKey:
    """How far one group is with the key."""

    group: str
    members: int
    progress: Progress
    done: int
    pending: tuple[int, ...]
    """Offsets of the key's messages that the group has not committed."""
    parked: ParkedLaneView | None = None
    """The key's lane, if it was set aside; its messages are not among the pending ones."""
    lane: LaneStateAnswer | NoAnswer | None = None
    """What the owner says; None if there is none to ask, or nothing to ask about."""

    @property
    def waits_for(self) -> str:
        """Why the key's first pending message is not done yet."""
        if self.parked is not None:
            return _parked(self.parked)
        if not self.pending:
            return "nothing: every message is done" if self.done else "nothing: it has no messages"
        if not self.members:
            return "a member: nobody of the group is online; start a consumer"
        if self.progress.at.owner is None:
            return "an owner: no member holds the queue (an unordered group never does; else a hand-over is under way)"
        if isinstance(self.lane, LaneStateAnswer):
            return _by_its_owner(self.lane, self.pending)
        known = _in_the_queue(self.pending[0] - self.progress.at.offset)
        return known if self.lane is None else f"{known}. More is not known: {self.lane.why}{self._lease()}"

    def _lease(self) -> str:
        left = self.progress.lease_ms
        return "" if left is None else f". Its lease ends in {span(left)} unless it is renewed"


def span(millis: int) -> str:
    """A span as people say it."""
    if millis < 1_000:
        return f"{millis} ms"
    return f"{millis / 1000:.1f} s" if millis < 120_000 else f"{millis // 60_000} min"


def _in_the_queue(ahead: int) -> str:
    if ahead <= 0:
        return OWN_TURN
    return (
        f"its own turn, or at most {plural(ahead, 'message')} ahead of it in the queue: in queue order those "
        f"run first, in key order only those of its key do, the others hold back no more than its commit"
    )


def _parked(lane: ParkedLaneView) -> str:
    since = cell(wall_time(lane.since_ms))
    if lane.status is LaneStatus.REDRIVING:
        return f"its redrive: {plural(lane.messages, 'message')} from offset {lane.first} on run before newer ones"
    return (
        f"a person: parked since {since} after {plural(lane.attempts, 'attempt')} at offset {lane.first}, with "
        f"{plural(lane.messages, 'message')}: {lane.reason or 'no reason given'}; see lanemq parked"
    )


def _by_its_owner(lane: LaneStateAnswer, pending: tuple[int, ...]) -> str:
    state = LaneState(lane.state)
    if state is LaneState.EMPTY:
        return _not_here(lane, pending)
    return _place(lane, pending) + _STATES[state](lane)


def _not_here(lane: LaneStateAnswer, pending: tuple[int, ...]) -> str:
    if pending[-1] < lane.next_offset:
        return f"nothing: every message is done, and only its commit waits, for offset {lane.committable} of the queue"
    return (
        f"its fetch: the owner has fetched up to offset {lane.next_offset}, the first unfinished is {lane.committable}"
    )


def _place(lane: LaneStateAnswer, pending: tuple[int, ...]) -> str:
    """With order by queue, it may be somebody else's message that everybody waits for."""
    ahead = [offset for offset in pending if offset >= lane.committable]
    if Order(lane.order) is not Order.QUEUE or not ahead or ahead[0] <= lane.head:
        return ""
    return f"offset {lane.head} of the queue, {ahead[0] - lane.head} before its own, which waits for "


def _running(lane: LaneStateAnswer) -> str:
    return f"its handler: running for {span(max(lane.running_for, 0))} from offset {lane.head} on{_failures(lane)}"


def _held(lane: LaneStateAnswer) -> str:
    return f"its next attempt, in {span(max(lane.retry_in, 0))}: offset {lane.head}{_failures(lane)}"


def _queue_held(lane: LaneStateAnswer) -> str:
    return f"its queue, held as a whole for another {span(max(lane.retry_in, 0))}: offset {lane.head}{_failures(lane)}"


def _parked_here(lane: LaneStateAnswer) -> str:
    return f"a person: parked in its owner's memory at offset {lane.head}{_failures(lane)}; resume it there"


def _unleased(lane: LaneStateAnswer) -> str:
    return f"its owner's lease, which rests until it is renewed: offset {lane.head} is next{_failures(lane)}"


def _leaving(lane: LaneStateAnswer) -> str:
    return f"the queue's next owner: it is being handed over, offset {lane.head} is next{_failures(lane)}"


def _ready(lane: LaneStateAnswer) -> str:
    return f"a free worker: {plural(lane.waiting, 'message')} from offset {lane.head} on are ready{_failures(lane)}"


_STATES = {
    LaneState.RUNNING: _running,
    LaneState.HELD: _held,
    LaneState.QUEUE_HELD: _queue_held,
    LaneState.PARKED: _parked_here,
    LaneState.UNLEASED: _unleased,
    LaneState.LEAVING: _leaving,
    LaneState.READY: _ready,
}


def _failures(lane: LaneStateAnswer) -> str:
    """What went wrong before, if anything did."""
    if lane.blocked_for < 0:
        return ""
    times = f" failed {plural(lane.attempts, 'time')}" if lane.attempts else " failed"
    return f",{times}, blocked for {span(lane.blocked_for)}: {lane.reason or 'no reason given'}"
