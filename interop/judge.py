"""Checks over turns: order, overlap, completeness. They do not depend on the client."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from interop.clients import Turn

CLOCK_SLACK_US = 1_000
"""Two processes on one machine read the same clock; reading it and calling the handler is not one step."""


def bodies(turns: Iterable[Turn]) -> list[str]:
    return [seen.body for turn in turns for seen in turn.messages]


def done(turns: Iterable[Turn]) -> list[Turn]:
    """Turns that succeeded; messages of suspended and running turns are delivered again."""
    return [turn for turn in turns if turn.verdict in ("success", "commit")]


def by_key(texts: Iterable[str]) -> dict[str, list[str]]:
    """The numbers of each key; bodies look like `key:number`."""
    keys: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        keys[text.split(":")[0]].append(text)
    return dict(keys)


def queues(turns: Iterable[Turn]) -> set[int]:
    return {turn.queue for turn in turns}


def overlaps(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Pairs of turns of one queue that ran at the same time; a turn without an end still runs."""
    found = []
    lines: dict[tuple[str, int], list[Turn]] = defaultdict(list)
    for turn in sorted(turns, key=lambda turn: turn.started_us):
        lines[(turn.messages[0].topic, turn.queue)].append(turn)
    for line in lines.values():
        longest = line[0]
        for turn in line[1:]:
            if longest.ended_us is None or longest.ended_us > turn.started_us + CLOCK_SLACK_US:
                found.append((longest, turn))
            if _end(turn) > _end(longest):
                longest = turn
    return found


def _end(turn: Turn) -> float:
    return math.inf if turn.ended_us is None else turn.ended_us


def in_order_with_repeats(texts: Sequence[str], expected: Sequence[str]) -> bool:
    """Whether every text was delivered, the first time only after all before it: repeats rewind, nothing is skipped."""
    reached = 0
    for text in texts:
        if reached < len(expected) and text == expected[reached]:
            reached += 1
        elif text not in expected[:reached]:
            return False
    return reached == len(expected)
