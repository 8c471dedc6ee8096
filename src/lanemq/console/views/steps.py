"""How far a group or a pipeline is with one message, as a word and a detail."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lanemq.client.admin.key_progress import EACH_MEMBER, KeyProgress
from lanemq.client.admin.views import LaneStateView
from lanemq.clock import time_text
from lanemq.console.views.pipelines import PipelineNow
from lanemq.core.consuming.views import LaneActivity
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.wording import plural

if TYPE_CHECKING:
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord
    from lanemq.pipelines.operate.parked import LaneState

StepState = Literal["done", "running", "held", "parked", "redriving", "in retry", "waiting", "dead letter", "unknown"]

LEVELS: Mapping[StepState, str] = {
    "done": "good", "running": "busy", "held": "warn", "parked": "bad", "redriving": "busy", "waiting": "none",
    "dead letter": "bad", "unknown": "none", "in retry": "warn",
}  # fmt: skip
NO_REASON = "no reason given"


def step_of(progress: KeyProgress, offset: int, doubt: str = "") -> tuple[StepState, str]:
    """How far the group is with the message at `offset`, which is one of the key's.

    `doubt`: why what the group's offset has passed may not be finished, from `doubt_about`.
    """
    lane, parked = progress.lane, progress.parked
    if progress.broadcasting:
        return "unknown", EACH_MEMBER
    if parked is not None and parked.first <= offset <= parked.last:
        return at_broker(progress, offset)
    if offset not in progress.pending:
        return _finished(progress, offset, doubt)
    if not isinstance(lane, LaneStateView):
        return "waiting", ""
    activity = LaneActivity(lane.state)
    if lane.head is None:
        return ("done", "") if offset < lane.next_offset else ("waiting", "not fetched yet")
    if offset < lane.head:
        return "done", ""
    if offset > lane.head:
        return "waiting", f"behind offset {lane.head}"
    if activity is LaneActivity.RUNNING:
        return "running", ""
    if activity in (LaneActivity.HELD, LaneActivity.QUEUE_HELD):
        return "held", lane.reason
    return ("parked", lane.reason) if activity is LaneActivity.PARKED else ("waiting", "")


def _finished(progress: KeyProgress, offset: int, doubt: str) -> tuple[StepState, str]:
    retry = progress.retries.get(offset)
    if retry is not None:
        when = "taken next" if retry.due is None else f"next attempt at about {time_text(retry.due)}"
        return "in retry", f"failed {plural(retry.attempts, 'time')}, {when}"
    if progress.retries_unknown:
        return "unknown", f"finished, or in retry: {progress.retries_unknown}"
    if (letter := progress.dead.get(offset)) is not None:
        return "dead letter", letter.why or NO_REASON
    return ("unknown", doubt) if doubt else ("done", "")


def at_broker(progress: KeyProgress, offset: int) -> tuple[StepState, str]:
    parked = progress.parked
    assert parked is not None
    state: StepState = "parked"
    if parked.status is LaneStatus.REDRIVING:
        state = "redriving"
    elif parked.status is LaneStatus.HELD:
        state = "held"
    return state, parked.reason if offset == parked.first else f"behind offset {parked.first}"


def doubt_about(progress: KeyProgress, pipelines: "Iterable[KeyInPipeline]") -> str:
    """Why messages that the group's offset has passed may not be finished; empty if they are.

    The offset of a group as which a pipeline commits passes what the pipeline parks. Which group that is, only the
    checkpoint says; while that has never been read, it may be any group without a sign of an ordinary consumer: an
    owner that reports on its lanes, or something parked, retried or given up at the broker.
    """
    names = [each.pipeline.name for each in pipelines if each.pipeline.never_read]
    is_consumer = isinstance(progress.lane, LaneStateView) or progress.parked is not None
    if not names or is_consumer or progress.retries or progress.dead:
        return ""
    which = f"pipeline {names[0]}, which was" if len(names) == 1 else f"one of {len(names)} pipelines that were"
    return f"finished, unless this is the group of {which} not read"


@dataclass(frozen=True, slots=True)
class KeyInPipeline:
    """What a pipeline's checkpoint says about one key."""

    pipeline: PipelineNow
    shown: "LaneState | None" = None
    """The key's waiting messages; None if none wait."""
    letters: "Sequence[DeadLetterRecord]" = ()
    problem: str = ""
    """What could not be read."""

    @property
    def group(self) -> str | None:
        return self.pipeline.group

    @property
    def unread(self) -> str:
        """Why it is not known, or not in full, what the checkpoint says; empty if it is."""
        return self.problem or self.pipeline.problem or ("" if self.pipeline.status is not None else "it was not read")

    def step(self, queue: MessageQueue, offset: int) -> tuple[StepState, str]:
        """How far the pipeline is with the message at `offset`, which is one of the key's.

        The offset that a pipeline commits has passed what it parked or gave up, so its checkpoint decides.
        """
        place = (queue.topic, queue.broker, queue.queue_id, offset)
        held = None if self.shown is None else self.shown.held
        if held is not None:
            waiting = [(each.topic, each.broker, each.queue_id, each.offset) for each in held.messages]
            if place in waiting:
                state: StepState = "parked" if held.why.value == "parked" else "held"
                return state, held.reason if place == waiting[0] else f"behind offset {waiting[0][3]}"
        letters = [each for each in self.letters if (each.topic, each.broker, each.queue_id, each.offset) == place]
        if any(each.state not in ("redriven", "notice", "settled") for each in letters):
            return "dead letter", letters[-1].reason or NO_REASON
        status = self.pipeline.status
        if status is None or self.unread:
            return "unknown", self.unread
        done = {(queue.topic, queue.broker, queue.queue): queue.offset for queue in status.queues}
        return ("done", "") if offset < done.get(place[:3], 0) else ("waiting", "")
