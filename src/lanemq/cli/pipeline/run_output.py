"""What `lanemq pipeline run` prints: the start, progress per batch, and at the end what was not processed.

A run always reports keys that are held or parked, and dead letters. A failure is one line that names the file with the
details. If the output cannot be written (`| head`, a full disk), the pipeline continues without it.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from lanemq.cli.options import CliError, with_advice
from lanemq.cli.output import Grid, discard, duration_text, log_to_stderr, plural, rendered, to_json
from lanemq.clock import SystemClock, wall_time
from lanemq.model.errors import ConnectFailed, TlsFailed
from lanemq.net.address import parse_address

if TYPE_CHECKING:
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.running.progress import Progress
    from lanemq.spark.lag import QueueLag

log = logging.getLogger(__name__)

Report: TypeAlias = Callable[["Progress"], object]

DEFAULT_MONITOR_PORT = 9882

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""

LAG_COLUMNS = ("topic", "queue", "offset", "end", "lag", "lag time")

_STATES = {
    "parked": ("waits for an operator", "wait for an operator"),
    "held": ("is retried by the next run", "are retried by the next run"),
    "gap": ("waits for a missing message", "wait for a missing message"),
}
"""By state: what is said about one key, and about several."""


def log_warnings(verbose: bool) -> None:
    """Logs warnings to stderr. py4j and pyspark repeat Spark's errors with traces, so they need `verbose`."""
    level = logging.INFO if verbose else logging.WARNING
    log_to_stderr(level)
    for noisy in ("py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.ERROR if verbose else logging.CRITICAL)


def start_line(pipeline: "Pipeline", master: str) -> str:
    """The first line of a run. It has the absolute path of the checkpoint, because a relative one depends on the folder
    in which the run is started."""
    from lanemq.pipelines.checkpoint.checkpoint import epoch_of

    starts = epoch_of(pipeline.folder)
    which = f"start {starts + 1}" if starts else "first start"
    return f"{pipeline.name}: {which}, checkpoint {pipeline.folder}, Spark on {master}"


def download_lines(pipeline: "Pipeline", settings: Mapping[str, str]) -> Iterator[str]:
    """A line if Spark downloads jars before it starts, which takes minutes and writes nothing to the terminal."""
    from lanemq.pipelines.running.preflight import jars_to_download

    jars = jars_to_download({**pipeline.spark, **settings})
    if jars:
        yield f"{pipeline.name}: Spark first downloads jars, which may take minutes: {', '.join(jars)}"


@contextlib.contextmanager
def progress_output(name: str, *, as_json: bool, quiet: bool) -> Iterator[Report]:
    """A callback that prints each batch and retry pass: a live table on a terminal, else a line.

    JSON is for programs, so `quiet` does not suppress it.
    """
    if as_json:
        clock = SystemClock()
        yield lambda progress: _print(to_json({"time": wall_time(clock.wall()), **progress.document()}))
    elif quiet:
        yield lambda progress: None
    elif sys.stdout.isatty():
        with _live_table(name) as report:
            yield report
    else:
        yield lambda progress: _print(progress.line())


@contextlib.contextmanager
def _live_table(name: str) -> Iterator[Report]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    from lanemq.pipelines.running.progress import counted

    console = Console(markup=False, highlight=False, emoji=False)
    totals: dict[str, int] = {}

    def report(progress: "Progress") -> None:
        _add(totals, progress)
        summed = ", ".join(counted(number, count) for count, number in totals.items() if number)
        lag = Text(rendered(lag_grid(progress), console.width))
        live.update(Group(Text(progress.line()), Text(f"since the start: {summed}"), lag))

    starting = Spinner("line", Text(f"{name}: starting Spark"))  # it moves until the first batch
    with Live(starting, console=console, refresh_per_second=4) as live:
        yield report


def _add(totals: dict[str, int], progress: "Progress") -> None:
    from lanemq.pipelines.running.progress import LEVELS

    for count, number in {"messages": progress.messages, **progress.applied.counts}.items():
        totals[count] = number if count in LEVELS else totals.get(count, 0) + number


def lag_grid(progress: "Progress") -> Grid:
    """The lag of each queue."""
    return Grid(LAG_COLUMNS, list(map(lag_row, progress.lag)))


def lag_row(each: "QueueLag") -> tuple[object, ...]:
    """The lag of one queue, in the order of `LAG_COLUMNS`."""
    age = None if each.seconds is None else duration_text(each.seconds * 1000)
    return each.queue.topic, each.queue.queue_id, each.offset, each.end, each.messages, age


def _print(text: str) -> None:
    try:
        click.echo(text)
    except OSError as error:
        discard(sys.stdout)
        log.warning("the progress cannot be written (%s); the pipeline continues without output", error.strerror)


@contextlib.contextmanager
def interruption_in_one_line() -> Iterator[None]:
    """Shows Ctrl-C while Spark starts or stops as one line, with the shell's exit code for it.

    While batches run, Ctrl-C does not come here: it stops the pipeline after the current batch.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted while Spark was starting or stopping; no batch was running", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def failures_in_one_line(spark_log: Path | None, traceback: bool) -> Iterator[None]:
    """Shows a failed pipeline as one line; with `traceback`, everything that led to it comes first."""
    from lanemq.pipelines.running.failure import PipelineFailed

    try:
        yield
    except PipelineFailed as error:
        if traceback:
            click.echo(error.trace, err=True)
        hints = [] if traceback else ["--traceback shows all"]
        hints += [f"Spark's output: {spark_log}"] if spark_log is not None and spark_log.exists() else []
        raise CliError(f"{error}" + (f" ({'; '.join(hints)})" if hints else "")) from error
    except TlsFailed:
        raise
    except ConnectFailed as error:
        advice = (
            " Start a broker with `lanemq broker --data DIR`, or correct servers (--servers); the source's option "
            "brokerWait sets how long the pipeline waits for the broker (default 60s)"
        )
        raise CliError(with_advice(error, advice)) from error


@contextlib.contextmanager
def monitored(name: str, listen: str | None, report: Report) -> Iterator[Report]:
    """Serves health checks and metrics while a pipeline runs; yields the callback that they are counted by."""
    if listen is None:
        yield report
        return
    from lanemq.net.serving.monitor import Monitor
    from lanemq.pipelines.running.monitor import PipelineMonitor

    figures = PipelineMonitor(name)
    try:
        monitor = Monitor(parse_address(listen, DEFAULT_MONITOR_PORT), figures)
    except OSError as error:
        raise CliError(f"--monitor {listen}: cannot listen there: {error.strerror}; choose another address") from error
    try:
        yield figures.counting(report)
    finally:
        monitor.close()


@dataclass(slots=True)
class RunTotals:
    """What a run has read, written and dead-lettered, summed up from its progress."""

    batches: int = 0
    """With retry passes."""
    read: int = 0
    rows: int = 0
    dead_letters: int = 0

    def counting(self, report: Report) -> Report:
        """A callback that adds each progress to these totals, then calls `report`."""

        def count_and_report(progress: "Progress") -> None:
            self.add(progress)
            report(progress)

        return count_and_report

    def add(self, progress: "Progress") -> None:
        """Adds one batch or retry pass.

        Events are counted by the stage where it does so, because offsets also advance over filtered messages. Messages
        that an operator discarded become dead letters too, but are not reported again.
        """
        applied = progress.applied
        self.batches += 1
        self.read += applied.counts.get("events", progress.messages) if not applied.batch.is_retry_pass else 0
        self.rows += applied.outputs
        self.dead_letters += applied.dead_letters - applied.counts.get("discarded", 0)

    @property
    def all_dead(self) -> bool:
        """Whether every message that was read became a dead letter."""
        return self.dead_letters >= self.read > 0

    @property
    def no_rows_note(self) -> str:
        """A note for the report on held and parked keys: a bug in a step that stops all keys writes no row."""
        if self.rows or not self.read:
            return ""
        return f"; the {plural(self.read, 'message')} read produced no row"

    def report(self, pipeline: "Pipeline") -> str | None:
        """A sentence about dead letters and where they are; None if there are none."""
        if not self.dead_letters:
            return None
        read = f"all {self.read} that were read" if self.all_dead else f"{self.read} read"
        return f"{pipeline.name}: {plural(self.dead_letters, 'dead letter')} ({read}): {_dead_letters_in(pipeline)}"


def _dead_letters_in(pipeline: "Pipeline") -> str:
    from lanemq.pipelines.checkpoint.checkpoint import dead_letters_folder

    if pipeline.dead_letters is None:
        return f"they are in {dead_letters_folder(pipeline.folder)} (a Delta table)"
    return f"they are in the sink that the pipeline declares for them ({type(pipeline.dead_letters).__name__})"


def unfinished_keys(pipeline: "Pipeline", place: object, name: str | None, note: str = "") -> str | None:
    """A sentence about the keys that are held or parked, and how to list them; None if there are none."""
    from lanemq.pipelines.operate.parked import parked

    counts = parked(pipeline).counts()
    if not counts:
        return None
    keys = ", ".join(f"{plural(count, 'key')} {why} ({_STATES[why][count > 1]})" for why, count in counts.items())
    which = f" --name {name}" if name is not None else ""
    held = " --held" if "held" in counts else ""
    return f"{pipeline.name}: {keys}{note}; see lanemq pipeline parked list {place}{which}{held}"
