"""One file of the commit log, and how it is named.

A segment is named by the log position of its first byte, as 20 digits, so that sorting names sorts positions
and a missing file is visible as a hole between two others. A record lies in one segment, never in two.
"""

from dataclasses import dataclass
from pathlib import Path

_DIGITS = 20
_SUFFIX = ".log"


@dataclass(slots=True, eq=False)
class Segment:
    """`size` counts the bytes that are written and whole; only the log thread moves it."""

    start: int
    path: Path
    fd: int
    size: int

    @property
    def end(self) -> int:
        """The position after the last byte; where the next segment starts."""
        return self.start + self.size


def segment_name(start: int) -> str:
    """The file name of the segment that begins at this position."""
    return f"{start:0{_DIGITS}d}{_SUFFIX}"


def segment_start(name: str) -> int | None:
    """The position in a segment's file name, or None for a file that is no segment."""
    digits = name.removesuffix(_SUFFIX)
    if len(name) != _DIGITS + len(_SUFFIX) or not digits.isdigit() or digits == name:
        return None
    return int(digits)
