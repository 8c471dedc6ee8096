"""Does every queue have one owner at a time, and does a stale owner stop? (C1, C2, C5)

A broker's lines about leases are exact. A member writes its lines after the answer came, and may have been paused in
between. So between two members a violation needs one that asked after the other already owned the queue.
"""

from lanemq.checker.events import (
    LeaseEvent,
    LeaseGranted,
    LeaseReleased,
    LeaseRenewed,
    Outcome,
    Role,
    TagsFiltered,
    TagsSubscribed,
    Turn,
    TurnEnd,
)
from lanemq.checker.state import CheckerState, GroupProgress, Selection, SuspectTurn
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

    def subscribed(self, event: TagsSubscribed) -> None:
        """Members with fewer tags may not skip what these select (`committing`)."""
        tags = frozenset[str]() if event.tags == "*" else frozenset(event.tags.split("||"))
        progress = self._state.effects_of(event)
        if event.lost and progress.selection is not None:
            progress.given_up = progress.selection._replace(lost=event.lost, end=event.t)
        progress.selection = Selection(tags, event.t, event.process) if event.tags else None

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

    def released(self, event: LeaseReleased) -> Violation | None:
        """The member gave the lease back: the next grant need not wait."""
        progress = self._state.progress(event)
        if event.epoch != progress.epoch or event.member != progress.owner:
            return None
        if event.process.role is Role.BROKER:
            progress.broker_until = 0
            recorded = 0 < event.epoch == progress.granted_by_member
            return _release_not_recorded(event) if recorded and progress.ended_by_member != event.epoch else None
        self.expired(event)
        return _released_while_running(progress, event)

    def expired(self, event: LeaseEvent) -> None:
        """The lease ended: the next grant need not wait.

        A member's line does not speak for the broker, which may not have received its request.
        """
        progress = self._state.progress(event)
        if event.epoch == progress.epoch and event.member == progress.owner:
            if event.process.role is Role.BROKER:
                progress.broker_until = 0
            else:
                progress.ended_by_member, progress.member_until = event.epoch, 0
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
        breach = None
        if progress.owner and progress.owner != event.member:
            self._state.count("rebalance")
            until = progress.broker_until if progress.leases_by_broker else progress.member_until
            if event.t + self._slack < until:
                breach = violation(
                    "C1",
                    event,
                    f"{event.member} got the queue {_millis(until - event.t)} before "
                    f"the lease of {progress.owner} (epoch {progress.epoch}) ended",
                )
        if not progress.is_recorded(progress.epoch) and not self._state.records(progress.owner):
            progress.unrecorded_owner_ends()
        progress.redriven_unseen.clear()
        if 0 < progress.epoch < event.epoch - 1 and not progress.leases_by_broker:
            # An epoch in between that no process recorded: its owner may have finished and committed anything.
            progress.had_unrecorded_owner(progress.committed, event.asked or event.t)
        progress.epoch, progress.owner, progress.granted_t = event.epoch, event.member, event.t
        progress.broker_until = progress.member_until = 0
        progress.filter_ends()
        progress.tenure += 1
        _note_until(progress, event)
        return breach


def _released_while_running(progress: GroupProgress, event: LeaseReleased) -> Violation | None:
    """A member releases a lease when the turns that it started under it have ended."""
    for lane in progress.lanes.values():
        if lane.running is event.process:
            offset = lane.running_offset
            entry = progress.started.get(offset)
            if entry is not None and entry[1].epoch == event.epoch and entry[1].process is event.process:
                text = f"{event.member} released the queue while offset {offset} of key {lane.key!r} still ran"
                return violation("C1", event, text)
    return None


def _release_not_recorded(event: LeaseReleased) -> Violation:
    """A member records a release before it asks the broker for it."""
    return violation(
        "C1",
        event,
        f"the broker ended epoch {event.epoch} at the request of {event.member}, which recorded that it got this "
        f"lease, but not that it gave it back",
    )


def _note_writer(progress: GroupProgress, event: LeaseGranted | LeaseRenewed) -> None:
    if event.process.role is Role.BROKER:
        progress.leases_by_broker = True
    else:
        progress.recorded_epoch = max(progress.recorded_epoch, event.epoch)
        progress.granted_by_member = max(progress.granted_by_member, event.epoch)


def _note_until(progress: GroupProgress, event: LeaseGranted | LeaseRenewed) -> None:
    if not event.until or event.epoch != progress.epoch:
        return
    if event.process.role is not Role.BROKER:
        # A broker with epochs gives the queue to no other before the member stops using it.
        progress.member_until = event.until if event.epoch and progress.ended_by_member != event.epoch else 0
        return
    if event.until < progress.broker_until:
        progress.shortened_epoch = event.epoch
    progress.broker_until = event.until


def _millis(nanos: int) -> str:
    return f"{nanos / 1e6:.3f} ms"
