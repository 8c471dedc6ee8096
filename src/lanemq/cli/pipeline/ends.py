"""What is said before and after a pipeline's run: where its checkpoint is, why it failed, which keys stand still.

The rule guarded here: a run never ends in silence about work that is not done, and a failure is one line that says
where the rest of it is.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import Failed, with_advice
from lanemq.cli.output import plural
from lanemq.model.errors import ConnectFailed, TlsFailed

if TYPE_CHECKING:
    from lanemq.pipelines.pipeline import Pipeline

_WAITS = {
    "parked": ("waits for a person", "wait for a person"),
    "held": ("is tried again by the next run", "are tried again by the next run"),
    "gap": ("waits for a missing message", "wait for a missing message"),
}
"""What one key does, and what several do."""


def starting(pipeline: "Pipeline", master: str) -> str:
    """The checkpoint with its whole path: started in another folder, a relative one is another pipeline."""
    from lanemq.pipelines.checkpoint.checkpoint import epoch_of

    starts = epoch_of(pipeline.folder)
    which = f"start {starts + 1}" if starts else "first start"
    return f"{pipeline.name}: {which}, checkpoint {pipeline.folder}, Spark on {master}"


def standing_still(pipeline: "Pipeline", place: Path, name: str | None, more: str = "") -> str | None:
    """Which keys did not get to the end, and how to look at them; None if all did. `more`: what else is to be said."""
    from lanemq.pipelines.operate.parked import parked

    counts = parked(pipeline).counts()
    if not counts:
        return None
    told = ", ".join(f"{plural(count, 'key')} {why} ({_WAITS[why][count > 1]})" for why, count in counts.items())
    which = f" --name {name}" if name is not None else ""
    held = " --held" if "held" in counts else ""
    return f"{pipeline.name}: {told}{more}; see lanemq pipeline parked list {place}{which}{held}"


@contextlib.contextmanager
def failures_told(words: Path | None, traceback: bool) -> Iterator[None]:
    """A failed pipeline is one line; with `traceback` all that led to it comes first."""
    from lanemq.pipelines.running.failure import PipelineFailed

    try:
        yield
    except PipelineFailed as error:
        if traceback:
            click.echo(error.trace, err=True)
        hints = [] if traceback else ["--traceback shows all"]
        hints += [f"Spark's own words: {words}"] if words is not None and words.exists() else []
        raise Failed(f"{error}" + (f" ({'; '.join(hints)})" if hints else "")) from error
    except TlsFailed:
        raise
    except ConnectFailed as error:
        fix = " Start a broker with `lanemq broker --data DIR`, or correct servers (--servers)"
        waited = "; brokerWait of the source is how long it is waited for (60s unless given)"
        raise Failed(with_advice(error, fix + waited)) from error


def log_to_stderr(everything: bool) -> None:
    """Warnings for people; libraries below Spark repeat its errors with traces, and are heard only if all is."""
    level = logging.INFO if everything else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    for noisy in ("py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.ERROR if everything else logging.CRITICAL)
