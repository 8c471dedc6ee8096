"""What the main job prints while it runs: bars on a terminal, a line every few seconds elsewhere."""

from types import TracebackType
from typing import Final, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SECONDS_PER_LINE: Final = 5.0


class CountedPhase(NamedTuple):
    """Something that is counted up to a total."""

    name: str
    total: int


class BarProgress:
    """A bar per phase."""

    def __init__(self, console: Console, phases: tuple[CountedPhase, ...]) -> None:
        columns = (
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._tasks = [self._progress.add_task(phase.name, total=phase.total, note="") for phase in phases]

    def show(self, counts: tuple[int, ...], now: float, note: str = "") -> None:
        for task, count in zip(self._tasks, counts, strict=True):
            self._progress.update(task, completed=count)
        self._progress.update(self._tasks[-1], note=note)

    def say(self, text: str) -> None:
        self._progress.console.print(text)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class LineProgress:
    """One line for all phases, every few seconds and at the end: for a log file, or continuous integration."""

    def __init__(self, console: Console, phases: tuple[CountedPhase, ...]) -> None:
        self._console, self._phases = console, phases
        self._began: float | None = None
        self._due = 0.0
        self._last = ""

    def show(self, counts: tuple[int, ...], now: float, note: str = "") -> None:
        if self._began is None:
            self._began = now
        parts = (
            f"{name} {min(count, total):,} of {total:,}"
            for (name, total), count in zip(self._phases, counts, strict=True)
        )
        said = f" ({note})" if note else ""
        self._last = f"{now - self._began:3.0f} s: {', '.join(parts)}{said}"
        if now >= self._due:
            self._due = now + SECONDS_PER_LINE
            self._print()

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _print(self) -> None:
        line, self._last = self._last, ""
        if line:
            self._console.print(line, soft_wrap=True, highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print()


def progress_on(console: Console, phases: tuple[CountedPhase, ...]) -> BarProgress | LineProgress:
    return (BarProgress if console.is_terminal else LineProgress)(console, phases)
