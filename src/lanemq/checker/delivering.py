"""Does every lane run in order, one message at a time, and rewind without skipping? (B2, B3, B4, B5, D4, E3)

A lane is one key in one group, and its messages are known by their offsets. That offsets follow the order of the sends
is checked by `storing`.
"""

from bisect import bisect_right

from lanemq.checker.events import Outcome, Process, Turn, TurnEnd
from lanemq.checker.owning import OwnershipRules
from lanemq.checker.settling import lane_continues, parked_turn, redriven_done
from lanemq.checker.state import CheckedLane, CheckerState, GroupProgress, Stint, SuspectTurn
from lanemq.checker.storing import StoringRules
from lanemq.checker.verdict import Violation, violation


class DeliveryRules:
    """Rules about turns. A turn of a stale owner (`owning`) does not change its lane."""

    def __init__(self, state: CheckerState, owning: OwnershipRules, storing: StoringRules, *, slack: int) -> None:
        self._state = state
        self._owning = owning
        self._storing = storing
        self._slack = slack
        self._overtaken: dict[tuple[Process, str, str, str, int, int], Turn] = {}
        """Turns that had not ended when another process started one of the same lane."""

    def turn(self, event: Turn) -> Violation | None:
        if self._state.deleted and event.id in self._state.deleted.get(event.topic, ()):
            return None
        progress = self._state.progress(event)
        if self._owning.stale(event, progress):
            return None
        if event.epoch > progress.turn_epoch:
            progress.turn_epoch = event.epoch
        breach = self._storing.delivered(event, progress.queue) if event.id else None
        stint = _stint(progress, event)
        if progress.parked and event.offset in progress.parked:
            breach = breach or parked_turn(progress.parked[event.offset], event)
        elif event.offset < progress.committed:
            return breach or self._below_commit(progress, event)
        if not event.key:
            self._keyless_turn(progress, event, stint)
            return breach
        lane = progress.lane(event.key)
        return self._lane_turn(progress, lane, event, stint) or breach

    def turn_end(self, event: TurnEnd) -> Violation | None:
        stale, breach = self._owning.stale_end(event)
        if stale:
            return breach
        progress = self._state.progress(event)
        lane = progress.lanes.get(event.key)
        if lane is not None and lane.running is event.process:
            lane.running_count -= 1
            if not lane.running_count:
                lane.running = None
        elif self._overtaken and (rival := self._rival(event)) is not None:
            return self._overlapped(progress, event, rival)
        good = event.outcome is Outcome.OK or (event.outcome is Outcome.LATE and event.epoch >= progress.epoch)
        if good and lane is not None:
            self._finish(progress, lane, event)
        return None

    def _below_commit(self, progress: GroupProgress, event: Turn) -> Violation | None:
        """A member without order and lease may begin at an offset that was current when it asked."""
        if event.key or event.epoch:
            return violation(
                "D4", event, f"offset {event.offset} is delivered again below the committed offset {progress.committed}"
            )
        self._state.count("redelivery")
        progress.account.redelivery("without order")
        return None

    def _finish(self, progress: GroupProgress, lane: CheckedLane, event: TurnEnd) -> None:
        lane.unfinished.discard(event.offset)
        if progress.parked and event.offset in progress.parked:
            redriven_done(progress, lane, event.offset)
        elif event.offset in progress.started and event.offset not in progress.finished:
            progress.finished[event.offset] = event.t
            progress.account.finished += 1

    def _lane_turn(self, progress: GroupProgress, lane: CheckedLane, event: Turn, stint: Stint) -> Violation | None:
        offset = event.offset
        breach = None
        together = False
        if lane.running is not None:
            together = event.batch != 0 and lane.running is event.process and lane.running_batch == event.batch
            if not together:
                breach = self._overlap(lane, event)
        if not together:
            lane_continues(progress, lane, offset)
            lane.running_count = 0
            if lane.unfinished and breach is None:
                breach = _overtaking(lane, event, stint)
        before = progress.started.get(offset)
        if before is None:
            may_be_late = offset in progress.parked or offset < progress.skipped_until <= lane.high
            breach = breach or (None if may_be_late else _first(lane, event))
        else:
            breach = self._again(progress, lane, event, before[1], stint) or breach
        if breach is None and lane.last_stint is stint and lane.last < offset:
            breach = _skipping(lane, event)
        _enter(lane, event, stint)
        progress.started[offset] = (lane, stint, event.attempt)
        return breach

    def _again(
        self, progress: GroupProgress, lane: CheckedLane, event: Turn, before: Stint, stint: Stint
    ) -> Violation | None:
        self._state.count("redelivery")
        if before is not stint:
            progress.account.redelivery("change of owner" if before.process is not stint.process else "new lease")
            return None
        # It was discarded while its member waited to retry it, and cannot be called back.
        on_its_way = lane.redrive_first <= event.offset <= lane.redrive_last
        discarded = event.offset <= progress.discarded.get(event.key, -1)
        if event.offset in lane.unfinished or (on_its_way and discarded):
            progress.account.redelivery("retry")
            return None
        progress.account.redelivery("no cause")
        return violation(
            "E3", event, f"offset {event.offset} had ended well and ran again with the same owner and lease"
        )

    def _overlap(self, lane: CheckedLane, event: Turn) -> Violation | None:
        """Within a process an overlap is certain. Between two, it is one only if the first turn ends later."""
        assert lane.running is not None
        if lane.running is event.process:
            return violation(
                "B5",
                event,
                f"offset {event.offset} started while offset {lane.running_offset} of key {event.key!r} still ran",
            )
        place = (lane.running, event.group, event.topic, event.broker, event.queue, lane.running_offset)
        self._overtaken[place] = event
        return None

    def _rival(self, event: TurnEnd) -> Turn | None:
        """The turn of the lane that another process began while this one ran."""
        place = (event.process, event.group, event.topic, event.broker, event.queue, event.offset)
        rival = self._overtaken.pop(place, None)
        return rival if rival is not None and (event.ended or event.t) > rival.t + self._slack else None

    def _overlapped(self, progress: GroupProgress, event: TurnEnd, rival: Turn) -> Violation | None:
        """A handler in a frozen process cannot be stopped. If its member noticed, or could not notice because the
        broker had shortened the lease, it is a violation only if the result is accepted."""
        if event.outcome is Outcome.ABANDONED:
            self._state.count("zombie_turns")
            return None
        text = (
            f"{event.process.name} still ran offset {event.offset} of key {event.key!r} "
            f"when {rival.process.name} started offset {rival.offset}, "
            f"{((event.ended or event.t) - rival.t) / 1e6:.3f} ms before"
        )
        if event.outcome is Outcome.LATE or (event.epoch and event.epoch <= progress.shortened_epoch):
            self._state.count("late_turns")
            progress.suspect(event.epoch, SuspectTurn(event.offset, event.t, "B5", text))
            return None
        return violation("B5", event, text)

    def _keyless_turn(self, progress: GroupProgress, event: Turn, stint: Stint) -> None:
        """Messages without a key have no order, but are started, finished or dead-lettered like others."""
        if event.offset in progress.started:
            self._state.count("redelivery")
            progress.account.redelivery("without key")
        lane = progress.lane("")
        lane.unfinished.add(event.offset)
        progress.started[event.offset] = (lane, stint, event.attempt)


