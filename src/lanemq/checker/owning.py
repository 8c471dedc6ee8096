"""Does every queue have one owner at a time, and does a stale one stop? (C1, C2, C5)

A broker's lines about leases are exact. A member's lines are what the member believed, written after the
answer came; between two members only "it asked after the other one already had it" counts, so a member that
was paused between answer and line raises no false alarm.
"""

from lanemq.checker.events import LeaseEvent, LeaseGranted, LeaseRenewed, Outcome, Role, Turn, TurnEnd
from lanemq.checker.state import Doubt, GroupQueue, State
from lanemq.checker.verdict import Violation, violation

_KEPT_LEASES = 16


class Owning:
    """`slack` is how far two processes' lines may be apart and still count as one moment."""

    def __init__(self, state: State, *, slack: int) -> None:
        self._state = state
        self._slack = slack
        self._stale: dict[tuple[str, str, str, int, int], str] = {}

    def granted(self, event: LeaseGranted) -> Violation | None:
        """Four cases: told again, epoch reused, an older grant told late or given again, a new owner."""
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if event.epoch and event.epoch == held.epoch:
            if held.owner != event.member:
                return violation(
                    "C2", event, f"epoch {event.epoch} was given to {held.owner} and again to {event.member}"
                )
            _note_until(held, event)
            return None
        if event.epoch and event.epoch < held.epoch:
            _note_until(held, event)
            return self._older(held, event)
        return self._new_owner(held, event)

    def renewed(self, event: LeaseRenewed) -> Violation | None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if event.epoch and event.epoch < held.epoch and (event.asked or event.t) > held.granted_t + self._slack:
            return violation(
                "C1",
                event,
                f"{event.member} renewed epoch {event.epoch} although {held.owner} owns the queue "
                f"with epoch {held.epoch}",
            )
        _note_until(held, event)
        return None

    def ended(self, event: LeaseEvent) -> None:
        """Released or expired: the next grant needs no waiting."""
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if event.epoch == held.epoch and event.member == held.owner:
            held.broker_until = 0
            if event.process.role is not Role.BROKER:
                # Its request may get lost; then the broker gives it the same lease again, and it begins anew.
                held.tenure += 1

    def stale(self, event: Turn, held: GroupQueue) -> bool:
        """Whether this turn's member had lost the queue when it started.

        A pause between the last look at the lease and the call cannot be excluded, so the turn is judged when
        it ends: thrown away is right, anything else is a violation.
        """
        reason = self._stale_reason(event, held)
        if reason is None:
            return False
        self._stale[(event.process.name, event.group, event.topic, event.queue, event.offset)] = reason
        self._state.count("zombie_turns")
        return True

    def stale_end(self, event: TurnEnd) -> tuple[bool, Violation | None]:
        """Whether the end belongs to a stale turn, and what is wrong with it."""
        if not self._stale:
            return False, None
        reason = self._stale.pop((event.process.name, event.group, event.topic, event.queue, event.offset), None)
        if reason is None:
            return False, None
        if event.outcome is Outcome.ABANDONED:
            return True, None
        text = f"{event.process.name} ended a turn as {event.outcome}, but when it started {reason}"
        held = self._state.group_queue(event.group, event.topic, event.queue)
        if event.outcome is Outcome.LATE:
            self._state.count("late_turns")
            held.doubt(event.epoch, Doubt(event.offset, event.t, "C5", text))
            return True, None
        return True, violation("C5", event, text)

    def _stale_reason(self, event: Turn, held: GroupQueue) -> str | None:
        epoch = event.epoch
        if not epoch:
            return None
        if epoch < held.epoch and event.t > held.granted_t + self._slack:
            return f"{held.owner} already owned the queue with epoch {held.epoch}"
        if epoch < held.turn_epoch:
            return f"epoch {held.turn_epoch} was already at work"
        until = held.untils.get(epoch)
        if until and event.t > until + self._slack:
            return f"its own lease had ended {_millis(event.t - until)} before"
        return None

    def _older(self, held: GroupQueue, event: LeaseGranted) -> Violation | None:
        if (event.asked or event.t) <= held.granted_t:
            return None
        return violation(
            "C2",
            event,
            f"epoch {event.epoch} was given to {event.member} after epoch {held.epoch} was given to {held.owner}",
        )

    def _new_owner(self, held: GroupQueue, event: LeaseGranted) -> Violation | None:
        found = None
        if held.owner and held.owner != event.member:
            self._state.count("rebalance")
            if event.t + self._slack < held.broker_until:
                found = violation(
                    "C1",
                    event,
                    f"{event.member} got the queue {_millis(held.broker_until - event.t)} before "
                    f"the lease of {held.owner} (epoch {held.epoch}) ended",
                )
        held.epoch, held.owner, held.granted_t = event.epoch, event.member, event.t
        held.broker_until = 0
        held.tenure += 1
        _note_until(held, event)
        return found


def _note_until(held: GroupQueue, event: LeaseGranted | LeaseRenewed) -> None:
    if not event.until:
        return
    if event.process.role is Role.BROKER:
        if event.epoch == held.epoch:
            if event.until < held.broker_until:
                held.cut_epoch = event.epoch
            held.broker_until = event.until
        return
    held.untils[event.epoch] = event.until
    if len(held.untils) > _KEPT_LEASES:
        del held.untils[min(held.untils)]


def _millis(nanos: int) -> str:
    return f"{nanos / 1e6:.3f} ms"
