"""From files to one stream in time order.

All processes of a machine share its monotonic clock, so their lines are merged by `t`; lines of one moment come in
the order of the files. Files are read in blocks and merged block by block: memory does not grow with the length of
a history. The order never depends on where a block ends, so a reader of another kind can produce the same one.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from lanemq.checker.events import Event
from lanemq.checker.history_file import MOST_PROBLEMS, PARQUET, HistoryFile, claim_names

_TIME = attrgetter("t")


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The history files under the given files and folders, in a stable order.

    A folder called `x.parquet` is one history in parts. Beside `x.jsonl` it is that file once more, and left out.
    """
    files: list[Path] = []
    for path in paths:
        files.extend(_under(path) if path.is_dir() and path.suffix != PARQUET else [path])
    return files


def _under(folder: Path) -> list[Path]:
    lines = list(folder.rglob("*.jsonl"))
    converted = {path.with_suffix(PARQUET) for path in lines}
    columns = [path for path in folder.rglob(f"*{PARQUET}") if path.parent.suffix != PARQUET and path not in converted]
    return sorted(lines + columns)


class Reading:
    """One pass over the files. `problems` is complete when `batches()` is exhausted."""

    def __init__(self, files: Sequence[Path]) -> None:
        claims = claim_names(files)
        self._files = [HistoryFile(path, number, claims) for number, path in enumerate(files)]

    @property
    def problems(self) -> list[str]:
        return first_problems(file.problems for file in self._files)

    def batches(self) -> Iterator[list[Event]]:
        """Lists of events; each list, and one list after the other, is in time order."""
        streams = [_Stream(file) for file in self._files]
        while True:
            waiting = [stream for stream in streams if stream.ready()]
            if not waiting:
                return
            horizon = min(stream.known_until() for stream in waiting)
            batch: list[Event] = []
            for stream in waiting:
                batch += stream.take(horizon)
            if batch:
                batch.sort(key=_TIME)
                yield batch
            else:
                for stream in waiting:
                    stream.read_beyond(horizon)


def first_problems(by_file: Iterable[Sequence[str]]) -> list[str]:
    """The first few, file by file."""
    return [problem for problems in by_file for problem in problems][:MOST_PROBLEMS]


class _Stream:
    """A file that is read only as far as the merge needs."""

    def __init__(self, file: HistoryFile) -> None:
        self._blocks: Iterator[list[Event]] | None = file.blocks()
        self._buffer: list[Event] = []

    def ready(self) -> bool:
        """Whether there is an event to take; reads on when there is none."""
        while not self._buffer and self._blocks is not None:
            self._read()
        return bool(self._buffer)

    def known_until(self) -> float:
        """Nothing that is still unread is earlier than this."""
        return math.inf if self._blocks is None else self._buffer[-1].t

    def take(self, horizon: float) -> list[Event]:
        """What is earlier than `horizon`; of that moment itself more may follow in another file."""
        end = bisect_left(self._buffer, horizon, key=_TIME)
        taken = self._buffer[:end]
        del self._buffer[:end]
        return taken

    def read_beyond(self, horizon: float) -> None:
        if self.known_until() <= horizon:
            self._read()

    def _read(self) -> None:
        assert self._blocks is not None
        block = next(self._blocks, None)
        if block is None:
            self._blocks = None
        else:
            self._buffer += block
