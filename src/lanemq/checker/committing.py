"""Do committed offsets tell the truth, only move forward, and only for the owner? (A1, C3, D1, D2)"""

from lanemq.checker.events import CommitRefused, Committed, Event, Reset
from lanemq.checker.forgetting import Forgetting
from lanemq.checker.state import GroupQueue, State, Step, offsets_between
from lanemq.checker.storing import lost
from lanemq.checker.verdict import Violation, violation


class Committing:
    """`whole`: groups without a named start are taken to start at offset 0. Tells `forgetting` of every step."""

    def __init__(self, state: State, forgetting: Forgetting, *, slack: int, whole: bool) -> None:
        self._state = state
        self._forgetting = forgetting
        self._slack = slack
        self._whole = whole

    def committed(self, event: Committed) -> Violation | None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        asked = event.asked or event.t
        found = self._fenced(held, event, asked) or _accepted_after_all(held, event, asked)
        if event.asked and event.asked < held.reset_t:
            return found  # a late line about a commit from before the reset or crash; it says nothing about now
        if event.offset < held.low:
            return found or _backwards(held, event, asked)
        found = found or self._honest(held, event, asked)
        held.low_by = event.process
        self._advance(held, event.offset, event.t, asked)
        return found

    def refused(self, event: CommitRefused) -> None:
        self._state.count("commit_refused")

    def reset(self, event: Reset) -> None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if 0 < event.epoch < held.epoch:
            return
        if event.kept:
            if event.offset < held.low:
                held.go_back(event.offset, event.t)
            return
        step = Step(event.t, held.low, reset=True)
        held.restart_at(event.offset, event.t)
        self._forgetting.stepped(held, step, event.t)
        self._state.raise_floor(held.queue, event.t)

    def _fenced(self, held: GroupQueue, event: Committed, asked: int) -> Violation | None:
        epoch = event.epoch
        if not epoch:
            return None
        if epoch < held.epoch and asked > held.granted_t + self._slack:
            return violation(
                "C3",
                event,
                f"a commit of epoch {epoch} was accepted although {held.owner} owned the queue with epoch {held.epoch}",
            )
        if epoch < held.commit_epoch and asked > held.commit_epoch_t + self._slack:
            return violation(
                "C3", event, f"a commit of epoch {epoch} was accepted after one of epoch {held.commit_epoch}"
            )
        if epoch > held.epoch > 0:
            return violation("C3", event, f"a commit of epoch {epoch} was accepted, which was granted to nobody")
        if epoch > held.commit_epoch:
            held.commit_epoch, held.commit_epoch_t = epoch, event.t
        return None

    def _honest(self, held: GroupQueue, event: Committed, asked: int) -> Violation | None:
        """Everything the commit passes must have been finished when it was asked for."""
        low = held.low
        if low < 0:
            low = 0 if self._whole else min(held.started, default=event.offset)
        low = max(low, held.once)
        found = None
        stored, finished, started = held.queue.stored, held.finished, held.started
        for offset in offsets_between([*stored, *started], low, event.offset):
            done = finished.get(offset)
            if done is not None and done <= asked:
                continue
            if offset in started:
                found = found or _dishonest(event, offset, done)
            elif done is not None:
                continue
            elif offset in stored:
                found = found or lost(event, held, offset, stored[offset].id)
            elif event.topic in self._state.sent:
                held.holes.add(offset)
        return found

    def _advance(self, held: GroupQueue, offset: int, t: int, asked: int) -> None:
        if offset == held.low:
            return
        before = held.low
        old, held.low, held.low_t = held.low, offset, t
        if old < 0:
            old = min(held.started, default=offset)
        passed = tuple(map(held.passed, offsets_between([*held.started, *held.finished], old, offset)))
        self._forgetting.stepped(held, Step(t, before, passed), asked)
        self._state.raise_floor(held.queue, t)


def _backwards(held: GroupQueue, event: Committed, asked: int) -> Violation | None:
    """A late line about an earlier commit is no step back; a commit asked for later is. Members without leases go
    each their own way."""
    if asked <= held.low_t:
        return None
    if not event.epoch and held.low_by is not None and held.low_by.name != event.process.name:
        held.go_back(event.offset, event.t)
        return None
    return violation("D1", event, f"the committed offset went back from {held.low} to {event.offset} without a reset")


def _accepted_after_all(held: GroupQueue, event: Committed, asked: int) -> Violation | None:
    """A turn that ran beside its successor's is nobody's fault as long as its result is refused."""
    doubt = held.doubts.get(event.epoch) if held.doubts else None
    if doubt is None or event.offset <= doubt.offset or asked <= doubt.since:
        return None
    del held.doubts[event.epoch]
    return violation(doubt.invariant, event, f"{doubt.text}, and its result was accepted")


def _dishonest(event: Event, offset: int, done: int | None) -> Violation:
    when = "nobody had finished it" if done is None else "it was finished only afterwards"
    return violation("D2", event, f"the commit passes offset {offset}, but {when}")
