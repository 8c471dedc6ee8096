"""What is asked of a run directly, beside the checker, while it happens."""

from collections.abc import Callable
from typing import Any

_Turn = tuple[str, str, int, int]
"""Group, topic, queue and epoch."""


class Watch:
    """Hears every line of every history. `problem` is told what must not be.

    Guards three rules that histories alone do not show. No turn starts under a lease whose successor was granted, not
    even a moment later: the checker must leave room for a pause between the last look at the lease and the call, and
    here there is none. A queue is given away after its handlers have ended: the
    checker takes a turn that ends too late for a zombie, since it cannot know that its member had a choice. And what
    an owner has told the broker to be finished is not run by the next one: the checker would call it a redelivery.
    """

    def __init__(self, problem: Callable[[str], None], is_finished: Callable[[str, str, int, int, int], bool]) -> None:
        """`is_finished`: whether the broker knows that of group, topic, queue, epoch and offset."""
        self._problem = problem
        self._is_finished = is_finished
        self._parked: set[tuple[str, str, int, int]] = set()
        self._running: dict[tuple[str, _Turn], int] = {}
        self._granted: dict[tuple[str, str, int], int] = {}

    def hear(self, process: str, event: str, line: dict[str, Any]) -> None:
        if event in ("lease_granted", "turn", "topic_deleted"):
            self._look_at_owner(process, event, line)
        if event in ("parked", "turn"):
            self._look(process, event, (line["group"], line["topic"], line["queue"], line["offset"]), line)
        if event not in ("turn", "turn_end", "lease_released"):
            return
        spot = process, (line["group"], line["topic"], line["queue"], line["epoch"])
        if event == "lease_released":
            if self._running.get(spot):
                self._problem(f"{process} gave queue {line['topic']}/{line['queue']} away while a handler was running")
        else:
            self._running[spot] = self._running.get(spot, 0) + (1 if event == "turn" else -1)

    def _look(self, process: str, event: str, place: tuple[str, str, int, int], line: dict[str, Any]) -> None:
        """Parked messages count as settled, and run when they are redriven."""
        if event == "parked":
            self._parked.add(place)
        elif place not in self._parked and self._is_finished(*place[:3], line["epoch"], place[3]):
            self._problem(f"{process} ran {place[1]}/{place[2]} offset {place[3]} again, known to be finished")

    def _look_at_owner(self, process: str, event: str, line: dict[str, Any]) -> None:
        """A deleted topic's owners are told with their next renewal; nobody else gets what they still have."""
        if event == "topic_deleted":
            self._granted = {place: epoch for place, epoch in self._granted.items() if place[1] != line["topic"]}
            return
        place, epoch = (line["group"], line["topic"], line["queue"]), line["epoch"]
        newest = self._granted.get(place, 0)
        if event == "lease_granted":
            self._granted[place] = max(newest, epoch)
        elif 0 < epoch < newest:
            self._problem(f"{process} started {place[1]}/{place[2]} with epoch {epoch}, and {newest} was granted")
