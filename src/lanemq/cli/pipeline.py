"""`lanemq pipeline`: runs what a file declares, checks it, tells how far it is, and decides about parked keys.

Spark is imported by the commands that need it: help must not wait for it, and a missing one is told in a sentence.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemq.cli.options import Failed, Misused, json_option
from lanemq.cli.output import Grid, show
from lanemq.cli.pipeline_parked import parked
from lanemq.cli.pipeline_status import status

if TYPE_CHECKING:
    from lanemq.pipelines.pipeline import Pipeline

FILE = click.Path(path_type=Path, dir_okay=False)


class NeedsSpark(click.Group):
    """Commands that need Spark's packages, and what to do if they are not there."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in ("pyspark", "pyarrow", "numpy", "deltalake"):
                raise
            raise Failed(f"pipelines need {package}: pip install 'lanemq[spark]', and Java 17 or newer") from missing


@click.group(cls=NeedsSpark)
def pipeline() -> None:
    """Run pipelines that a .toml or .py file declares, and look after them."""


pipeline.add_command(status)
pipeline.add_command(parked)


@pipeline.command()
@click.argument("file", type=FILE)
@click.option("--name", help="Which one, if the file declares several.")
@click.option("--once", is_flag=True, help="End after everything that is there now.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Spark's master. Workers of a cluster need lanemq installed: --conf spark.pyspark.python=/where/it/is/python.",
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Instead of the file's.")
@click.option("--servers", metavar="HOST:PORT", help="Instead of the file's.")
@click.option("--history", type=click.Path(path_type=Path), help="Folder for what happened, for lanemq check.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--traceback", is_flag=True, help="Show everything that Spark says about an error.")
@json_option
def run(
    file: Path,
    name: str | None,
    once: bool,
    master: str,
    conf: tuple[str, ...],
    checkpoint: Path | None,
    servers: str | None,
    history: Path | None,
    quiet: bool,
    traceback: bool,
    as_json: bool,
) -> None:
    """Run the pipeline that FILE declares.

    Stops on SIGTERM or Ctrl-C when the running batch is finished; a second one ends it at once. --json prints one
    line per batch.
    """
    _log_to_stderr(traceback)
    from lanemq.cli.pipeline_view import view
    from lanemq.pipelines.program import run as run_pipeline

    chosen = _changed(_load(file, name), checkpoint, servers, history)
    settings = _settings(conf, traceback)
    with _told(traceback), view(chosen.name, as_json=as_json, quiet=quiet) as report:
        run_pipeline(chosen, once=once, report=report, master=master, conf=settings)


@pipeline.command()
@click.argument("file", type=FILE)
@json_option
def check(file: Path, as_json: bool) -> None:
    """Check what FILE declares, without starting anything."""
    from lanemq.pipelines.declare import load_all

    found = list(load_all(file).values())
    rows = [
        (each.name, each.source.options.get("topic") or each.source.options.get("topicPattern"), _kind(each.stage),
         _kind(each.sink), each.checkpoint) for each in found
    ]  # fmt: skip
    columns = ("pipeline", "topic", "stage", "sink", "checkpoint")
    show(
        as_json,
        lambda: [dict(zip(columns, map(str, row), strict=True)) for row in rows],
        Grid(columns, rows),
        "nothing is wrong with it, as far as can be told without Spark and the broker",
    )


def _load(file: Path, name: str | None) -> "Pipeline":
    from lanemq.pipelines.declare import load

    return load(file, name)


def _changed(declared: "Pipeline", checkpoint: Path | None, servers: str | None, history: Path | None) -> "Pipeline":
    changed = declared if checkpoint is None else replace(declared, checkpoint=checkpoint)
    changed = changed if servers is None else replace(changed, source=changed.source.at(servers))
    return changed if history is None else replace(changed, history=history)


def _settings(conf: tuple[str, ...], traceback: bool) -> dict[str, str]:
    settings = {"spark.log.level": "WARN"} if traceback else {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise Misused(f"--conf {each!r} should look like spark.executor.memory=4g")
        settings[name] = value
    return settings


@contextlib.contextmanager
def _told(traceback: bool) -> Iterator[None]:
    """A failed pipeline is one line; with --traceback all that led to it comes first."""
    from lanemq.pipelines.failure import PipelineFailed

    try:
        yield
    except PipelineFailed as error:
        if traceback:
            click.echo(error.trace, err=True)
        raise Failed(f"{error}" + ("" if traceback else " (--traceback shows all)")) from error


def _log_to_stderr(everything: bool) -> None:
    level = logging.INFO if everything else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    for noisy in ("py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def _kind(part: object) -> str:
    return type(part).__name__
