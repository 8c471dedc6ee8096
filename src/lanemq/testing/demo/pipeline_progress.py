"""Adds up what the pipeline said about its batches: one JSON line each, among whatever else it printed."""

from collections import Counter
from pathlib import Path

import msgspec


class BatchLine(msgspec.Struct):
    """The part of a progress line that the summary shows."""

    batch: int
    counts: dict[str, int]
    repeated: bool


def totals(log: Path) -> Counter[str]:
    """The stage's counts over all batches, and `batches`."""
    found: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            said = msgspec.json.decode(line, type=BatchLine)
            found.update(batches=1, replayed=int(said.repeated), **said.counts)
    return found
