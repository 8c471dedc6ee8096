"""Do commits and effects pass only what is finished, in order, and only for the owner? (S1, C3, D1, D2, D3, P1, P2)

A broker answers a commit before the offset is on disk, and writes offsets out several times per second. So a crash may
undo the newest commits, and what they had passed is delivered again. It must not undo older ones, and a clean stop
none. The checker keeps what it knew before each of the newest commits, so that it can go back there.

A commit that only the broker recorded may be one of a member without a history. What such a commit passes is neither
finished nor lost, but unknown. With an epoch, that is so if no member has recorded anything of that epoch. Without one,
the member's own line about the commit follows the broker's.
"""

from bisect import bisect_left
from dataclasses import replace

from lanemq.checker.events import (
    BrokerCrashed,
    CommitRefused,
    Effect,
    HistoryEvent,
    OffsetCommitted,
    Recovered,
    Reset,
    Role,
)
from lanemq.checker.state import (
    CheckedLane,
    CheckerState,
    CommittedChange,
    GroupProgress,
    Passed,
    UnconfirmedCommit,
    offsets_between,
)
from lanemq.checker.storing import lost
from lanemq.checker.verdict import Violation, violation


class CommitRules:
    """Rules about commits and resets. `whole`: groups without a reset are taken to start at offset 0."""

    def __init__(self, state: CheckerState, crashes: "CrashRules", *, slack: int, whole: bool) -> None:
        self._state = state
        self._crashes = crashes
        self._slack = slack
        self._whole = whole

    def committed(self, event: OffsetCommitted) -> Violation | None:
        progress = self._state.progress(event)
        if progress.taken_by not in (None, event.process):
            self._state.count("unfenced_commits")
            return None  # a former owner, whom its broker cannot refuse; the owner reports its offset again
        asked = event.asked or event.t
        breach = self._fenced(progress, event, asked) or _suspect_accepted(progress, event, asked)
        if event.asked and event.asked < progress.reset_t:
            return breach  # a late line about a commit before the reset or crash
        by_broker = event.process.role is Role.BROKER
        if by_broker and not progress.is_recorded(event.epoch):
            self._by_unrecorded_owner(progress, event, asked)
            return breach
        if not by_broker:
            progress.recorded_epoch = max(progress.recorded_epoch, event.epoch)
            breach = breach or _confirmed(progress, event, asked)
        if event.offset < progress.committed:
            return breach or _backwards(progress, event, asked)
        unfinished, unknown = self._unfinished(progress, event, asked)
        if not by_broker or event.epoch:
            breach = breach or unfinished
            progress.passed_unknown.update(unknown)
        elif unfinished is not None or unknown:
            progress.unconfirmed = UnconfirmedCommit(event.offset, event.t, unfinished, set(unknown))
            progress.account.undecided += unfinished is not None
        progress.committed_by = event.process
        self._advance(progress, event.offset, event.t, asked)
        return breach

    def refused(self, event: CommitRefused) -> None:
        self._state.count("commit_refused")

    def reset(self, event: Reset) -> None:
        progress = self._state.progress(event)
        if 0 < event.epoch < progress.epoch or 0 < event.epoch <= progress.former_epoch:
            return  # a former owner, perhaps of a deleted topic of this name, obeyed late
        if event.kept:
            if event.offset < progress.committed:
                progress.go_back(event.offset, event.t)
            return
        change = CommittedChange(event.t, progress.committed, reset=True)
        progress.restart_at(event.offset, event.t)
        self._crashes.changed(progress, change, event.t)
        self._state.forget_committed(progress.queue, event.t)

    def _fenced(self, progress: GroupProgress, event: OffsetCommitted, asked: int) -> Violation | None:
        epoch = event.epoch
        if not epoch:
            return None
        if epoch < progress.epoch and asked > progress.granted_t + self._slack:
            return violation(
                "C3",
                event,
                f"a commit of epoch {epoch} was accepted although {progress.owner} owned the queue "
                f"with epoch {progress.epoch}",
            )
        if epoch < progress.commit_epoch and asked > progress.commit_epoch_t + self._slack:
            return violation(
                "C3", event, f"a commit of epoch {epoch} was accepted after one of epoch {progress.commit_epoch}"
            )
        if epoch > progress.epoch > 0:
            return violation("C3", event, f"a commit of epoch {epoch} was accepted, which was never granted")
        if epoch > progress.commit_epoch:
            progress.commit_epoch, progress.commit_epoch_t = epoch, event.t
        return None

    def _by_unrecorded_owner(self, progress: GroupProgress, event: OffsetCommitted, asked: int) -> None:
        """The broker accepted a commit of a member that records no history.

        What it passes may be finished or lost, and if it goes back, the member may have obeyed a reset.
        """
        before = progress.committed
        passes = event.offset > before >= 0 and event.topic in self._state.sent
        if passes or event.offset < before or self._unfinished(progress, event, asked)[0] is not None:
            progress.account.undecided += 1
        progress.had_unrecorded_owner(event.offset, event.t)
        progress.committed_by = event.process
        self._crashes.changed(progress, CommittedChange(event.t, before, reset=True), asked)
        self._state.forget_committed(progress.queue, event.t)

    def _unfinished(
        self, progress: GroupProgress, event: OffsetCommitted, asked: int
    ) -> tuple[Violation | None, list[int]]:
        """Everything that the commit passes must have been finished when it was requested, or deleted by retention.

        An owner that has started a message finishes it, whether it is still in the log or not. Also returns the offsets
        of which nothing is known yet: a message may be acknowledged there later.
        """
        low = progress.committed
        if low < 0:
            low = 0 if self._whole else min(progress.started, default=event.offset)
        low = max(low, progress.committed_by_any)
        breach: Violation | None = None
        undecided, unknown = 0, list[int]()
        stored, finished, started = progress.queue.stored, progress.finished, progress.started
        forgotten = progress.forgotten(low, event.offset)
        for offset in offsets_between([*stored, *started, *forgotten], low, event.offset):
            done = finished.get(offset)
            if done is not None and (done <= asked or offset not in started):
                continue
            if offset < progress.queue.trimmed and not (event.epoch and offset in started):
                continue
            if offset in started:
                breach = breach or _passed_unfinished(event, offset, done)
            elif offset not in stored and offset not in forgotten:
                unknown.append(offset)
            elif progress.leaves_out(offset):
                breach = breach or _skipped_for_another(event, progress, offset)
            elif progress.may_be_done_unrecorded(offset):
                undecided = 1
            else:
                breach = breach or lost(event, progress, offset, stored[offset].id if offset in stored else "a message")
        progress.account.undecided += undecided if breach is None else 0
        return breach, unknown if event.topic in self._state.sent else []

    def _advance(self, progress: GroupProgress, offset: int, t: int, asked: int) -> None:
        if offset == progress.committed:
            return
        before = progress.committed
        old, progress.committed, progress.committed_t = progress.committed, offset, t
        if old < 0:
            old = min(progress.started, default=offset)
        passed = tuple(map(progress.passed, offsets_between([*progress.started, *progress.finished], old, offset)))
        self._crashes.changed(progress, CommittedChange(t, before, passed), asked)
        self._state.forget_committed(progress.queue, t)


