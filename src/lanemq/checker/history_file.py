"""One file of a history: who wrote it, and whether anything is missing.

A history with a hole cannot be judged. Every defect (a gap in `n`, a line that does not parse, time going back)
becomes a problem, and a problem makes the verdict unknown.

A file is judged alone: neither its problems nor the names of its processes depend on how far other files have been
read, so that files can be read in any order, or on several machines.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lanemq.checker.events import NOBODY, Begin, Event, Process
from lanemq.checker.json_lines import JsonLines
from lanemq.checker.parquet_rows import ParquetRows

MOST_PROBLEMS = 20
PARQUET = ".parquet"


class HistoryFile:
    """One pass over file `number`; `problems` and `processes` are complete when `blocks()` is exhausted."""

    def __init__(self, path: Path, number: int = 0, claims: Mapping[str, int] | None = None) -> None:
        self.path = path
        self.problems: list[str] = []
        self.processes: list[Process] = []
        """Every life found in the file, in order."""
        self._number = number
        self._claims = claims if claims is not None else {}
        self._lives: dict[str, int] = {}
        self._process = NOBODY
        self._next_n = 0
        self._last_t = 0

    def blocks(self) -> Iterator[list[Event]]:
        """Lists of events; each list, and one list after the other, is in time order."""
        source = ParquetRows if self.path.suffix == PARQUET else JsonLines
        for events in source(self.path, self._problem).blocks():
            yield self._check(events)

    def _problem(self, text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)

    def _new_life(self, begin: Begin) -> Process:
        """A second life under the same name is another process, and so is a namesake in another file."""
        lives = self._lives[begin.name] = self._lives.get(begin.name, 0) + 1
        own = self._claims.get(begin.name, self._number) == self._number
        name = begin.name if own else f"{begin.name}@{self._number + 1}"
        process = Process(name if lives == 1 else f"{name}#{lives}", begin.role)
        self.processes.append(process)
        return process

    def _check(self, events: Sequence[Event]) -> list[Event]:
        """Numbers without a gap, time that never goes back, and the process written onto each event."""
        process, next_n, last_t = self._process, self._next_n, self._last_t
        for event in events:
            if isinstance(event, Begin):
                process = self._new_life(event)
                next_n = event.n
            if event.n != next_n or event.t < last_t:
                self._report(event, next_n, last_t)
                event.t = max(event.t, last_t)
            event.process = process
            next_n = event.n + 1
            last_t = event.t
        if process is NOBODY and events:
            self._problem(f"{self.path.name}: the first line is not a begin line; who wrote this?")
        self._process, self._next_n, self._last_t = process, next_n, last_t
        return list(events)

    def _report(self, event: Event, next_n: int, last_t: int) -> None:
        if event.n != next_n:
            self._problem(f"{self.path.name}: history lost: n={next_n} expected, n={event.n} found")
        if event.t < last_t:
            self._problem(f"{self.path.name}: time went back by {last_t - event.t} ns at n={event.n}")


def claim_names(files: Sequence[Path]) -> dict[str, int]:
    """Which file a name belongs to: the first one that begins with it. Others that use it get their number added."""
    claims: dict[str, int] = {}
    for number, path in enumerate(files):
        file = HistoryFile(path)
        next(file.blocks(), None)
        if file.processes:
            claims.setdefault(file.processes[0].name, number)
    return claims
