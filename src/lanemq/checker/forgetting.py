"""What a crash of the broker may take back, and what it may not. (D3)

A broker answers a commit before the offset is on disk, and writes offsets out every moment. So a crash may cost the
commits of its last moments: what they had passed is delivered again. Nothing older, and nothing at all after a stop
in order. Whoever judges must therefore be able to go back to what was known before a young commit; older ones are
final, so memory follows the commits of a moment.
"""

from bisect import bisect_left

from lanemq.checker.events import Recovered
from lanemq.checker.state import GroupQueue, Lane, Passed, State, Step
from lanemq.checker.verdict import Violation, violation


class Forgetting:
    """`promise`: nanoseconds of commits that a crash may cost."""

    def __init__(self, state: State, *, promise: int) -> None:
        self._state = state
        self._promise = promise

    def stepped(self, held: GroupQueue, step: Step, asked: int) -> None:
        """A commit was accepted, or a reset. Those that are older than the promise by now cannot be taken back."""
        steps = held.steps
        while steps and steps[0].t < asked - self._promise:
            steps.popleft()
        steps.append(step)

    def recovered(self, event: Recovered) -> Violation | None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        held.tenure += 1
        self._state.restarts.add((event.process.name, event.alive))
        if event.clean:
            return None if event.offset >= held.low else _lost_in_order(held, event)
        held.reset_t = event.t
        if event.offset > held.low and held.steps and held.steps[-1].reset:
            held.low, held.low_t = event.offset, event.t  # the reset was not on disk, nor answered
        before, oldest = held.low, self._go_back(held, event)
        held.steps.clear()
        age = (event.alive or oldest) - oldest
        return None if age <= self._promise else _too_old(before, event, age)

    def _go_back(self, held: GroupQueue, event: Recovered) -> int:
        """To what was known when the restored offset was the committed one; when the oldest of those lost was new."""
        oldest = event.alive or event.t
        while held.low > event.offset and held.steps:
            step = held.steps.pop()
            oldest = step.t
            held.low = max(step.before, event.offset)
            self._state.count("forgotten_commits")
            for passed in step.passed:
                if passed.offset >= held.low:
                    _restore(held, passed)
        if held.low > event.offset:
            oldest, held.low = 0, event.offset  # what had passed it is older than everything that can be forgotten
        held.low_t = event.t
        held.holes = {offset for offset in held.holes if offset < held.low}
        return oldest


def _restore(held: GroupQueue, passed: Passed) -> None:
    offset, done, entry = passed
    if done is not None:
        held.finished[offset] = done
    if entry is None:
        return
    before, stint, attempt = entry
    lane = held.lanes.setdefault(before.key, before)
    if lane is not before:
        _join(lane, before)
    at = bisect_left(lane.offsets, offset)
    if lane.offsets[at : at + 1] != [offset]:
        lane.offsets.insert(at, offset)
    held.started[offset] = (lane, stint, attempt)


def _join(lane: Lane, before: Lane) -> None:
    """The lane had nothing open and was forgotten; another one of its key has begun since."""
    lane.high = max(lane.high, before.high)
    for sink, effect in before.effects.items():
        lane.effects[sink] = max(effect, lane.effects.get(sink, effect))


def _lost_in_order(held: GroupQueue, event: Recovered) -> Violation:
    return violation("D3", event, f"the broker came back with offset {event.offset}, but {held.low} had been accepted")


def _too_old(before: int, event: Recovered, age: int) -> Violation:
    how_old = f"{age / 1e6:.0f} ms before the crash" if age < event.alive else "long before the crash"
    return violation(
        "D3",
        event,
        f"the broker came back with offset {event.offset} after a crash, but {before} had been committed, "
        f"and what passed {max(event.offset, 0)} was accepted {how_old}",
    )
