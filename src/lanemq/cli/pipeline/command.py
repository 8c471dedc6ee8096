"""`lanemq pipeline`: runs what a file declares, checks it, tells how far it is, and decides about parked keys.

Spark is imported by the commands that need it: help must not wait for it, and a missing one is told in a sentence.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemq.cli.options import Failed, WrongUsage, json_option
from lanemq.cli.output import Grid, show
from lanemq.cli.pipeline.dead import Tally, counted_by
from lanemq.cli.pipeline.ends import failures_told, log_to_stderr, standing_still, starting
from lanemq.cli.pipeline.letters import dead
from lanemq.cli.pipeline.parked import parked
from lanemq.cli.pipeline.place import refused
from lanemq.cli.pipeline.security import overridden, runs_securely, secured
from lanemq.cli.pipeline.status import status

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
pipeline.add_command(dead)


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
    "--fail-on-parked",
    is_flag=True,
    help="Exit code 1 if keys stand still at the end (parked, held, waiting), or if all that was read was set aside.",
)
@click.option("--new-sink", is_flag=True, help="Go on with a sink that lacks what was done so far.")
@click.option("--fail-on-dead-letters", is_flag=True, help="Exit code 1 if the run set any message aside.")
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--traceback", is_flag=True, help="Show everything that Spark says about an error.")
@click.option("--verbose", is_flag=True, help="Show everything that Spark and its workers say, as they say it.")
@json_option
@runs_securely
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
    new_sink: bool,
    fail_on_dead_letters: bool,
    quiet: bool,
    traceback: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the pipeline that FILE declares.

    Stops on SIGTERM or Ctrl-C when the running batch is finished; a second one ends it at once. --json prints one
    line per batch. What Spark itself says is in lanemq/spark.log of the checkpoint, unless --verbose is given.

    Relative paths in FILE are relative to the working directory, not to FILE.

    Exit codes: 0 done or stopped; 1 failed or refused (also: the checkpoint is in use, or another pipeline's), or
    what --fail-on-parked and --fail-on-dead-letters are about; 2 the command line or FILE is wrong.
    """
    log_to_stderr(verbose)
    from lanemq.cli.pipeline.view import view
    from lanemq.pipelines.running.program import check_checkpoint
    from lanemq.pipelines.running.program import run as run_pipeline
    from lanemq.pipelines.running.session import spark_output_file

    chosen = _changed(_load(file, name), checkpoint, servers, history)
    settings = _settings(conf, verbose)
    words = None if verbose else spark_output_file(chosen.folder)
    with refused():
        check_checkpoint(chosen)
    if not quiet:
        click.echo(starting(chosen, master), err=True)
    tally = Tally()
    with failures_told(words, traceback or verbose), view(chosen.name, as_json=as_json, quiet=quiet) as report:
        tell = counted_by(tally, report)
        run_pipeline(
            chosen, once=once, report=tell, master=master, conf=settings, spark_output=words, new_sink=new_sink
        )
    still = standing_still(chosen, file if checkpoint is None else chosen.folder, name, tally.yield_words)
    stuck, dead = bool(still) or tally.nothing_else, tally.dead > 0
    unwanted = (fail_on_parked and stuck) or (fail_on_dead_letters and dead)
    _close([each for each in (tally.told(chosen), still) if each], unwanted, quiet)


@pipeline.command()
@click.argument("file", type=FILE)
@json_option
@runs_securely
def check(file: Path, as_json: bool) -> None:
    """Check what FILE declares, without starting anything.

    Relative paths are shown as they would be used: relative to the working directory.
    """
    from lanemq.pipelines.declare.files import load_all

    found = [replace(each, source=secured(each.source)) for each in load_all(file, overridden).values()]
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


def _close(words: list[str], unwanted: bool, quiet: bool) -> None:
    """The last words of a run: what it did not do."""
    if unwanted:
        raise Failed("; ".join(words))
    for each in words if not quiet else ():
        click.echo(each, err=True)


def _load(file: Path, name: str | None) -> "Pipeline":
    from lanemq.pipelines.declare.files import load

    return load(file, name, overridden)


def _changed(declared: "Pipeline", checkpoint: Path | None, servers: str | None, history: Path | None) -> "Pipeline":
    changed = declared if checkpoint is None else replace(declared, checkpoint=checkpoint)
    source = secured(declared.source)
    changed = replace(changed, source=source if servers is None else source.at(servers))
    return changed if history is None else replace(changed, history=history)


def _settings(conf: tuple[str, ...], verbose: bool) -> dict[str, str]:
    settings = {"spark.log.level": "WARN"} if verbose else {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise WrongUsage(f"--conf {each!r} should look like spark.executor.memory=4g")
        settings[name] = value
    return settings


def _kind(part: object) -> str:
    return type(part).__name__
