"""Does every lane run in order, one at a time, and rewind without a skip? (B2, B3, B4, B5, D4, E3)

A lane is one key in one group. Its messages are known by their offsets; that offsets follow the send order is
the storing family's business.
"""

from bisect import bisect_right

from lanemq.checker.events import Outcome, Process, Turn, TurnEnd
from lanemq.checker.owning import Owning
from lanemq.checker.parking import goes_on, parked_turn, redone
from lanemq.checker.state import Doubt, GroupQueue, Lane, State, Stint
from lanemq.checker.storing import Storing
from lanemq.checker.verdict import Violation, violation


class Delivering:
    """Asks `owning` whether a turn is stale (those leave the lane alone); tells `storing` what it saw."""

    def __init__(self, state: State, owning: Owning, storing: Storing, *, slack: int) -> None:
        self._state = state
        self._owning = owning
        self._storing = storing
        self._slack = slack
        self._overtaken: dict[tuple[Process, str, str, int, int], Turn] = {}
        """Turns that had not ended when another process started one of the same lane."""

    def turn(self, event: Turn) -> Violation | None:
        if self._state.gone and event.id in self._state.gone.get(event.topic, ()):
            return None
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if self._owning.stale(event, held):
            return None
        if event.epoch > held.turn_epoch:
            held.turn_epoch = event.epoch
        found = self._storing.delivered(event, held.queue) if event.id else None
        stint = _stint(held, event)
        if held.parked and event.offset in held.parked:
            found = found or parked_turn(held.parked[event.offset], event)
        elif event.offset < held.low:
            return found or self._below_commit(held, event)
        if not event.key:
            self._keyless_turn(held, event, stint)
            return found
        lane = held.lane(event.key)
        return self._lane_turn(held, lane, event, stint) or found

    def turn_end(self, event: TurnEnd) -> Violation | None:
        stale, found = self._owning.stale_end(event)
        if stale:
            return found
        held = self._state.group_queue(event.group, event.topic, event.queue)
        lane = held.lanes.get(event.key)
        if lane is not None and lane.running is event.process:
            lane.running_count -= 1
            if not lane.running_count:
                lane.running = None
        elif self._overtaken and (rival := self._rival(event)) is not None:
            return self._overlapped(held, event, rival)
        good = event.outcome is Outcome.OK or (event.outcome is Outcome.LATE and event.epoch >= held.epoch)
        if good and lane is not None:
            self._finish(held, lane, event)
        return None

    def _below_commit(self, held: GroupQueue, event: Turn) -> Violation | None:
        """Who asks for neither order nor a lease may begin where the group stood when it asked, a moment before."""
        if event.key or event.epoch:
            return violation(
                "D4", event, f"offset {event.offset} is delivered again below the committed offset {held.low}"
            )
        self._state.count("redelivery")
        held.account.redelivery("without order")
        return None

    def _finish(self, held: GroupQueue, lane: Lane, event: TurnEnd) -> None:
        lane.unfinished.discard(event.offset)
        if held.parked and event.offset in held.parked:
            redone(held, lane, event.offset)
        elif event.offset in held.started and event.offset not in held.finished:
            held.finished[event.offset] = event.t
            held.account.finished += 1

    def _lane_turn(self, held: GroupQueue, lane: Lane, event: Turn, stint: Stint) -> Violation | None:
        offset = event.offset
        found = None
        together = False
        if lane.running is not None:
            together = event.batch != 0 and lane.running is event.process and lane.running_batch == event.batch
            if not together:
                found = self._overlap(lane, event)
        if not together:
            goes_on(held, lane, offset)
            lane.running_count = 0
            if lane.unfinished and found is None:
                found = _overtaking(lane, event, stint)
        before = held.started.get(offset)
        if before is None:
            found = found or (None if offset in held.parked else _first(lane, event))
        else:
            found = self._again(held, lane, event, before[1], stint) or found
        if found is None and lane.last_stint is stint and lane.last < offset:
            found = _skipping(lane, event)
        _enter(lane, event, stint)
        held.started[offset] = (lane, stint, event.attempt)
        return found

    def _again(self, held: GroupQueue, lane: Lane, event: Turn, before: Stint, stint: Stint) -> Violation | None:
        self._state.count("redelivery")
        if before is not stint:
            held.account.redelivery("change of owner" if before.process is not stint.process else "new lease")
            return None
        # One that was discarded while its member waited to try it again: nobody can call it back.
        if event.offset in lane.unfinished or lane.given == event.offset <= held.discarded.get(event.key, -1):
            held.account.redelivery("retry")
            return None
        held.account.redelivery("no cause")
        return violation(
            "E3", event, f"offset {event.offset} had ended well and ran again with the same owner and lease"
        )

    def _overlap(self, lane: Lane, event: Turn) -> Violation | None:
        """In one process an overlap is certain; between two it is one only if the first turn ends later."""
        assert lane.running is not None
        if lane.running is event.process:
            return violation(
                "B5",
                event,
                f"offset {event.offset} started while offset {lane.running_offset} of key {event.key!r} still ran",
            )
        place = (lane.running, event.group, event.topic, event.queue, lane.running_offset)
        self._overtaken[place] = event
        return None

    def _rival(self, event: TurnEnd) -> Turn | None:
        """Who began a turn of the lane in another process while this one ran."""
        place = (event.process, event.group, event.topic, event.queue, event.offset)
        rival = self._overtaken.pop(place, None)
        return rival if rival is not None and event.t > rival.t + self._slack else None

    def _overlapped(self, held: GroupQueue, event: TurnEnd, rival: Turn) -> Violation | None:
        """Nobody can stop a handler that was frozen. If its member knew, or could not know because the broker had cut
        the lease short, it is no violation unless the result is accepted."""
        if event.outcome is Outcome.ABANDONED:
            self._state.count("zombie_turns")
            return None
        text = (
            f"{event.process.name} still ran offset {event.offset} of key {event.key!r} "
            f"when {rival.process.name} started offset {rival.offset}, "
            f"{(event.t - rival.t) / 1e6:.3f} ms before"
        )
        if event.outcome is Outcome.LATE or (event.epoch and event.epoch <= held.cut_epoch):
            self._state.count("late_turns")
            held.doubt(event.epoch, Doubt(event.offset, event.t, "B5", text))
            return None
        return violation("B5", event, text)

    def _keyless_turn(self, held: GroupQueue, event: Turn, stint: Stint) -> None:
        """Messages without a key have no order; they still are started, finished or dead-lettered."""
        if event.offset in held.started:
            self._state.count("redelivery")
            held.account.redelivery("without key")
        lane = held.lane("")
        lane.unfinished.add(event.offset)
        held.started[event.offset] = (lane, stint, event.attempt)


def _stint(held: GroupQueue, event: Turn) -> Stint:
    stint = held.stint
    if stint is None or stint.process is not event.process or stint.epoch != event.epoch or stint.tenure != held.tenure:
        stint = held.stint = Stint(event.process, event.epoch, held.tenure)
    return stint


def _enter(lane: Lane, event: Turn, stint: Stint) -> None:
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


def _overtaking(lane: Lane, event: Turn, stint: Stint) -> Violation | None:
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
        f"which nobody had finished",
    )


def _first(lane: Lane, event: Turn) -> Violation | None:
    if event.offset > lane.high:
        return None
    return violation(
        "B2",
        event,
        f"offset {event.offset} of key {event.key!r} ran for the first time after offset {lane.high} of the same key",
    )


def _skipping(lane: Lane, event: Turn) -> Violation | None:
    if lane.last == lane.high:
        return None
    following = lane.offsets[bisect_right(lane.offsets, lane.last)]
    if event.offset <= following:
        return None
    return violation(
        "B4",
        event,
        f"key {event.key!r} was replayed at offset {lane.last} and then jumped to {event.offset}, "
        f"leaving out offset {following}",
    )
