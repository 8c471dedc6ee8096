"""Reads history files into one stream of events in time order.

All processes of a machine share its monotonic clock, so events are merged by `t`; events with the same time come in the
order of the files. Files are read and merged block by block, so memory does not grow with the length of a history. The
order does not depend on where a block ends.

A history with a gap cannot be judged. Every defect (a gap in `n`, a line that cannot be parsed, time that goes back)
is a problem, and a problem makes the verdict unknown. Each file is checked alone: neither its problems nor the names of
its processes depend on how far other files have been read.
One problem concerns all files: their times are of several clocks (`clock_problems`).

The processes may still be writing. So of each file, as much is read as it had at one moment for all of them
(`sizes_at_once`): otherwise a file that is read later would show consequences whose causes were not read.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

from lanemq.checker.events import UNKNOWN_PROCESS, AnyEvent, Begin, HistoryEvent, Process

MAX_PROBLEMS = 20
"""Problems that are reported; one is enough for the verdict."""

MAX_COLLECTIONS = 1000
"""Attempts to get the sizes of all files at one moment. Fewer may fail while many processes write; more take longer."""

BLOCK_BYTES = 256 * 1024
"""What is read at once of a file. More takes memory, less is slower."""

OnProblem = Callable[[str], None]

_DECODER = msgspec.json.Decoder(AnyEvent)
_TIME = attrgetter("t")


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The history files under the given files and folders, in a stable order."""
    files: list[Path] = []
    for path in paths:
        files.extend(sorted(path.rglob("*.jsonl")) if path.is_dir() else [path])
    return files


class HistoryReader:
    """Reads the files once. `problems` is complete when `batches()` is exhausted."""

    def __init__(self, files: Sequence[Path]) -> None:
        sizes = sizes_at_once(files)
        claims = claim_names(files)
        self._files = [HistoryFile(path, number, claims, sizes[number]) for number, path in enumerate(files)]

    @property
    def problems(self) -> list[str]:
        clocks = clock_problems((file.path.name, file.machines) for file in self._files)
        return first_problems([clocks, *(file.problems for file in self._files)])

    @property
    def bytes_read(self) -> int:
        """How far the files have been read, of `bytes_of` all of them."""
        return sum(file.bytes_read for file in self._files)

    def batches(self) -> Iterator[list[HistoryEvent]]:
        """Lists of events, in time order within and between lists."""
        streams = [_Stream(file) for file in self._files]
        while True:
            waiting = [stream for stream in streams if stream.ready()]
            if not waiting:
                return
            horizon = min(stream.known_until() for stream in waiting)
            batch: list[HistoryEvent] = []
            for stream in waiting:
                batch += stream.take(horizon)
            if batch:
                batch.sort(key=_TIME)
                yield batch
            else:
                for stream in waiting:
                    stream.read_beyond(horizon)


def bytes_of(path: Path) -> int:
    """The size of a history."""
    return path.stat().st_size


def sizes_at_once(files: Sequence[Path], size_of: Callable[[Path], int] = bytes_of) -> list[int]:
    """The sizes that the files had at one moment, while processes append to them.

    Sizes are collected until no file has grown between two collections. Then all of them are of the moment between the
    two. If that never happens, the last collection is used, which takes microseconds.
    """
    sizes = [size_of(path) for path in files]
    for _ in range(MAX_COLLECTIONS):
        before, sizes = sizes, [size_of(path) for path in files]
        if sizes == before:
            break
    return sizes