def _skipped_for_another(event: OffsetCommitted, progress: GroupProgress, offset: int) -> Violation | None:
    """The owner's filter left a message out that the filter of another member selects.

    Judged by the broker that knows the other member: another run of it may not know it yet.
    """
    message = progress.queue.stored.get(offset)
    for selection in (progress.selection, progress.given_up) if message is not None else ():
        if message is None or selection is None or selection.by != event.process or not selection.selects(message):
            continue
        member = f"the lost member {selection.lost}" if selection.lost else "another member"
        return violation(
            "S1",
            event,
            f"{message.id} at offset {offset} is acknowledged, and group {progress.group!r} committed past it: the "
            f"owner's filter left out its tag {message.tag!r}, which {member} had subscribed to before it was sent "
            f"(tags {' || '.join(sorted(selection.tags)) or '*'!r})",
        )
    return None


def _confirmed(progress: GroupProgress, event: OffsetCommitted, asked: int) -> Violation | None:
    """A member records a commit that the broker recorded before, so it is a member with a history."""
    commit = progress.unconfirmed
    if commit is None or event.epoch or commit.offset != event.offset or asked > commit.t:
        return None
    progress.unconfirmed = None
    progress.account.undecided -= (commit.found is not None) + len(commit.acked)
    progress.passed_unknown.update(commit.unknown)
    if commit.found is not None:
        return replace(commit.found, t=event.t, process=event.process.name, n=event.n)
    for offset, id in commit.acked.items():
        return lost(event, progress, offset, id)
    return None


