"""Does every queue have one owner at a time, and does a stale owner stop? (C1, C2, C5)

A broker's lines about leases are exact. A member writes its lines after the answer came, and may have been paused in
between. So between two members a violation needs one that asked after the other already owned the queue.
"""

from lanemq.checker.events import LeaseEvent, LeaseGranted, LeaseRenewed, Outcome, Role, TagsFiltered, Turn, TurnEnd
from lanemq.checker.state import CheckerState, GroupProgress, SuspectTurn
from lanemq.checker.verdict import Violation, violation


class OwnershipRules:
    """Rules about leases. Events of two processes less than `slack` apart count as simultaneous."""

    def __init__(self, state: CheckerState, *, slack: int) -> None:
        self._state = state
        self._slack = slack
        self._stale: dict[tuple[str, str, str, str, int, int], str] = {}

    def granted(self, event: LeaseGranted) -> Violation | None:
        """Four cases: the same grant again, a reused epoch, an older grant (perhaps reported late), a new owner."""
        progress = self._state.progress(event)
        _note_writer(progress, event)
        if event.epoch and event.epoch == progress.epoch:
            if progress.owner != event.member:
                return violation(
                    "C2", event, f"epoch {event.epoch} was given to {progress.owner} and again to {event.member}"
                )
            _note_until(progress, event)
            return None
        if event.epoch and event.epoch < progress.epoch:
            return self._older(progress, event)
        return self._new_owner(progress, event)

    def filtered(self, event: TagsFiltered) -> None:
        """The member left out a message on purpose if its tag is not among these."""
        self._state.progress(event).tags = frozenset(event.tags.split("||"))

    def renewed(self, event: LeaseRenewed) -> Violation | None:
        progress = self._state.progress(event)
        _note_writer(progress, event)
        if event.epoch and event.epoch < progress.epoch and (event.asked or event.t) > progress.granted_t + self._slack:
            return violation(
                "C1",
                event,
                f"{event.member} renewed epoch {event.epoch} although {progress.owner} owns the queue "
                f"with epoch {progress.epoch}",
            )
        _note_until(progress, event)
        return None

    def ended(self, event: LeaseEvent) -> None:
        """The lease was released or expired: the next grant need not wait."""
        progress = self._state.progress(event)
        if event.epoch == progress.epoch and event.member == progress.owner:
            progress.broker_until = 0
            if event.process.role is not Role.BROKER:
                # If its request is lost, the broker gives it the same lease again, and it starts over.
                progress.tenure += 1

    def stale(self, event: Turn, progress: GroupProgress) -> bool:
        """Whether the member had lost the queue when this turn started.

        A member may be paused between its last check of the lease and the call. So the turn is judged when it ends: it
        is a violation unless its result is thrown away. A turn that starts after the member's own lease ended, while
        no other member was granted the queue, harms nothing and is an ordinary turn.
        """
        reason = self._stale_reason(event, progress)
        if reason is None:
            return False
        self._stale[(event.process.name, event.group, event.topic, event.broker, event.queue, event.offset)] = reason
        self._state.count("zombie_turns")
        return True

    def stale_end(self, event: TurnEnd) -> tuple[bool, Violation | None]:
        """Whether the end belongs to a stale turn, and the violation if there is one."""
        if not self._stale:
            return False, None
        reason = self._stale.pop(
            (event.process.name, event.group, event.topic, event.broker, event.queue, event.offset), None
        )
        if reason is None:
            return False, None
        if event.outcome is Outcome.ABANDONED:
            return True, None
        text = f"{event.process.name} ended a turn as {event.outcome}, but when it started {reason}"
        progress = self._state.progress(event)
        if event.outcome is Outcome.LATE:
            self._state.count("late_turns")
            progress.suspect(event.epoch, SuspectTurn(event.offset, event.t, "C5", text))
            return True, None
        return True, violation("C5", event, text)

    def _stale_reason(self, event: Turn, progress: GroupProgress) -> str | None:
        epoch = event.epoch
        if not epoch:
            return None
        if epoch < progress.epoch and event.t > progress.granted_t + self._slack:
            return f"{progress.owner} already owned the queue with epoch {progress.epoch}"
        if epoch < progress.turn_epoch:
            return f"epoch {progress.turn_epoch} was already at work"
        return None

    def _older(self, progress: GroupProgress, event: LeaseGranted) -> Violation | None:
        if (event.asked or event.t) <= progress.granted_t:
            return None
        return violation(
            "C2",
            event,
            f"epoch {event.epoch} was given to {event.member} after epoch {progress.epoch} "
            f"was given to {progress.owner}",
        )

    def _new_owner(self, progress: GroupProgress, event: LeaseGranted) -> Violation | None:
        found = None
        if progress.owner and progress.owner != event.member:
            self._state.count("rebalance")
            if event.t + self._slack < progress.broker_until:
                found = violation(
                    "C1",
                    event,
                    f"{event.member} got the queue {_millis(progress.broker_until - event.t)} before "
                    f"the lease of {progress.owner} (epoch {progress.epoch}) ended",
                )
        if progress.redriven_unseen:
            progress.owner_ends()
        if 0 < progress.epoch < event.epoch - 1 and not progress.leases_by_broker:
            # An epoch in between that no process recorded: its owner may have finished and committed anything.
            progress.had_unrecorded_owner(progress.committed, event.asked or event.t)
        progress.epoch, progress.owner, progress.granted_t = event.epoch, event.member, event.t
        progress.broker_until = 0
        progress.tags = None
        progress.tenure += 1
        _note_until(progress, event)
        return found


def _note_writer(progress: GroupProgress, event: LeaseGranted | LeaseRenewed) -> None:
    if event.process.role is Role.BROKER:
        progress.leases_by_broker = True
    elif event.epoch > progress.recorded_epoch:
        progress.recorded_epoch = event.epoch


def _note_until(progress: GroupProgress, event: LeaseGranted | LeaseRenewed) -> None:
    if event.until and event.process.role is Role.BROKER and event.epoch == progress.epoch:
        if event.until < progress.broker_until:
            progress.shortened_epoch = event.epoch
        progress.broker_until = event.until


def _millis(nanos: int) -> str:
    return f"{nanos / 1e6:.3f} ms"
