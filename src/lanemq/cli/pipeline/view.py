"""A running pipeline in front of people: a table that lives on a terminal, a line per batch everywhere else.

The rule guarded here: a reader that goes away (`| head`) ends the telling and never the pipeline.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import click

from lanemq.cli.output import Grid, table_of, to_json, wall_time
from lanemq.clock import SystemClock

if TYPE_CHECKING:
    from lanemq.pipelines.running.progress import Progress
    from lanemq.spark.lag import QueueLag

log = logging.getLogger(__name__)

Tell: TypeAlias = Callable[["Progress"], object]

LAG_COLUMNS = ("topic", "queue", "offset", "end", "lag", "lag time")


@contextlib.contextmanager
def view(name: str, *, as_json: bool, quiet: bool) -> Iterator[Tell]:
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
def _live(name: str) -> Iterator[Tell]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from lanemq.pipelines.running.progress import counted

    console = Console(markup=False, highlight=False, emoji=False)
    totals: dict[str, int] = {}

    def report(progress: "Progress") -> None:
        _add(totals, progress)
        summed = ", ".join(counted(number, count) for count, number in totals.items() if number)
        live.update(Group(Text(progress.line()), Text(f"since the start: {summed}"), table_of(queues(progress))))

    with Live(Text(f"{name}: starting"), console=console, refresh_per_second=4) as live:
        yield report


def _add(totals: dict[str, int], progress: "Progress") -> None:
    from lanemq.pipelines.running.progress import LEVELS

    for count, number in {"messages": progress.messages, **progress.applied.counts}.items():
        totals[count] = number if count in LEVELS else totals.get(count, 0) + number


def queues(progress: "Progress") -> Grid:
    """Lag by queue."""
    return Grid(LAG_COLUMNS, list(map(lag_row, progress.lag)))


def lag_row(each: "QueueLag") -> tuple[object, ...]:
    """One queue, in the order of `LAG_COLUMNS`."""
    age = None if each.seconds is None else f"{each.seconds:.1f} s"
    return each.queue.topic, each.queue.queue_id, each.offset, each.end, each.messages, age


def _line(text: str) -> None:
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # From now on into nowhere, or every line, and Python's own end, would fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        log.warning("nobody reads the progress any more: the pipeline goes on without telling it")
