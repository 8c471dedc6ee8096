"""What is asked of a run directly, beside the checker, while it happens."""

from collections.abc import Callable
from typing import Any

_Turn = tuple[str, str, int, int]
"""Group, topic, queue and epoch."""


class Watch:
    """Hears every line of every history. `problem` is told what must not be.

    Guards one rule that histories alone do not show: a queue is given away after its handlers have ended. The
    checker takes a turn that ends too late for a zombie, since it cannot know that its member had a choice.
    """

    def __init__(self, problem: Callable[[str], None]) -> None:
        self._problem = problem
        self._running: dict[tuple[str, _Turn], int] = {}

    def hear(self, process: str, event: str, line: dict[str, Any]) -> None:
        if event not in ("turn", "turn_end", "lease_released"):
            return
        spot = process, (line["group"], line["topic"], line["queue"], line["epoch"])
        if event == "lease_released":
            if self._running.get(spot):
                self._problem(f"{process} gave queue {line['topic']}/{line['queue']} away while a handler was running")
        else:
            self._running[spot] = self._running.get(spot, 0) + (1 if event == "turn" else -1)
