"""Are parked lanes left alone until somebody redrives them? (E4; what overtakes them is B3 or B4)

A parked message counts as settled: the commit may pass it. It stays an unfinished one of its lane, so whatever runs
behind it before it was redriven or discarded has overtaken it.
"""

from lanemq.checker.events import Discarded, Parked, Redriven, Turn
from lanemq.checker.state import GroupQueue, Lane, State
from lanemq.checker.verdict import Violation, violation


class Parking:
    """Lanes that are set aside, run again, or given up; members and brokers may both report each."""

    def __init__(self, state: State) -> None:
        self._state = state

    def parked(self, event: Parked) -> None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if event.offset <= held.discarded.get(event.key, -1):
            return  # the member tells late, when the broker's answer has come, what was given up meanwhile
        lane = held.lane(event.key)
        lane.redriven = False
        if held.parked.get(event.offset) is lane:
            return  # it failed again, the other of the two says so too, or a broker tells it after its start
        self._state.count("parked")
        lane.unfinished.add(event.offset)
        held.parked[event.offset] = lane
        if event.offset >= held.low:
            held.finished.setdefault(event.offset, event.t)

    def redriven(self, event: Redriven) -> None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        lane = held.lanes.get(event.key)
        if lane is None:
            return
        lane.given = event.offset
        if not lane.redriven:
            self._state.count("redriven")
            lane.redriven = True

    def discarded(self, event: Discarded) -> None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        lane = held.parked.pop(event.offset, None)
        if lane is not None:
            self._state.count("discarded")
            held.account.skipped += 1
            held.discarded[event.key] = max(event.offset, held.discarded.get(event.key, -1))
            lane.unfinished.discard(event.offset)
            if lane.given == event.offset:  # on its way to its member: it may still run, and nobody can call it back
                held.parked[event.offset], lane.redone = lane, event.offset
            else:
                _forget(held, lane)


def parked_turn(lane: Lane, event: Turn) -> Violation | None:
    """A message runs that was parked, or one whose removal from the broker's list was lost."""
    if lane.redriven or event.offset not in lane.unfinished:
        return None
    return violation("E4", event, f"offset {event.offset} of key {event.key!r} ran while its lane was parked")


def redone(held: GroupQueue, lane: Lane, offset: int) -> None:
    """A redriven message ended well; it counts once, also if its removal from the broker's list was lost."""
    held.account.finished += lane.redone != offset
    lane.redone = offset


def still_parked(held: GroupQueue) -> int:
    return sum(offset in lane.unfinished for offset, lane in held.parked.items())


def goes_on(held: GroupQueue, lane: Lane, offset: int) -> None:
    """The lane is at `offset` now. A parked message that is done may come once more until then, if its removal from
    the broker's list was lost, and not afterwards."""
    if -1 < lane.redone < offset:
        held.parked.pop(lane.redone, None)
        lane.redone = -1


def _forget(held: GroupQueue, lane: Lane) -> None:
    if not lane.unfinished and lane.running is None and lane.high < held.low:
        held.lanes.pop(lane.key, None)
