"""`lanemq check HISTORY…`: the checker, plain or as a Spark job.

The checker itself knows nothing of Spark; this is where the two meet, and only when `--spark` asks for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lanemq.checker.checking import Options
from lanemq.checker.checking import check as check_files
from lanemq.checker.command import asks_for_judgement, tell_verdict
from lanemq.checker.verdict import Report


@click.command()
@asks_for_judgement
@click.option("--spark", is_flag=True, help="Judge as a Spark job: for histories that take one core too long.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where the Spark job runs, if spark-submit does not say. All executors must see HISTORY under the same path.",
)
def check(spark: bool, master: str, **asked: Any) -> None:
    """Judge the order of a run from its HISTORY files or folders, in JSONL or Parquet.

    Exit code 0: no promise was broken. 1: a violation, explained. 2: unknown, because history is missing or
    the run exercised too little. With --spark the answer is the same.
    """
    if not spark:
        tell_verdict(check_files, **asked)
        return
    try:
        from lanemq.cli.spark_session import spark_session
        from lanemq.pipelines.audit.job import check_with_spark
    except ImportError as error:
        raise click.UsageError(f"--spark needs pyspark and pyarrow ({error}): install lanemq[spark]") from error

    def judge(paths: Sequence[Path], options: Options) -> Report:
        with spark_session(master, "lanemq check") as session:
            return check_with_spark(session, paths, options)

    tell_verdict(judge, **asked)