def _backwards(progress: GroupProgress, event: OffsetCommitted, asked: int) -> Violation | None:
    """A commit that was requested after a higher one was accepted. Members without leases commit independently."""
    if asked <= progress.committed_t:
        return None
    if not event.epoch and progress.committed_by is not None and progress.committed_by.name != event.process.name:
        progress.go_back(event.offset, event.t)
        return None
    return violation(
        "D1", event, f"the committed offset went back from {progress.committed} to {event.offset} without a reset"
    )


def _suspect_accepted(progress: GroupProgress, event: OffsetCommitted, asked: int) -> Violation | None:
    """A turn that overlapped the next owner's is a violation once its result is accepted."""
    suspect = progress.suspects.get(event.epoch) if progress.suspects else None
    if suspect is None or event.offset <= suspect.offset or asked <= suspect.since:
        return None
    del progress.suspects[event.epoch]
    return violation(suspect.invariant, event, f"{suspect.text}, and its result was accepted")


def _passed_unfinished(event: HistoryEvent, offset: int, done: int | None) -> Violation:
    when = "it was not finished" if done is None else "it was finished only afterwards"
    return violation("D2", event, f"the commit passes offset {offset}, but {when}")


class CrashRules:
    """Rules about restarts of the broker. `promise`: the age in nanoseconds of the oldest commit a crash may undo."""

    def __init__(self, state: CheckerState, *, promise: int) -> None:
        self._state = state
        self._promise = promise

    def changed(self, progress: GroupProgress, change: CommittedChange, asked: int) -> None:
        """Notes a commit or reset, and forgets those that are too old for a crash to undo."""
        changes = progress.changes
        while changes and changes[0].t < asked - self._promise:
            changes.popleft()
        changes.append(change)

    def crashed(self, event: BrokerCrashed) -> None:
        self._state.queue(event).crashes.append(event.alive)

    def recovered(self, event: Recovered) -> Violation | None:
        progress = self._state.progress(event)
        progress.tenure += 1
        if event.process.role is not Role.BROKER:
            return self._found_by_member(progress, event)
        self._state.restarts.add((event.process.name, event.alive))
        crash = _crash_that_took(progress, event)
        if event.clean:
            if event.offset >= progress.committed:
                return None
            if crash is None or event.offset >= 0:
                return _lost_by_clean_stop(progress, event)
        progress.reset_t = event.t
        if event.offset > progress.committed and progress.changes and progress.changes[-1].reset:
            progress.committed, progress.committed_t = (
                event.offset,
                event.t,
            )  # the reset was neither on disk nor answered
        before, oldest = progress.committed, self._go_back(progress, event)
        progress.changes.clear()
        age = (crash or event.alive or oldest) - oldest
        return None if age <= self._promise else _too_old(before, event, age)

    def _found_by_member(self, progress: GroupProgress, event: Recovered) -> Violation | None:
        """A broker that writes no history answered with an offset; it may have forgotten newer ones."""
        progress.taken_by = event.process
        if event.offset >= progress.committed:
            return None
        progress.reset_t = event.t
        before, oldest = progress.committed, self._go_back(progress, event)
        age = event.alive - oldest
        return None if age <= self._promise else _too_old(before, event, age)

    def _go_back(self, progress: GroupProgress, event: Recovered) -> int:
        """Goes back to what was known at the restored offset. Returns the time of the oldest commit that was lost."""
        oldest = event.alive or event.t
        while progress.committed > event.offset and progress.changes:
            change = progress.changes.pop()
            oldest = change.t
            if change.reset:
                progress.skipped_until = max(progress.skipped_until, progress.committed)
            progress.committed = max(change.before, event.offset)
            self._state.count("forgotten_commits")
            for passed in change.passed:
                if passed.offset >= progress.committed:
                    _restore(progress, passed)
        if progress.committed > event.offset:
            oldest, progress.committed = 0, event.offset  # what had passed it is older than everything that was kept
        progress.committed_t = event.t
        progress.passed_unknown = {offset for offset in progress.passed_unknown if offset < progress.committed}
        return oldest


