"""One sentence that explains why a group makes no progress with a key.

Reasons are checked in the order in which they must be removed: a parked lane stays parked whichever member owns the
queue, and without an owner there is no retry. Some facts only the owner knows; if it does not answer, the sentence says
so and contains what is known without it.
"""

from dataclasses import dataclass

from lanemq.cli.commands.group import QueueProgress
from lanemq.cli.output import cell, duration_text, plural
from lanemq.client.admin.parked import ParkedLaneView
from lanemq.client.admin.views import LaneStateView, NoAnswer
from lanemq.core.consuming.runs import Order
from lanemq.core.consuming.views import LaneActivity
from lanemq.core.lane_status import LaneStatus

OWN_TURN = "its own turn: it is running, is about to be retried, or is held after a failure"


@dataclass(frozen=True, slots=True)
class KeyProgress:
    """The progress of one group with one key."""

    group: str
    members: int
    progress: QueueProgress
    done: int
    pending: tuple[int, ...]
    """Offsets of the key's messages that are neither committed nor parked."""
    parked: ParkedLaneView | None = None
    """The key's lane, if it is parked; its messages are neither done nor pending."""
    lane: LaneStateView | NoAnswer | None = None
    """The owner's view of the lane; None if there is no owner, or nothing pending."""

    @property
    def waits_for(self) -> str:
        """What the key's first pending message waits for."""
        if self.parked is not None:
            return _parked(self.parked)
        if not self.pending:
            return "nothing: all messages are finished" if self.done else "nothing: the key has no messages"
        if not self.members:
            return "a member: no member of the group is online; start a consumer"
        if self.progress.at.owner is None:
            return "an owner: no member owns the queue (the group is not ordered, or the queue is being handed over)"
        if isinstance(self.lane, LaneStateView):
            return _owner_says(self.lane, self.pending)
        known = _in_the_queue(self.pending[0] - self.progress.at.offset)
        return known if self.lane is None else f"{known}. More is unknown: {self.lane.why}{self._lease()}"

    def _lease(self) -> str:
        left = self.progress.lease_ms
        return "" if left is None else f". Its lease ends in {duration_text(left)} unless it is renewed"


def _in_the_queue(ahead: int) -> str:
    if ahead <= 0:
        return OWN_TURN
    return (
        f"its own turn, or at most {plural(ahead, 'message')} ahead of it in the queue: with queue order all of them "
        f"run first; with key order only those of the same key do, and the others delay only the commit"
    )


def _parked(lane: ParkedLaneView) -> str:
    since = cell(lane.parked_since)
    if lane.status is LaneStatus.REDRIVING:
        return f"its redrive: {plural(lane.messages, 'message')} from offset {lane.first} on run before newer messages"
    reason = lane.reason or "no reason given"
    if lane.status is LaneStatus.HELD:
        return (
            f"its next attempt, which its owner makes by itself: offset {lane.first} failed "
            f"{plural(lane.attempts, 'time')}, last at {since}: {reason}; {plural(lane.messages, 'message')} from "
            f"there on wait at the broker"
        )
    where = (
        f"after {plural(lane.attempts, 'attempt')} at offset {lane.first}: {reason}"
        if lane.attempts
        else f"at {reason}"
    )
    wait = "message waits" if lane.messages == 1 else "messages wait"
    return (
        f"an operator: parked since {since} {where}; {lane.messages} {wait} from offset {lane.first}; "
        f"see lanemq parked list --group {lane.group}"
    )


def _owner_says(lane: LaneStateView, pending: tuple[int, ...]) -> str:
    state = LaneActivity(lane.state)
    if state is LaneActivity.EMPTY:
        return _not_fetched(lane, pending)
    return _blocked_by(lane, pending) + _STATES[state](lane)


def _not_fetched(lane: LaneStateView, pending: tuple[int, ...]) -> str:
    if pending[-1] < lane.next_offset:
        return (
            f"nothing: all messages are finished, and only the commit waits for offset {lane.committable} of the queue"
        )
    return (
        f"its fetch: the owner has fetched up to offset {lane.next_offset}; the first unfinished is {lane.committable}"
    )


def _blocked_by(lane: LaneStateView, pending: tuple[int, ...]) -> str:
    """With queue order, the message that blocks the queue may belong to another key."""
    ahead = [offset for offset in pending if offset >= lane.committable]
    if Order(lane.order) is not Order.QUEUE or not ahead or lane.head is None or ahead[0] <= lane.head:
        return ""
    return f"offset {lane.head} of the queue, {ahead[0] - lane.head} before its own, which waits for "


def _running(lane: LaneStateView) -> str:
    time = _span(lane.running_for)
    return f"its handler: running for {time} from offset {lane.head} on{_failures(lane)}"


def _held(lane: LaneStateView) -> str:
    return f"its next attempt, in {_span(lane.retry_in)}: offset {lane.head}{_failures(lane)}"


def _queue_held(lane: LaneStateView) -> str:
    left = _span(lane.retry_in)
    return f"its queue, which is held for another {left}: offset {lane.head}{_failures(lane)}"


def _parked_here(lane: LaneStateView) -> str:
    return f"an operator: parked in its owner's memory at offset {lane.head}{_failures(lane)}; resume it there"


def _unleased(lane: LaneStateView) -> str:
    return f"its owner's lease to be renewed: offset {lane.head} is next{_failures(lane)}"


def _leaving(lane: LaneStateView) -> str:
    return f"the queue's next owner: it is being handed over, offset {lane.head} is next{_failures(lane)}"


def _ready(lane: LaneStateView) -> str:
    return f"a free worker: {plural(lane.waiting, 'message')} from offset {lane.head} on are ready{_failures(lane)}"


_STATES = {
    LaneActivity.RUNNING: _running,
    LaneActivity.HELD: _held,
    LaneActivity.QUEUE_HELD: _queue_held,
    LaneActivity.PARKED: _parked_here,
    LaneActivity.UNLEASED: _unleased,
    LaneActivity.LEAVING: _leaving,
    LaneActivity.READY: _ready,
}


def _failures(lane: LaneStateView) -> str:
    """The failures so far, if there were any."""
    if lane.blocked_for is None:
        return ""
    times = f" failed {plural(lane.attempts, 'time')}" if lane.attempts else " failed"
    return f",{times}, blocked for {_span(lane.blocked_for)}: {lane.reason or 'no reason given'}"


def _span(seconds: float | None) -> str | None:
    return duration_text((seconds or 0) * 1000)
