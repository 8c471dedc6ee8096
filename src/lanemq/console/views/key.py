"""The journey of a key: its messages in order, and how far each group is with each of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lanemq.client.admin.key_progress import NOT_KNOWN, KeyFacts, KeyProgress
from lanemq.client.admin.views import LaneStateView
from lanemq.client.message import Message, body_start
from lanemq.clock import wall_time
from lanemq.console.key_history import INTERRUPTED, KeyHistory, RecordedTurn
from lanemq.console.links import dead_link, group_link, message_link, pipeline_link
from lanemq.console.views.pipelines import NOT_IN_TIME
from lanemq.console.views.steps import LEVELS, KeyInPipeline, StepState, at_broker, doubt_about, step_of
from lanemq.console.views.waiting import parked_row
from lanemq.console.wording import PREVIEW_BYTES, preview
from lanemq.core.lane_status import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.model.wording import plural

_TROUBLE = ("good", "none", "busy", "warn", "bad")
"""Levels, the worst last."""
CLOCK_SLACK = timedelta(seconds=5)
"""How far the clocks of a broker and of recorded events may differ. Less would take an event of the same moment for one
of a deleted topic; more would show events of a topic that was deleted so short a time before."""
MAX_PAST = 100
"""Messages that the broker did not return and whose turns are shown, the newest. A key may have thousands of them in a
long history, and a page of them all would be slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JourneyTurn:
    """One recorded call of a handler for a message."""

    worker: str
    group: str
    what: str
    level: str
    at: datetime
    seconds: float | None
    attempt: int
    error: str = ""
    """What a failed turn raised; empty if its history does not say."""
    detail: str = ""
    """Why something else happened, such as a skip."""


@dataclass(frozen=True, slots=True)
class JourneyStep:
    """How far one group or pipeline is with one message."""

    group: str
    """Its name; `pipeline NAME` for a pipeline."""
    state: StepState
    level: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JourneyStop:
    """A message of the key, or a place where one is missing."""

    offset: int
    queue: int
    sent_at: datetime | None = None
    stored_at: datetime | None = None
    tag: str | None = None
    text: str = ""
    link: str = ""
    steps: tuple[JourneyStep, ...] = ()
    turns: tuple[JourneyTurn, ...]
    missing: str = ""
    """Why the message should be here and is not; empty if it is here."""

    @property
    def level(self) -> str:
        """That of the group that has most trouble with it."""
        if self.missing:
            return "bad"
        return max((step.level for step in self.steps), key=_TROUBLE.index, default="none")


