"""A running pipeline in front of people: a table that lives on a terminal, a line per batch everywhere else."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from lanemq.cli.output import Grid, table_of, to_json, wall_time
from lanemq.clock import SystemClock

if TYPE_CHECKING:
    from lanemq.pipelines.progress import Progress

_COLUMNS = ("topic", "queue", "offset", "end", "lag", "lag time")


@contextlib.contextmanager
def view(name: str, *, as_json: bool, quiet: bool) -> Iterator[Callable[["Progress"], object]]:
    """What is told after each batch and pass; JSON is for programs, so --quiet does not silence it."""
    if as_json:
        clock = SystemClock()
        yield lambda progress: _line(to_json({"time": wall_time(clock.wall()), **progress.document()}))
    elif quiet:
        yield lambda progress: None
    elif sys.stdout.isatty():
        with _live(name) as report:
            yield report
    else:
        yield lambda progress: _line(progress.line())


@contextlib.contextmanager
def _live(name: str) -> Iterator[Callable[["Progress"], object]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(markup=False, highlight=False, emoji=False)
    totals: dict[str, int] = {}

    def report(progress: "Progress") -> None:
        for count, number in {"messages": progress.messages, **progress.done.counts}.items():
            totals[count] = totals.get(count, 0) + number
        summed = ", ".join(f"{number} {count}" for count, number in totals.items() if number)
        live.update(Group(Text(progress.line()), Text(f"since the start: {summed}"), table_of(queues(progress))))

    with Live(Text(f"{name}: starting"), console=console, refresh_per_second=4) as live:
        yield report


def queues(progress: "Progress") -> Grid:
    """Lag by queue."""
    rows = [
        (each.queue.topic, each.queue.queue_id, each.offset, each.end, each.messages, _seconds(each.seconds))
        for each in progress.lag
    ]
    return Grid(_COLUMNS, rows)


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.1f} s"


def _line(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
