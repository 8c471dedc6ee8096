"""Long work as a generator that yields after each step of bounded length and returns a result.

On an event loop such work is done in slices (`net/serving/loop_slices`), so that others are served between two steps.
"""

from collections.abc import Generator
from typing import TypeVar

R = TypeVar("R")


def in_one_piece(steps: Generator[None, None, R]) -> R:
    """Take all steps at once, where nothing else waits; returns the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result