def _stint(progress: GroupProgress, event: Turn) -> Stint:
    stint = progress.stint
    if (
        stint is None
        or stint.process is not event.process
        or stint.epoch != event.epoch
        or stint.tenure != progress.tenure
    ):
        stint = progress.stint = Stint(event.process, event.epoch, progress.tenure)
    return stint


def _enter(lane: CheckedLane, event: Turn, stint: Stint) -> None:
    offset = event.offset
    lane.running = event.process
    lane.running_offset = offset
    lane.running_batch = event.batch
    lane.running_count += 1
    lane.unfinished.add(offset)
    lane.last, lane.last_stint = offset, stint
    if offset > lane.high:
        lane.high = offset
        lane.offsets.append(offset)


def _overtaking(lane: CheckedLane, event: Turn, stint: Stint) -> Violation | None:
    first = min(lane.unfinished)
    if first >= event.offset:
        return None
    if lane.last_stint is stint:
        return violation(
            "B3",
            event,
            f"offset {event.offset} of key {event.key!r} started before offset {first} of the same key was finished",
        )
    return violation(
        "B4",
        event,
        f"the new owner started key {event.key!r} at offset {event.offset} and left out offset {first}, "
        f"which was not finished",
    )


def _first(lane: CheckedLane, event: Turn) -> Violation | None:
    if event.offset > lane.high:
        return None
    return violation(
        "B2",
        event,
        f"offset {event.offset} of key {event.key!r} ran for the first time after offset {lane.high} of the same key",
    )


def _skipping(lane: CheckedLane, event: Turn) -> Violation | None:
    if lane.last == lane.high:
        return None
    at = bisect_right(lane.offsets, lane.last)
    # Of a long lane nothing below the commit is kept. Its redriven messages are there, and all of them are unfinished.
    if at == len(lane.offsets) or event.offset <= lane.offsets[at]:
        return None
    return violation(
        "B4",
        event,
        f"key {event.key!r} was replayed at offset {lane.last} and then jumped to {event.offset}, "
        f"leaving out offset {lane.offsets[at]}",
    )