def clock_problems(files: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """A sentence if files, given by name and machines, were recorded with more than one clock."""
    first: dict[str, str] = {}
    for name, machines in files:
        for machine in machines:
            first.setdefault(machine, name)
    if len(first) < 2:
        return []
    one, other, *_ = first.values()
    which = f"{one} and {other} were" if one != other else f"the runs in {one} were"
    return [
        f"{which} recorded on different machines, or before and after a restart of one, so their times cannot be "
        f"compared: check only files that one machine recorded since its last start"
    ]


def first_problems(by_file: Iterable[Sequence[str]]) -> list[str]:
    """The first few problems, file by file."""
    return [problem for problems in by_file for problem in problems][:MAX_PROBLEMS]


class _Stream:
    """A file that is read only as far as the merge needs it."""

    def __init__(self, file: "HistoryFile") -> None:
        self._blocks: Iterator[list[HistoryEvent]] | None = file.blocks()
        self._buffer: list[HistoryEvent] = []

    def ready(self) -> bool:
        """Whether there is an event to take; reads on if there is none."""
        while not self._buffer and self._blocks is not None:
            self._read()
        return bool(self._buffer)

    def known_until(self) -> float:
        """No unread event is earlier than this."""
        return math.inf if self._blocks is None else self._buffer[-1].t

    def take(self, horizon: float) -> list[HistoryEvent]:
        """The events before `horizon`; events at that time may follow in another file."""
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


class HistoryFile:
    """Reads file `number` once. `problems` and `processes` are complete when `blocks()` is exhausted."""

    def __init__(
        self, path: Path, number: int = 0, claims: Mapping[str, int] | None = None, size: int | None = None
    ) -> None:
        """`size`: how many bytes are read; None for all."""
        self.path = path
        self.problems: list[str] = []
        self.machines: list[str] = []
        """Every machine that its runs name, in order."""
        self.processes: list[Process] = []
        """Every run of a process found in the file, in order."""
        self.bytes_read = 0
        self._number = number
        self._size = size
        self._claims = claims if claims is not None else {}
        self._runs: dict[str, int] = {}
        self._process = UNKNOWN_PROCESS
        self._next_n = 0
        self._last_t = 0

    def blocks(self) -> Iterator[list[HistoryEvent]]:
        """Lists of events, in time order within and between lists."""
        reader = JsonLines(self.path, self._problem, self._size)
        for events in reader.blocks():
            self.bytes_read = reader.bytes_read
            yield self._check(events)
        self.bytes_read = reader.bytes_read

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def _new_run(self, begin: Begin) -> Process:
        """A second run under the same name is another process, and so is one of this name in another file."""
        runs = self._runs[begin.name] = self._runs.get(begin.name, 0) + 1
        own = self._claims.get(begin.name, self._number) == self._number
        name = begin.name if own else f"{begin.name}@{self._number + 1}"
        process = Process(name if runs == 1 else f"{name}#{runs}", begin.role)
        self.processes.append(process)
        if begin.machine and begin.machine not in self.machines:
            self.machines.append(begin.machine)
        return process

    def _check(self, events: Sequence[HistoryEvent]) -> list[HistoryEvent]:
        """Checks numbers and times, and sets the process of each event."""
        process, next_n, last_t = self._process, self._next_n, self._last_t
        for event in events:
            if isinstance(event, Begin):
                process = self._new_run(event)
                next_n = event.n
            if event.n != next_n or event.t < last_t:
                self._report(event, next_n, last_t)
                event.t = max(event.t, last_t)
            event.process = process
            next_n = event.n + 1
            last_t = event.t
        if process is UNKNOWN_PROCESS and events:
            self._problem(f"{self.path.name}: the first line is not a begin line")
        self._process, self._next_n, self._last_t = process, next_n, last_t
        return list(events)

    def _report(self, event: HistoryEvent, next_n: int, last_t: int) -> None:
        if event.n != next_n:
            self._problem(f"{self.path.name}: history lost: n={next_n} expected, n={event.n} found")
        if event.t < last_t:
            self._problem(f"{self.path.name}: time went back by {last_t - event.t} ns at n={event.n}")


def claim_names(files: Sequence[Path]) -> dict[str, int]:
    """The file that each process name belongs to: the first one that begins with it.

    Processes of the same name in other files get the number of their file appended.
    """
    claims: dict[str, int] = {}
    for number, path in enumerate(files):
        file = HistoryFile(path)
        next(file.blocks(), None)
        if file.processes:
            claims.setdefault(file.processes[0].name, number)
    return claims


class JsonLines:
    """Reads a JSONL file once, block by block. `on_problem` is called with a sentence for every defect.

    Only the last line of a run may be incomplete, because the process was killed while it wrote it.
    """

    def __init__(self, path: Path, on_problem: OnProblem, size: int | None = None) -> None:
        self._path = path
        self._problem = on_problem
        self._size = size
        self._last_n = -1
        self._torn = ""
        """What is wrong with an incomplete line, unless a new run begins after it."""
        self.bytes_read = 0

    def blocks(self) -> Iterator[Sequence[HistoryEvent]]:
        tail = b""
        started = False
        with self._path.open("rb") as file:
            while data := file.read(self._next_bytes()):
                self.bytes_read += len(data)
                whole, newline, rest = data.rpartition(b"\n")
                if not newline:
                    tail += data
                    continue
                lines, tail = tail + whole, rest
                if not started and not _is_event(lines.lstrip().partition(b"\n")[0]):
                    self._refuse()
                    return
                started = True
                yield self._decode(lines)
        yield from self._last(tail, started)
        self._report_torn()

    def _next_bytes(self) -> int:
        return BLOCK_BYTES if self._size is None else min(BLOCK_BYTES, self._size - self.bytes_read)

    def _last(self, tail: bytes, started: bool) -> Iterator[Sequence[HistoryEvent]]:
        """The last line, which the process may have been writing when it died."""
        if tail and not started and not tail.lstrip().startswith(b"{"):
            self._refuse()
        elif tail:
            try:
                event: HistoryEvent = _DECODER.decode(tail)
            except msgspec.DecodeError:
                return
            self._after_torn([event])
            yield [event]

    def _refuse(self) -> None:
        """Reports a file that is not a history once, not for each line."""
        self._problem(f"{self._path.name} is not a history: its first line is no event; pass the recorded files")

    def _decode(self, lines: bytes) -> Sequence[HistoryEvent]:
        try:
            events: Sequence[HistoryEvent] = _DECODER.decode_lines(lines)
        except msgspec.DecodeError:
            events = [event for line in lines.split(b"\n") if (event := self._decode_one(line)) is not None]
        else:
            self._after_torn(events)
        if events:
            self._last_n = events[-1].n
        return events

    def _decode_one(self, line: bytes) -> HistoryEvent | None:
        if not line.strip():
            return None
        try:
            event: HistoryEvent = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            self._report_torn()
            self._torn = f"{self._path.name}: cannot read the line after n={self._last_n}: {error}: {line[:120]!r}"
            if line.rstrip().endswith(b"}"):
                self._report_torn()
            return None
        self._after_torn([event])
        self._last_n = event.n
        return event

    def _after_torn(self, events: Sequence[HistoryEvent]) -> None:
        """An incomplete line is no problem if a new run begins after it: the process was killed while it wrote."""
        if self._torn and events:
            if isinstance(events[0], Begin):
                self._torn = ""
            self._report_torn()

    def _report_torn(self) -> None:
        if self._torn:
            self._problem(self._torn)
            self._torn = ""


def _is_event(line: bytes) -> bool:
    try:
        _DECODER.decode(line)
    except msgspec.DecodeError:
        return False
    return True
