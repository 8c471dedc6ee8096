"""`lanemq pipeline`: runs and checks pipelines; status, parked keys and dead letters have their own modules.

Spark is imported by the commands that need it, so that help is fast and a missing package is reported in one line.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemq.cli.options import CliError, InOrder, WrongUsage, json_lines_option, json_option
from lanemq.cli.output import Grid, show
from lanemq.cli.pipeline.dead_letters import dead_letters
from lanemq.cli.pipeline.loading import pipeline_security_options, refused, secured, with_flags
from lanemq.cli.pipeline.parked import parked
from lanemq.cli.pipeline.run_output import (
    RunTotals,
    download_lines,
    failures_in_one_line,
    interruption_in_one_line,
    log_warnings,
    monitored,
    progress_output,
    start_line,
    unfinished_keys,
)
from lanemq.cli.pipeline.state import state
from lanemq.cli.pipeline.status import status
from lanemq.model.environment import install_extra

if TYPE_CHECKING:
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.running.batch_trace import BatchTrace

FILE = click.Path(path_type=Path, dir_okay=False)


class NeedsSpark(InOrder):
    """A group of commands that reports a missing package of Spark in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            package = (missing.name or "").partition(".")[0]
            if package not in ("pyspark", "pyarrow", "numpy", "pandas", "deltalake"):
                raise
            raise CliError(f"pipelines need {package}: {install_extra('spark')}, and Java 17 or newer") from missing


@click.group(cls=NeedsSpark)
def pipeline() -> None:
    """Run and inspect pipelines, which a .toml or .py file declares.

    Relative paths in the file (checkpoint, sinks, history) are relative to the working directory, not to the file.
    Modules that the file imports are searched in the file's folder.
    """