@dataclass(frozen=True, slots=True)
class PastMessage:
    """A message that the broker did not return: retention has deleted it, or the index returned only newer ones."""

    queue: int
    offset: int
    turns: tuple[JourneyTurn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLane:
    """The lane of the key in one group or pipeline."""

    group: str
    """Its name; `pipeline NAME` for a pipeline."""
    link: str
    state: StepState
    level: str
    sentence: str
    owner: str | None = None
    epoch: int | None = None
    lease: float | None = None
    members: int = 0
    done: int | None
    """This and the three that follow: None if it is not known."""
    pending: int | None
    parked: int | None
    """Messages that are parked, or held at the broker."""
    dead: int | None
    """Messages that were given up."""
    inspect: str
    """The page that offers to redrive or discard; empty if nothing waits."""
    error: str
    is_pipeline: bool = False
    """Owner, epoch and lease are those of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """The screen of one key."""

    key: str
    topic: str
    queue: int
    broker: str
    hashed: int
    strays: tuple[int, ...]
    """Queues other than the key's own that have messages of it."""
    groups: tuple[GroupLane, ...]
    stops: tuple[JourneyStop, ...]
    is_cut: bool
    """Whether there are older messages that the index did not return."""
    has_history: bool
    complete: bool
    past: tuple[PastMessage, ...] = ()
    """What was recorded about messages that are not among `stops`, the newest of them."""
    past_left_out: int = 0
    """How many further ones have recorded turns."""
    not_searched: str = ""
    """Where other messages of the key may be, as a sentence; empty if there are none."""


@dataclass(frozen=True, slots=True)
class ClockPair:
    """The same moment on the machine's clock, in ns, and on the wall clock."""

    running_ns: int
    wall: Millis

    def time(self, running_ns: int) -> datetime:
        return wall_time(self.wall) - timedelta(microseconds=(self.running_ns - running_ns) // 1000)


def key_view(
    facts: KeyFacts,
    limit: int,
    history: KeyHistory | None,
    clock: ClockPair,
    first_kept: Mapping[int, int],
    pipelines: Sequence[KeyInPipeline] = (),
) -> KeyView:
    """`first_kept`: the first offset of each queue of the topic that retention has kept.

    `pipelines`: those that read the topic. One that commits as a group is shown instead of the group: its offset has
    passed what it parked or gave up.
    """
    groups = [each for each in facts.groups if each.group not in {one.group for one in pipelines}]
    of_place: dict[tuple[int, int], list[tuple[str, JourneyTurn]]] = {}
    for recorded in history.turns if history is not None else ():
        turn = _turn(_as_owned_now(recorded, facts.groups, clock), clock)
        of_place.setdefault((recorded.queue, recorded.offset), []).append((recorded.id, turn))
    stops = [_stop(message, facts.queue, groups, pipelines, of_place) for message in facts.messages]
    if history is not None and len(facts.messages) < limit and not facts.not_searched:
        stops += _missing(history, facts.messages, first_kept, clock, of_place)
    shown = {(stop.queue, stop.offset) for stop in stops}
    past = sorted(
        (queue, offset)
        for (queue, offset), found in of_place.items()
        if (queue, offset) not in shown and not _is_of_newer_topic(queue, offset, found[-1][1].at, facts.messages)
    )
    return KeyView(
        key=facts.key,
        topic=facts.queue.topic,
        queue=facts.queue.queue_id,
        broker=facts.queue.broker,
        hashed=facts.hashed.queue_id,
        strays=tuple(sorted({message.queue.queue_id for message in facts.messages} - {facts.hashed.queue_id})),
        groups=(
            *(_lane(each, doubt_about(each, pipelines)) for each in groups),
            *(_pipeline_lane(each, facts.messages) for each in pipelines),
        ),
        stops=tuple(sorted(stops, key=lambda stop: (stop.queue, stop.offset))),
        is_cut=len(facts.messages) >= limit,
        has_history=history is not None,
        complete=history.complete if history is not None else False,
        past=tuple(PastMessage(*place, tuple(turn for _, turn in of_place[place])) for place in past[-MAX_PAST:]),
        past_left_out=max(0, len(past) - MAX_PAST),
        not_searched=facts.not_searched,
    )


def _missing(
    history: KeyHistory,
    messages: Sequence[Message],
    first_kept: Mapping[int, int],
    clock: ClockPair,
    turns: Mapping[tuple[int, int], Sequence[tuple[str, JourneyTurn]]],
) -> list[JourneyStop]:
    """Messages that a producer knows to be stored, that retention has kept, and that the broker does not return."""
    present = {(message.queue.queue_id, message.queue_offset) for message in messages}
    return [
        JourneyStop(
            offset=offset,
            queue=queue,
            turns=tuple(turn for _, turn in turns.get((queue, offset), ())),
            missing="a producer recorded that it is stored, and the broker does not have it",
        )
        for (queue, offset), at in history.acknowledged.items()
        if (queue, offset) not in present and offset >= first_kept.get(queue, 0)
        if not _is_of_newer_topic(queue, offset, clock.time(at), messages)
    ]  # fmt: skip


def _is_of_newer_topic(queue: int, offset: int, at: datetime, messages: Sequence[Message]) -> bool:
    """Whether the queue belongs to a newer topic than what was recorded about this offset `at` that time.

    That is so if an earlier offset has a later message: offsets are given in the order of storing.
    """
    return any(
        message.queue.queue_id == queue and message.queue_offset <= offset and message.stored_at > at + CLOCK_SLACK
        for message in messages
    )


def _stop(
    message: Message,
    own: MessageQueue,
    groups: Sequence[KeyProgress],
    pipelines: Sequence[KeyInPipeline],
    turns: Mapping[tuple[int, int], Sequence[tuple[str, JourneyTurn]]],
) -> JourneyStop:
    queue, offset = message.queue, message.queue_offset
    here = groups if queue == own else ()
    steps = [(each.group, *step_of(each, offset, doubt_about(each, pipelines))) for each in here]
    steps += ((_name(each), *each.step(queue, offset)) for each in pipelines)
    return JourneyStop(
        offset=offset,
        queue=queue.queue_id,
        sent_at=message.born_at,
        stored_at=message.stored_at,
        tag=message.tag,
        text=preview(body_start(message, PREVIEW_BYTES)),
        link=message_link(queue, offset),
        steps=tuple(JourneyStep(name, state, LEVELS[state], detail) for name, state, detail in steps),
        turns=tuple(turn for id, turn in turns.get((queue.queue_id, offset), ()) if _is_about(message, id, turn)),
    )


def _is_about(message: Message, id: str, turn: JourneyTurn) -> bool:
    """Whether a turn at the message's place was one of the message, and not of one in a deleted topic of that name."""
    return id == message.message_id if id else turn.at >= message.stored_at - CLOCK_SLACK


def _name(key: KeyInPipeline) -> str:
    return f"pipeline {key.pipeline.name}"


def _pipeline_lane(key: KeyInPipeline, messages: Sequence[Message]) -> GroupLane:
    """What the pipeline has done with the messages that are shown."""
    steps = [key.step(message.queue, message.queue_offset) for message in messages]
    count = Counter(state for state, _ in steps)
    held = key.shown.held if key.shown is not None else None
    number = key.pipeline.number
    dead, waiting = count["dead letter"], len(held.messages) if held is not None else 0
    dead_known = not key.unread and (dead > 0 or key.pipeline.known_dead is not None)
    state: StepState = "done" if count["done"] else "waiting"
    if held is not None:
        state = "parked" if held.why.value == "parked" else "held"
        who = "a person: it was parked" if state == "parked" else "its next attempt, which the pipeline makes by itself"
        sentence = f"Waits for {who}. {_waiting(waiting)}, in order."
    elif key.unread:
        again = " The page tries again." if key.unread == NOT_IN_TIME else ""
        state, sentence = "unknown", f"Not known: {key.unread}.{again}"
    elif count["waiting"]:
        state, sentence = "waiting", "Waits for a batch of the pipeline."
    elif dead:
        state, sentence = "dead letter", f"{plural(dead, 'message')} given up, all others are finished."
    else:
        sentence = "All messages are finished." if count["done"] else "The key has no messages."
    return GroupLane(
        group=_name(key),
        link=pipeline_link(number),
        state=state,
        level=LEVELS[state],
        sentence=sentence,
        done=None if key.unread else count["done"],
        pending=None if key.unread else count["waiting"],
        parked=None if key.unread and held is None else waiting,
        dead=dead if dead_known else None,
        inspect=pipeline_link(number, "key", key=held.lane)
        if held is not None
        else pipeline_link(number)
        if dead
        else "",
        error=held.reason if held is not None else "",
        is_pipeline=True,
    )


def _lane(progress: KeyProgress, doubt: str) -> GroupLane:
    """`doubt`: why what the group's offset has passed may not be finished."""
    state, sentence = _lane_state(progress), _sentence(progress)
    doubt = doubt if progress.done else ""
    if doubt and state == "done":
        state, sentence = "unknown", f"Not known: {doubt}."
    parked, left = progress.parked, progress.progress.lease_ms
    return GroupLane(
        group=progress.group,
        link=group_link(progress.group),
        state=state,
        level=LEVELS[state],
        sentence=sentence,
        owner=progress.progress.at.owner,
        epoch=progress.progress.at.epoch,
        lease=None if left is None else left / 1000,
        members=progress.members,
        done=None if doubt else progress.done,
        pending=len(progress.pending),
        parked=0 if parked is None else parked.messages,
        dead=len(progress.dead),
        inspect=parked_row(parked).link if parked is not None else dead_link(progress.group) if progress.dead else "",
        error=_error(progress),
    )


def _error(progress: KeyProgress) -> str:
    if progress.parked is not None:
        return progress.parked.reason
    return progress.lane.reason if isinstance(progress.lane, LaneStateView) else ""


def _sentence(progress: KeyProgress) -> str:
    """What the key waits for, as a sentence of its own. The error is shown beside it."""
    parked, waits_for = progress.parked, progress.waits_for
    if parked is not None and parked.status is LaneStatus.PARKED:
        after = f" after {plural(parked.attempts, 'attempt')} at offset {parked.first}" if parked.attempts else ""
        return f"Waits for a person: it was parked{after}. {_waiting(parked.messages)}, in order."
    reason = _error(progress)
    if reason:
        waits_for = waits_for.replace(f": {reason}", "")
    if waits_for.startswith("nothing: "):
        text = waits_for.removeprefix("nothing: ")
        return f"{text[0].upper()}{text[1:]}."
    if waits_for.startswith(NOT_KNOWN):
        return f"Not known: {waits_for.removeprefix(NOT_KNOWN)}."
    return f"Waits for {waits_for}."


def _lane_state(progress: KeyProgress) -> StepState:
    if progress.broadcasting:
        return "unknown"
    if progress.parked is not None:
        return at_broker(progress, progress.parked.first)[0]
    if not progress.pending:
        if progress.retries:
            return "in retry"
        if progress.unsearched or (progress.retries_unknown and progress.done):
            return "unknown"
        return "dead letter" if progress.dead else "done"
    return step_of(progress, _head(progress))[0]


def _head(progress: KeyProgress) -> int:
    lane = progress.lane
    if isinstance(lane, LaneStateView) and lane.head in progress.pending:
        return int(lane.head or 0)
    return progress.pending[-1] if isinstance(lane, LaneStateView) and lane.head is None else progress.pending[0]


_OUTCOMES = frozenset({"ok", "retry", "abandoned", "late"})
_FAILED = frozenset({"retry", "abandoned"})
_TURN_LEVELS = {
    "ok": "good", "running": "busy", "late": "warn", "abandoned": "warn", "effect": "good", INTERRUPTED: "warn",
}  # fmt: skip
_TURN_WORDS = {
    "ok": "done", "retry": "failed", "late": "done after the lease ended", "abandoned": "thrown away: queue lost",
    "dead_lettered": "dead-lettered", "effect": "in the sink",
}  # fmt: skip


def _as_owned_now(turn: RecordedTurn, groups: Sequence[KeyProgress], clock: ClockPair) -> RecordedTurn:
    """A turn without an end runs only while its worker owns the queue; a process that was killed recorded no end.

    The lease tells: every new one has a higher epoch. A turn that has begun since the owners were read is left alone.
    """
    if turn.what != "running" or not turn.epoch:
        return turn
    queues = (each.progress.at for each in groups if each.group == turn.group)
    at = next((each for each in queues if each.queue.queue_id == turn.queue), None)
    if at is None:
        return turn
    if at.epoch is not None and at.epoch > turn.epoch:
        return turn.interrupted("the queue was granted anew since then")
    is_old = clock.time(turn.began) < wall_time(clock.wall) - CLOCK_SLACK
    return turn.interrupted("no member owns the queue") if at.owner is None and is_old else turn


def _turn(recorded: RecordedTurn, clock: ClockPair) -> JourneyTurn:
    is_turn = recorded.ended is not None and recorded.what in _OUTCOMES
    seconds = max(0, (recorded.ended or 0) - recorded.began) / 1e9 if is_turn else None
    return JourneyTurn(
        worker=recorded.process,
        group=recorded.group,
        what=_TURN_WORDS.get(recorded.what, recorded.what),
        level=_TURN_LEVELS.get(recorded.what, "bad"),
        at=clock.time(recorded.began),
        seconds=seconds,
        attempt=recorded.attempt,
        error=recorded.why if recorded.what in _FAILED else "",
        detail="" if recorded.what in _FAILED else recorded.why,
    )


def _waiting(messages: int) -> str:
    return f"{plural(messages, 'message')} {'waits' if messages == 1 else 'wait'}"
