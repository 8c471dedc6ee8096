"""`lanemq check HISTORY…`: checks the order of a recorded run, in this process or as a Spark job.

The checker does not depend on Spark; `--spark` imports it here.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemq.checker.checking import CheckOptions
from lanemq.checker.checking import check as check_files
from lanemq.checker.command import print_verdict, with_check_options
from lanemq.checker.reading import bytes_of, find_files
from lanemq.checker.verdict import Report
from lanemq.cli.output import moving_line, progress_bar
from lanemq.model.environment import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command()
@with_check_options
@click.option("--spark", is_flag=True, help="Run as a Spark job, for large histories.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Spark master, unless spark-submit sets it. All executors must see HISTORY under the same path.",
)
def check(spark: bool, master: str, **asked: Any) -> None:
    """Check the order of a recorded run.

    HISTORY: files or folders, in JSONL or Parquet.

    Exit codes: 0 no violation was found; 1 a violation, which is explained; 2 unknown, because history is missing or
    the run did too little. The verdict with --spark is the same.
    """
    if not spark:
        print_verdict(_check_here, **asked)
        return
    try:
        from lanemq.pipelines.audit.job import check_with_spark
    except ImportError as error:
        raise click.UsageError(f"--spark needs pyspark and pyarrow ({error}): {install_extra('spark')}") from error

    def judge(paths: Sequence[Path], options: CheckOptions) -> Report:
        with contextlib.ExitStack() as stack:
            with moving_line("starting Spark"):
                session = stack.enter_context(_spark_session(master))
            with moving_line("checking with Spark"):
                return check_with_spark(session, paths, options)

    print_verdict(judge, **asked)


def _check_here(paths: Sequence[Path], options: CheckOptions) -> Report:
    with progress_bar("checking", sum(map(bytes_of, find_files(paths)))) as on_read:
        return check_files(paths, options, on_read)


_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextlib.contextmanager
def _spark_session(master: str) -> "Iterator[SparkSession]":
    """A quiet Spark session for this command. A session that is already active is used and left running."""
    from pyspark.sql import SparkSession

    from lanemq.spark.session import recommended

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = recommended().appName("lanemq check")
    for setting, value in _QUIET.items():
        builder = builder.config(setting, value)
    session = builder.master(master).getOrCreate()
    try:
        yield session
    finally:
        session.stop()
