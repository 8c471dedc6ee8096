"""Did each result reach its sink once, in order, and never from a stale owner? (P1, P2)"""

from lanemq.checker.events import Effect
from lanemq.checker.state import State
from lanemq.checker.verdict import Violation, violation


class Effects:
    """An effect line says that the sink took it. A sink that saw a repeat and did nothing writes none."""

    def __init__(self, state: State) -> None:
        self._state = state

    def effect(self, event: Effect) -> Violation | None:
        held = self._state.group_queue(event.group, event.topic, event.queue)
        asked = event.asked or event.t
        if event.offset < held.low and event.offset not in held.parked:
            if asked <= held.low_t:
                return None
            return violation(
                "P1",
                event,
                f"{event.sink} took the effect of offset {event.offset} after it was committed past",
            )
        effects = held.lane(event.key).effects
        offset, epoch, t = effects.get(event.sink, (-1, 0, 0))
        if event.offset > offset:
            effects[event.sink] = (event.offset, max(epoch, event.epoch), event.t)
        if event.epoch and event.epoch < epoch and asked > t:
            return violation(
                "P2", event, f"{event.sink} took an effect of epoch {event.epoch} after one of epoch {epoch}"
            )
        if event.offset == offset:
            return violation("P1", event, f"{event.sink} took the effect of offset {offset} twice")
        if event.offset < offset:
            return violation(
                "P1",
                event,
                f"{event.sink} took the effect of offset {event.offset} after that of offset {offset} of the same key",
            )
        return None
