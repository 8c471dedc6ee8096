"""How did every message end: dead-lettered, skipped, parked, or left over? (E1, E4; S1, B2 and L1 at the end)

A parked message counts as settled, so a commit may pass it. In its lane it stays unfinished: what runs behind it before
it was redriven or discarded has overtaken it (B3 or B4).
"""

from collections.abc import Iterator
from operator import itemgetter

from lanemq.checker.events import (
    DeadLettered,
    Discarded,
    HistoryEvent,
    MessageParked,
    QueueName,
    Redriven,
    Role,
    Skipped,
    Turn,
)
from lanemq.checker.state import CheckedLane, CheckerState, GroupProgress, QueueContents
from lanemq.checker.verdict import QueueUse, Violation, violation

_name = itemgetter(0)


class SettlingRules:
    """Rules about dead letters and skips, and about what is left at the end.

    `drained`: the run was meant to end with nothing left over.
    """

    def __init__(self, state: CheckerState, *, drained: bool) -> None:
        self._state = state
        self._drained = drained

    def dead_lettered(self, event: DeadLettered) -> Violation | None:
        if event.id in self._state.deleted.get(event.topic, ()):
            return None  # of a deleted topic of this name; its former owner learns late that it is gone
        progress = self._state.progress(event)
        self._state.count("dead_letter")
        redriven = progress.parked.get(event.offset)
        if redriven is not None and _was_tried(progress, redriven, event.offset):  # it failed for good
            redriven.unfinished.discard(event.offset)
            redriven.redriven_done.add(event.offset)  # its removal from the broker's list may be lost
            return None
        if event.offset < progress.committed:
            return violation("E1", event, f"offset {event.offset} was dead-lettered after it was committed past")
        entry = progress.started.get(event.offset)
        if entry is None:
            return violation("E1", event, f"offset {event.offset} was dead-lettered and never tried")
        lane, stint, attempt = entry
        if event.offset not in lane.unfinished:
            how = "twice" if event.offset in progress.dead else "although it had ended well"
            return violation("E1", event, f"offset {event.offset} was dead-lettered {how}")
        miscounted = event.attempts and attempt and event.attempts != attempt and stint.process is event.process
        lane.unfinished.discard(event.offset)
        progress.dead.add(event.offset)
        if event.offset not in progress.finished:
            progress.finished[event.offset] = event.t
            progress.account.dead_lettered += 1
        if miscounted:
            return violation(
                "E1",
                event,
                f"offset {event.offset} was dead-lettered after {event.attempts} attempts, "
                f"but its last turn was attempt {attempt}",
            )
        return None

    def skipped(self, event: Skipped) -> None:
        progress = self._state.progress(event)
        self._state.count("skipped")
        if event.offset < progress.committed or event.offset in progress.finished:
            return
        progress.finished[event.offset] = event.t
        progress.account.skipped += 1
        entry = progress.started.get(event.offset)
        if entry is not None:
            entry[0].unfinished.discard(event.offset)

    def finish(self, end: HistoryEvent) -> Iterator[Violation]:
        """Violations that show only at the end: messages left over, skipped, or missing in the log."""
        for name, queue in sorted(self._state.queues.items(), key=_name):
            yield from _missing_in_log(queue, end, name)
            yield from self._never_stored(queue, end, name)
        for (group, topic, broker, number), progress in sorted(self._state.groups.items(), key=_name):
            if not progress.consumes:
                continue
            progress.account.parked += still_parked(progress)
            for offset in self._left(progress):
                progress.account.backlog += 1
                breach = self._judge_left(progress, offset)
                if breach is not None:
                    yield _at(end, *breach, queue=(topic, broker, number), offset=offset, group=group)

    def queues(self) -> Iterator[QueueUse]:
        """What each queue holds at the end, and which groups consume it."""
        for name, queue in self._state.queues.items():
            end = max(queue.forgotten, max(queue.stored, default=-1) + 1)
            yield QueueUse(*name, queue.trimmed, end, [each.group for each in queue.groups if each.consumes])

    def _never_stored(self, queue: QueueContents, end: HistoryEvent, name: QueueName) -> Iterator[Violation]:
        if queue.log_offsets is None or queue.trimmed:
            return
        for id in sorted(queue.acked_without_offset & self._state.sent.get(name[0], {}).keys()):
            text = f"{id} was acknowledged and is not in the log"
            yield _at(end, "S1", text, queue=name, offset=-1, group="")

    def _left(self, progress: GroupProgress) -> list[int]:
        first = progress.committed
        if first < 0:
            first = 0 if self._drained else min(progress.started, default=0)
        first = max(first, progress.queue.trimmed)
        forgotten = progress.forgotten(first, progress.late_until)
        known = progress.queue.stored.keys() | progress.started.keys() | forgotten
        left = sorted(offset for offset in known if offset >= first and offset not in progress.finished)
        return [offset for offset in left if offset in progress.started or not progress.leaves_out(offset)]

    def _judge_left(self, progress: GroupProgress, offset: int) -> tuple[str, str] | None:
        stored = progress.queue.stored.get(offset)
        lane = progress.lanes.get(stored.key) if stored is not None and stored.key else None
        if lane is not None and stored is not None and offset not in progress.started and lane.high > offset:
            if progress.may_be_done_unrecorded(offset):
                progress.account.undecided += 1
                return None
            return "B2", (
                f"offset {lane.high} of key {stored.key!r} ran, and the earlier offset {offset} "
                f"of the same key never did"
            )
        if self._drained:
            return "L1", f"offset {offset} was never finished by group {progress.group!r}"
        return None