def _crash_that_took(progress: GroupProgress, event: Recovered) -> int | None:
    """The time of the first crash after the group's last commit; None if there was none.

    A broker that has lost the only offset of a group learns of it when the group asks again, unless the queue has an
    owner. That may be after another crash or a clean stop.
    """
    if not progress.changes:
        return None
    last = progress.changes[-1].t
    return min((alive for alive in progress.queue.crashes if last <= alive <= event.alive), default=None)


def _restore(progress: GroupProgress, passed: Passed) -> None:
    offset, done, entry = passed
    if done is not None:
        progress.finished[offset] = done
    if entry is None:
        return
    before, stint, attempt = entry
    lane = progress.lanes.setdefault(before.key, before)
    if lane is not before:
        _merge(lane, before)
    at = bisect_left(lane.offsets, offset)
    if lane.offsets[at : at + 1] != [offset]:
        lane.offsets.insert(at, offset)
    progress.started[offset] = (lane, stint, attempt)


def _merge(lane: CheckedLane, before: CheckedLane) -> None:
    """The lane was forgotten because nothing was open, and a new one of its key has begun since."""
    lane.high = max(lane.high, before.high)
    for sink, effect in before.effects.items():
        lane.effects[sink] = max(effect, lane.effects.get(sink, effect))


def _lost_by_clean_stop(progress: GroupProgress, event: Recovered) -> Violation:
    return violation(
        "D3", event, f"the broker came back with offset {event.offset}, but {progress.committed} had been accepted"
    )


def _too_old(before: int, event: Recovered, age: int) -> Violation:
    how_old = f"{age / 1e6:.0f} ms before the crash" if age < event.alive else "long before the crash"
    return violation(
        "D3",
        event,
        f"the broker came back with offset {event.offset} after a crash, but {before} had been committed, "
        f"and what passed {max(event.offset, 0)} was accepted {how_old}",
    )


class EffectRules:
    """Rules about effects. A sink records what it stored; a repeat that it ignored is not recorded."""

    def __init__(self, state: CheckerState) -> None:
        self._state = state

    def effect(self, event: Effect) -> Violation | None:
        progress = self._state.effects_of(event)
        progress.account.effects += 1
        asked = event.asked or event.t
        stale = _stale_effect(progress, event, asked)
        if stale is not None:
            return stale
        lane = progress.lanes.get(event.key)
        skipped = lane is not None and event.offset in lane.running_at_reset
        if event.offset < progress.committed and event.offset not in progress.parked and not skipped:
            if asked <= progress.committed_t:
                return None
            return violation(
                "P1",
                event,
                f"{event.sink} stored the effect of offset {event.offset} after it was committed past",
            )
        effects = progress.lane(event.key).effects
        offset, t = effects.get(event.sink, (-1, 0))
        if event.offset > offset:
            effects[event.sink] = (event.offset, event.t)
        if event.offset == offset:
            return violation("P1", event, f"{event.sink} stored the effect of offset {offset} twice")
        if event.offset < offset and asked > t:
            return violation(
                "P1",
                event,
                f"{event.sink} stored the effect of offset {event.offset} after that of offset {offset} "
                f"of the same key",
            )
        return None


def _stale_effect(progress: GroupProgress, event: Effect, asked: int) -> Violation | None:
    """An effect of an epoch that the sink must refuse, whatever its key: it has stored a newer one of the queue."""
    newest, t = progress.sink_epochs.get(event.sink, (0, 0))
    if event.epoch > newest:
        progress.sink_epochs[event.sink] = event.epoch, event.t
    elif event.epoch and event.epoch < newest and asked > t:
        text = f"{event.sink} stored an effect of epoch {event.epoch} after one of epoch {newest}"
        return violation("P2", event, text)
    return None