@pipeline.command()
@click.argument("file", type=FILE)
@click.option("--name", help="Name of the pipeline, if FILE declares several.")
@click.option("--once", is_flag=True, help="Process what is in the topic now, then exit.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Spark master. Workers of a cluster need lanemq: --conf spark.pyspark.python=/path/to/python, or see "
    "`lanemq spark pack`.",
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@click.option("--checkpoint", metavar="PATH", help="Checkpoint folder or address, instead of that in FILE.")
@click.option("--servers", metavar="HOST:PORT", help="Broker or name servers, instead of those in FILE.")
@click.option("--history", type=click.Path(path_type=Path), help="Folder for a history of events, for lanemq check.")
@click.option(
    "--fail-on-parked",
    is_flag=True,
    help="Exit with 1 if keys are held or parked at the end, or if all messages became dead letters.",
)
@click.option("--new-sink", is_flag=True, help="Continue with a sink that does not contain the results so far.")
@click.option(
    "--new-checkpoint",
    is_flag=True,
    help="Keep the rows of a sink whose checkpoint is gone; rows of messages that are read again are added to them.",
)
@click.option("--fail-on-dead-letters", is_flag=True, help="Exit with 1 if the run made any dead letters.")
@click.option("--monitor", metavar="HOST:PORT", help="Address for health checks and metrics over HTTP; default: none.")
@click.option(
    "--trace", is_flag=True, help="Make a span of OpenTelemetry for each batch; run it under opentelemetry-instrument."
)
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--traceback", is_flag=True, help="Show Spark's full error.")
@click.option("--verbose", is_flag=True, help="Show all output of Spark and its workers.")
@json_lines_option("batch")
@pipeline_security_options
def run(
    file: Path,
    name: str | None,
    once: bool,
    master: str,
    conf: tuple[str, ...],
    checkpoint: str | None,
    servers: str | None,
    history: Path | None,
    fail_on_parked: bool,
    new_sink: bool,
    new_checkpoint: bool,
    fail_on_dead_letters: bool,
    monitor: str | None,
    trace: bool,
    quiet: bool,
    traceback: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the pipeline that FILE declares.

    SIGTERM or Ctrl-C stops it after the current batch; a second signal ends it at once. Spark's own output goes to
    lanemq/spark.log in the checkpoint, or to the folder for temporary files if the checkpoint is in a store, unless
    --verbose is given.

    Relative paths in FILE are relative to the working directory, not to FILE.

    Exit codes: 0 finished or stopped; 1 failed or refused (also if the checkpoint is in use or belongs to another
    pipeline), or a condition of --fail-on-parked or --fail-on-dead-letters; 2 wrong command line or FILE; 130 Ctrl-C
    while Spark starts.
    """
    log_warnings(verbose)
    from lanemq.pipelines.running.program import run as run_pipeline
    from lanemq.pipelines.running.session import spark_output_file

    chosen = _changed(_load(file, name), checkpoint, servers, history)
    tracing, settings = _trace() if trace else None, _settings(conf, verbose)
    totals, spark_log = RunTotals(), None if verbose else spark_output_file(chosen.folder)
    _begin(chosen, master, settings, quiet)
    with (
        interruption_in_one_line(),
        failures_in_one_line(spark_log, traceback or verbose),
        progress_output(chosen.name, as_json=as_json, quiet=quiet) as report,
        monitored(chosen.name, monitor, totals.counting(report)) as reporting,
    ):
        run_pipeline(
            chosen, once=once, report=reporting, master=master, conf=settings, spark_output=spark_log,
            new_sink=new_sink, new_checkpoint=new_checkpoint, trace=tracing,
        )  # fmt: skip
    place = file if checkpoint is None else chosen.folder
    unfinished = unfinished_keys(chosen, place, name, totals.no_rows_note)
    failed = fail_on_parked and (unfinished is not None or totals.all_dead)
    failed = failed or (fail_on_dead_letters and totals.dead_letters > 0)
    idle = f"{chosen.name}: nothing new" if once and not totals.batches and not failed else None
    _end([each for each in (idle, totals.report(chosen), unfinished) if each], failed, quiet)


CHECKED = "no errors found: packages and Java are there (Spark, the broker, the sink and the checkpoint were not used)"


@pipeline.command()
@click.argument("file", type=FILE)
@json_option
@pipeline_security_options
def check(file: Path, as_json: bool) -> None:
    """Check what FILE declares, and that the packages and the Java that it needs are there.

    Spark is not started. Exit code 1 if something is missing. Relative paths are shown as a run would use them:
    relative to the working directory.
    """
    from lanemq.pipelines.declare.files import load_all
    from lanemq.pipelines.running.preflight import missing_needs

    found = [replace(each, source=secured(each.source)) for each in load_all(file, with_flags).values()]
    rows = [
        (each.name, each.source.options.get("topic") or each.source.options.get("topicPattern"), _kind(each.stage),
         _kind(each.sink), each.folder) for each in found
    ]  # fmt: skip
    columns = ("pipeline", "topic", "stage", "sink", "checkpoint")
    missing = missing_needs(found)
    show(
        as_json,
        lambda: [dict(zip(columns, map(str, row), strict=True)) for row in rows],
        Grid(columns, rows),
        *([] if missing else [CHECKED]),
    )
    if missing:
        raise CliError("; ".join(missing))


pipeline.add_command(status)
pipeline.add_command(state)
pipeline.add_command(parked)
pipeline.add_command(dead_letters)


def _begin(chosen: "Pipeline", master: str, settings: dict[str, str], quiet: bool) -> None:
    """Refuses a checkpoint that is in use or belongs to another pipeline, then prints what is about to start."""
    from lanemq.pipelines.running.program import check_checkpoint

    with refused():
        check_checkpoint(chosen)
    for line in (start_line(chosen, master), *download_lines(chosen, settings)) if not quiet else ():
        click.echo(line, err=True)


def _end(reports: list[str], failed: bool, quiet: bool) -> None:
    """Prints what the run did not process, as an error if it counts as a failure."""
    if failed:
        raise CliError("; ".join(reports))
    for each in reports if not quiet else ():
        click.echo(each, err=True)


def _trace() -> "BatchTrace":
    try:
        from lanemq.pipelines.running.tracing import trace_batches
    except ModuleNotFoundError as missing:
        raise CliError(f"--trace needs OpenTelemetry: {install_extra('otel')}") from missing
    return trace_batches()


def _load(file: Path, name: str | None) -> "Pipeline":
    from lanemq.pipelines.declare.files import load

    return load(file, name, with_flags)


def _changed(declared: "Pipeline", checkpoint: str | None, servers: str | None, history: Path | None) -> "Pipeline":
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