def _missing_in_log(queue: QueueContents, end: HistoryEvent, name: QueueName) -> Iterator[Violation]:
    if queue.log_offsets is None:
        return
    for offset, stored in sorted(queue.stored.items(), key=_name):
        if offset not in queue.log_offsets and offset >= max(queue.trimmed, queue.forgotten):
            text = f"{stored.id} was acknowledged at offset {offset} and is not in the log"
            yield _at(end, "S1", text, queue=name, offset=offset, group="")


def _at(end: HistoryEvent, invariant: str, text: str, *, queue: QueueName, offset: int, group: str) -> Violation:
    return Violation(invariant, text, end.t, end.process.name, end.n, *queue, offset, "", group)


class ParkingRules:
    """Rules about lanes that are parked, redriven or discarded. Members and brokers may both report each."""

    def __init__(self, state: CheckerState) -> None:
        self._state = state

    def parked(self, event: MessageParked) -> None:
        progress = self._state.progress(event)
        by_broker = progress.parked_by_broker.get(event.key, -1)
        if event.process.role is Role.BROKER:
            progress.parked_by_broker[event.key] = max(by_broker, event.offset)
        elif event.offset <= by_broker:
            return  # the member repeats what the broker answered, perhaps after the message was redriven and done
        if event.offset <= progress.discarded.get(event.key, -1):
            if event.process.role is not Role.BROKER:
                return  # the member reports it after the broker's answer, and it was discarded in between
            progress.discarded[event.key] = event.offset - 1  # delivered again after a crash, it failed again
        lane = progress.lane(event.key)
        if event.offset == lane.last:  # it failed; others join a lane, which may be running at this moment
            lane.redriven = False
        if progress.parked.get(event.offset) is lane:
            return  # it failed again, or the broker repeats it after a start
        self._state.count("parked")
        lane.unfinished.add(event.offset)
        progress.parked[event.offset] = lane
        if event.offset >= progress.committed:
            progress.finished.setdefault(event.offset, event.t)

    def redriven(self, event: Redriven) -> None:
        progress = self._state.progress(event)
        lane = progress.lanes.get(event.key)
        if lane is None:
            return
        lane.redrive_first, lane.redrive_last = event.offset, max(event.offset, event.last)
        if event.process.role is Role.BROKER and not progress.is_recorded(progress.epoch):
            progress.redriven_unseen.add(event.key)  # the owner records nothing, or not yet
        _removed(progress, lane, event.offset, after_start=_after_start(lane, event))
        if not lane.redriven:
            self._state.count("redriven")
            lane.redriven = True

    def discarded(self, event: Discarded) -> None:
        progress = self._state.progress(event)
        lane = progress.parked.pop(event.offset, None)
        if lane is not None:
            self._state.count("discarded")
            progress.account.skipped += 1
            progress.discarded[event.key] = max(event.offset, progress.discarded.get(event.key, -1))
            was_open = event.offset in lane.unfinished
            lane.unfinished.discard(event.offset)
            if lane.redrive_first <= event.offset <= lane.redrive_last:  # on its way to its member: it may still run
                progress.parked[event.offset] = lane
                lane.redriven_done.add(event.offset)
                if was_open:
                    lane.with_owner.add(event.offset)
            else:
                _forget(progress, lane)


def _was_tried(progress: GroupProgress, lane: CheckedLane, offset: int) -> bool:
    """Whether a parked message ran. A commit may have passed it since its redrive, while it ran or failed."""
    return offset in progress.started or (lane.redriven and lane.last == offset)


def parked_turn(lane: CheckedLane, event: Turn) -> Violation | None:
    """A parked message runs: a violation unless it was redriven, or was done and its removal was lost."""
    if lane.redriven or event.offset not in lane.unfinished:
        return None
    return violation("E4", event, f"offset {event.offset} of key {event.key!r} ran while its lane was parked")


def redriven_done(progress: GroupProgress, lane: CheckedLane, offset: int) -> None:
    """A redriven message succeeded. It counts once, also if its removal from the broker's list was lost."""
    progress.account.finished += offset not in lane.redriven_done
    lane.redriven_done.add(offset)
    lane.with_owner.discard(offset)


def still_parked(progress: GroupProgress) -> int:
    """The number of parked messages that are not done."""
    return sum(offset in lane.unfinished for offset, lane in progress.parked.items())


def lane_continues(progress: GroupProgress, lane: CheckedLane, offset: int) -> None:
    """The lane is at `offset` now. If that is not parked, every message before it was removed from the lane."""
    if lane.redriven_done and offset not in progress.parked:
        _removed(progress, lane, offset)


def _after_start(lane: CheckedLane, event: Redriven) -> bool:
    """Whether a broker that has just started repeats that the lane is redriven; its owner has not asked for it."""
    if event.process.role is not Role.BROKER:
        return False
    before, lane.redriven_by = lane.redriven_by, event.process
    return before not in (None, event.process)


def _removed(progress: GroupProgress, lane: CheckedLane, below: int, *, after_start: bool = False) -> None:
    """Redriven messages below an offset are done, and the broker has removed them: they do not run again.

    One that was discarded while it runs continues. If it failed after that, it is not tried again, once the owner has
    asked for the next. `after_start`: the owner has not asked, and may still run those that were discarded.
    """
    running = lane.running_offset if lane.running is not None else below
    removed = {offset for offset in lane.redriven_done if offset < min(below, running)}
    if after_start:
        removed -= lane.with_owner
    lane.redriven_done -= removed
    lane.with_owner -= removed
    discarded = progress.discarded.get(lane.key, -1)
    for offset in removed:
        progress.parked.pop(offset, None)
        if offset <= discarded:
            lane.unfinished.discard(offset)


def _forget(progress: GroupProgress, lane: CheckedLane) -> None:
    if not (lane.unfinished or lane.redriven_done) and lane.running is None and lane.high < progress.committed:
        progress.lanes.pop(lane.key, None)
