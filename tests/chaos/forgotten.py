"""Commits that a kill of the broker took, and the judgement of a run without them.

Committed offsets are written out every 200 ms; what a crash takes is delivered again, and that is promised. A checker
that reads of such a commit would call the redelivery a violation. So the broker of a test says what it came back
with, the commits beyond that are taken out of the histories, and it is measured how old the oldest of them was.
"""

import json
from bisect import bisect_left
from pathlib import Path
from typing import Any, NamedTuple

from lanemq.broker.recording import Recording
from lanemq.clock import SystemClock

NAME = "came-back.jsonl"
Spot = tuple[str, str, int]
"""Group, topic and queue."""


def tell_what_came_back(folder: Path) -> None:
    """Inside the broker's process: after a crash, writes down the committed offsets it found, before it listens."""
    real = Recording.restarted

    def restarted(self: Recording, leases: Any, offsets: Any, *, clean: bool) -> None:
        rows = list(offsets)
        if not clean:
            found = [(row.group, row.topic, row.queue_id, row.offset) for row in rows]
            with (folder / NAME).open("a") as file:
                file.write(json.dumps({"t": SystemClock().now_ns(), "offsets": found}) + "\n")
        real(self, leases, rows, clean=clean)

    Recording.restarted = restarted  # type: ignore[method-assign]


class Return(NamedTuple):
    """A broker that came back after a crash."""

    killed_at: int
    at: int
    found: dict[Spot, int]


class Forgotten:
    """All crashes of a run, and what they took."""

    def __init__(self, folder: Path, kills: list[int]) -> None:
        path = folder / NAME
        lines = path.read_text().splitlines() if path.exists() else []
        self._returns = [_returned(json.loads(line), kills) for line in lines]
        self.commits = 0
        self.oldest_ms = 0.0
        """Between the oldest commit that a crash took and the crash."""

    def take_out(self, history: Path, into: Path) -> None:
        """Copies the histories without the commits that were taken back."""
        into.mkdir()
        for path in sorted(history.glob("*.jsonl")):
            self._copy(path, into / path.name)

    def _copy(self, source: Path, target: Path) -> None:
        gone = 0
        with source.open("rb") as lines, target.open("wb") as out:
            for line in lines:
                if line.startswith(b'{"e":"begin"'):
                    gone = 0
                elif line.startswith(b'{"e":"committed"') and self._is_taken_back(json.loads(line)):
                    gone += 1
                    continue
                if gone:
                    number = json.loads(line)["n"]
                    line = line.replace(b'"n":%d,' % number, b'"n":%d,' % (number - gone), 1)
                out.write(line)

    def _is_taken_back(self, event: dict[str, Any]) -> bool:
        asked, spot = event.get("asked") or event["t"], (event["group"], event["topic"], event["queue"])
        after = bisect_left([each.at for each in self._returns], asked)
        if after == len(self._returns):
            return False
        crash = self._returns[after]
        if event["offset"] <= crash.found.get(spot, 0):
            return False
        self.commits += 1
        self.oldest_ms = max(self.oldest_ms, (crash.killed_at - asked) / 1e6)
        return True


def _returned(line: dict[str, Any], kills: list[int]) -> Return:
    killed_at = max((kill for kill in kills if kill < line["t"]), default=0)
    return Return(killed_at, line["t"], {(group, topic, queue): at for group, topic, queue, at in line["offsets"]})
