"""Where did every message go in the end? (A1, B2 and L1 at the end of a history, E1)"""

from collections.abc import Iterator
from operator import itemgetter

from lanemq.checker.events import DeadLettered, Event, Skipped
from lanemq.checker.parking import still_parked
from lanemq.checker.state import GroupQueue, Queue, State
from lanemq.checker.verdict import Violation, violation

_name = itemgetter(0)


class Settling:
    """Dead letters and skips as they come, the balance of every group at the end.

    `drained`: the run was meant to end with nothing left over.
    """

    def __init__(self, state: State, *, drained: bool) -> None:
        self._state = state
        self._drained = drained

    def dead_lettered(self, event: DeadLettered) -> Violation | None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        self._state.count("dead_letter")
        if event.offset in held.parked and event.offset in held.started:
            held.parked.pop(event.offset).unfinished.discard(event.offset)  # redriven, and set aside for good
            return None
        if event.offset < held.low:
            return violation("E1", event, f"offset {event.offset} was dead-lettered after it was committed past")
        entry = held.started.get(event.offset)
        if entry is None:
            return violation("E1", event, f"offset {event.offset} was dead-lettered and never tried")
        lane, stint, attempt = entry
        if event.offset not in lane.unfinished:
            how = "twice" if event.offset in held.dead else "although it had ended well"
            return violation("E1", event, f"offset {event.offset} was dead-lettered {how}")
        miscounted = event.attempts and attempt and event.attempts != attempt and stint.process is event.process
        lane.unfinished.discard(event.offset)
        held.dead.add(event.offset)
        if event.offset not in held.finished:
            held.finished[event.offset] = event.t
            held.account.dead_lettered += 1
        if miscounted:
            return violation(
                "E1",
                event,
                f"offset {event.offset} was dead-lettered after {event.attempts} attempts, "
                f"but its last turn was attempt {attempt}",
            )
        return None

    def skipped(self, event: Skipped) -> None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        self._state.count("skipped")
        if event.offset < held.low or event.offset in held.finished:
            return
        held.finished[event.offset] = event.t
        held.account.skipped += 1
        entry = held.started.get(event.offset)
        if entry is not None:
            entry[0].unfinished.discard(event.offset)

    def finish(self, end: Event) -> Iterator[Violation]:
        """What only shows at the end: left over, left out, or gone from the log."""
        for (topic, number), queue in sorted(self._state.queues.items(), key=_name):
            yield from _gone(queue, end, topic, number)
            yield from self._never_there(queue, end, topic, number)
        for (group, topic, number), held in sorted(self._state.groups.items(), key=_name):
            held.account.parked += still_parked(held)
            for offset in self._left(held):
                held.account.backlog += 1
                found = self._judge_left(held, offset)
                if found is not None:
                    yield _at(end, *found, topic=topic, queue=number, offset=offset, group=group)

    def _never_there(self, queue: Queue, end: Event, topic: str, number: int) -> Iterator[Violation]:
        if queue.dumped is None or queue.trimmed:
            return
        for id in sorted(queue.promised & self._state.sent.get(topic, {}).keys()):
            text = f"{id} was acknowledged and is not in the log"
            yield _at(end, "A1", text, topic=topic, queue=number, offset=-1, group="")

    def _left(self, held: GroupQueue) -> list[int]:
        first = held.low
        if first < 0:
            first = 0 if self._drained else min(held.started, default=0)
        known = held.queue.stored.keys() | held.started.keys()
        return sorted(offset for offset in known if offset >= first and offset not in held.finished)

    def _judge_left(self, held: GroupQueue, offset: int) -> tuple[str, str] | None:
        stored = held.queue.stored.get(offset)
        lane = held.lanes.get(stored.key) if stored is not None and stored.key else None
        if lane is not None and stored is not None and offset not in held.started and lane.high > offset:
            return "B2", (
                f"offset {lane.high} of key {stored.key!r} ran, and the earlier offset {offset} "
                f"of the same key never did"
            )
        if self._drained:
            return "L1", f"offset {offset} was never finished by group {held.group!r}"
        return None


def _gone(queue: Queue, end: Event, topic: str, number: int) -> Iterator[Violation]:
    if queue.dumped is None:
        return
    for offset, stored in sorted(queue.stored.items(), key=_name):
        if offset not in queue.dumped and offset >= max(queue.trimmed, queue.floor):
            text = f"{stored.id} was acknowledged at offset {offset} and is not in the log"
            yield _at(end, "A1", text, topic=topic, queue=number, offset=offset, group="")


def _at(end: Event, invariant: str, text: str, *, topic: str, queue: int, offset: int, group: str) -> Violation:
    return Violation(invariant, text, end.t, end.process.name, end.n, topic, queue, offset, "", group)
