"""`lanemq pipeline`: runs what a file declares, checks it, tells how far it is, and decides about parked keys.

Spark is imported by the commands that need it: help must not wait for it, and a missing one is told in a sentence.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemq.cli.options import Failed, Misused, json_option
from lanemq.cli.output import Grid, show
from lanemq.cli.pipeline_ends import failures_told, log_to_stderr, standing_still, starting
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
    """Run pipelines that a .toml or .py file declares, and look after them.

    Relative paths in a file (checkpoint, sinks, history) are relative to the working directory, not to the file;
    modules that it names are looked for beside it.
    """


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
@click.option(
    "--fail-on-parked", is_flag=True, help="Exit code 1 if keys stand still at the end: parked, held, waiting."
)
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--traceback", is_flag=True, help="Show everything that Spark says about an error.")
@click.option("--verbose", is_flag=True, help="Show everything that Spark and its workers say, as they say it.")
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
    fail_on_parked: bool,
    quiet: bool,
    traceback: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the pipeline that FILE declares.

    Stops on SIGTERM or Ctrl-C when the running batch is finished; a second one ends it at once. --json prints one
    line per batch. What Spark itself says is in lanemq/spark.log of the checkpoint, unless --verbose is given.

    Relative paths in FILE are relative to the working directory, not to FILE.

    Exit codes: 0 done or stopped; 1 failed or refused, or keys stand still and --fail-on-parked was given; 2 the
    command line or FILE is wrong.
    """
    log_to_stderr(verbose)
    from lanemq.cli.pipeline_view import view
    from lanemq.pipelines.program import run as run_pipeline
    from lanemq.pipelines.spark_words import spark_words_of

    chosen = _changed(_load(file, name), checkpoint, servers, history)
    settings = _settings(conf, verbose)
    words = None if verbose else spark_words_of(chosen.folder)
    if not quiet:
        click.echo(starting(chosen, master), err=True)
    with failures_told(words, traceback or verbose), view(chosen.name, as_json=as_json, quiet=quiet) as report:
        run_pipeline(chosen, once=once, report=report, master=master, conf=settings, spark_words=words)
    still = standing_still(chosen, file if checkpoint is None else chosen.folder, name)
    if still and fail_on_parked:
        raise Failed(still)
    if still and not quiet:
        click.echo(still, err=True)


@pipeline.command()
@click.argument("file", type=FILE)
@json_option
def check(file: Path, as_json: bool) -> None:
    """Check what FILE declares, without starting anything.

    Relative paths are shown as they would be used: relative to the working directory.
    """
    from lanemq.pipelines.declare import load_all

    found = list(load_all(file).values())
    rows = [
        (each.name, each.source.options.get("topic") or each.source.options.get("topicPattern"), _kind(each.stage),
         _kind(each.sink), each.folder) for each in found
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


def _settings(conf: tuple[str, ...], verbose: bool) -> dict[str, str]:
    settings = {"spark.log.level": "WARN"} if verbose else {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise Misused(f"--conf {each!r} should look like spark.executor.memory=4g")
        settings[name] = value
    return settings


def _kind(part: object) -> str:
    return type(part).__name__
