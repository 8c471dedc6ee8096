"""`lanemq check HISTORY…`: checks the order of a recorded run, in this process or as a Spark job.

The checker does not depend on Spark; `--spark` imports it here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemq.checker.checking import CheckOptions
from lanemq.checker.checking import check as check_files
from lanemq.checker.command import print_verdict, with_check_options
from lanemq.checker.verdict import Report
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
        print_verdict(check_files, **asked)
        return
    try:
        from lanemq.pipelines.audit.job import check_with_spark
    except ImportError as error:
        raise click.UsageError(f"--spark needs pyspark and pyarrow ({error}): {install_extra('spark')}") from error

    def judge(paths: Sequence[Path], options: CheckOptions) -> Report:
        with _spark_session(master) as session:
            return check_with_spark(session, paths, options)

    print_verdict(judge, **asked)


_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextmanager
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
