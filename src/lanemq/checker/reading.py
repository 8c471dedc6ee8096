"""From files to one stream in time order.

All processes of a machine share its monotonic clock, so their lines are merged by `t`. Files are read in
blocks and merged block by block: memory does not grow with the length of a history.

A history with a hole cannot be judged. Every defect (a gap in `n`, a line that does not parse, time going
back) becomes a problem, and a problem makes the verdict unknown. Only the last line of a file may be torn:
that is how a killed process looks.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from lanemq.checker.events import NOBODY, AnyEvent, Begin, Event, Process

BLOCK_BYTES = 256 * 1024
MOST_PROBLEMS = 20

_DECODER = msgspec.json.Decoder(AnyEvent)
_TIME = attrgetter("t")


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The history files under the given files and folders, in a stable order."""
    files: list[Path] = []
    for path in paths:
        files.extend(sorted(path.rglob("*.jsonl")) if path.is_dir() else [path])
    return files


class Reading:
    """One pass over the files. `problems` is complete when `batches()` is exhausted."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.problems: list[str] = []
        self.processes: dict[str, int] = {}
        self._files = files

    def batches(self) -> Iterator[list[Event]]:
        """Lists of events; each list, and one list after the other, is in time order."""
        readers = [_FileReader(path, self) for path in self._files]
        try:
            while True:
                waiting = [reader for reader in readers if reader.ready()]
                if not waiting:
                    return
                horizon = min(reader.known_until() for reader in waiting)
                batch: list[Event] = []
                for reader in waiting:
                    batch += reader.take(horizon)
                batch.sort(key=_TIME)
                yield batch
        finally:
            for reader in readers:
                reader.close()

    def problem(self, text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(text)

    def new_life(self, begin: Begin) -> Process:
        """The process behind a begin line; a second life under the same name is another process."""
        lives = self.processes[begin.name] = self.processes.get(begin.name, 0) + 1
        return Process(begin.name if lives == 1 else f"{begin.name}#{lives}", begin.role)


class _FileReader:
    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._reading = reading
        self._file: BinaryIO | None = cast(BinaryIO, path.open("rb"))
        self._tail = b""
        self._process = NOBODY
        self._next_n = 0
        self._last_t = 0
        self._buffer: list[Event] = []

    def ready(self) -> bool:
        """Whether there is an event to take; reads on when there is none."""
        while not self._buffer and self._file is not None:
            self._read_block(self._file)
        return bool(self._buffer)

    def known_until(self) -> float:
        """Nothing that is still unread is earlier than this."""
        return math.inf if self._file is None else self._buffer[-1].t

    def take(self, horizon: float) -> list[Event]:
        end = bisect_right(self._buffer, horizon, key=_TIME)
        taken = self._buffer[:end]
        del self._buffer[:end]
        return taken

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_block(self, file: BinaryIO) -> None:
        data = file.read(BLOCK_BYTES)
        if not data:
            self.close()
            self._drop_torn_line()
            return
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._tail += data
            return
        lines, self._tail = self._tail + whole, rest
        if self._process is NOBODY and not _is_event(lines.lstrip().partition(b"\n")[0]):
            self._refuse()
            return
        self._buffer = self._check(self._decode(lines))

    def _refuse(self) -> None:
        """One problem for the whole file: a complaint for each line would say less."""
        self._tail = b""
        self.close()
        self._reading.problem(f"{self._path.name} is not a history: its first line is no event; give what was recorded")

    def _drop_torn_line(self) -> None:
        """A line without its end at the end of a file was being written when the process died."""
        if self._process is NOBODY and self._tail and not self._tail.lstrip().startswith(b"{"):
            self._refuse()
        if self._tail:
            try:
                self._buffer = self._check([_DECODER.decode(self._tail)])
            except msgspec.DecodeError:
                self._tail = b""

    def _decode(self, lines: bytes) -> Sequence[Event]:
        try:
            return _DECODER.decode_lines(lines)
        except msgspec.DecodeError:
            return [event for line in lines.split(b"\n") if (event := self._decode_one(line)) is not None]

    def _decode_one(self, line: bytes) -> Event | None:
        try:
            return _DECODER.decode(line) if line.strip() else None
        except msgspec.DecodeError as error:
            self._reading.problem(
                f"{self._path.name}: cannot read the line after n={self._next_n - 1}: {error}: {line[:120]!r}"
            )
            return None

    def _check(self, events: Sequence[Event]) -> list[Event]:
        """Numbers without a gap, time that never goes back, and the process written onto each event."""
        process, next_n, last_t = self._process, self._next_n, self._last_t
        for event in events:
            if isinstance(event, Begin):
                process = self._reading.new_life(event)
                next_n = event.n
            if event.n != next_n or event.t < last_t:
                self._report(event, next_n, last_t)
                event.t = max(event.t, last_t)
            event.process = process
            next_n = event.n + 1
            last_t = event.t
        if process is NOBODY:
            self._reading.problem(f"{self._path.name}: the first line is not a begin line; who wrote this?")
        self._process, self._next_n, self._last_t = process, next_n, last_t
        return list(events)

    def _report(self, event: Event, next_n: int, last_t: int) -> None:
        if event.n != next_n:
            self._reading.problem(f"{self._path.name}: history lost: n={next_n} expected, n={event.n} found")
        if event.t < last_t:
            self._reading.problem(f"{self._path.name}: time went back by {last_t - event.t} ns at n={event.n}")


def _is_event(line: bytes) -> bool:
    try:
        _DECODER.decode(line)
    except msgspec.DecodeError:
        return False
    return True
