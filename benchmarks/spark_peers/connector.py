"""Spark's Kafka source, and a PySpark that it fits: published packages, in the cache of the interop suites."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from interop.maven import UnavailableError, cached, jars, run_tool

POM = Path(__file__).with_name("pom-spark-kafka.xml")
WITH_CONNECTOR = "4.2.0"
"""The PySpark that is used if Maven has no connector for the installed one, as happens in the weeks after a release."""

TOKENS = "4.0.0"
"""Of that connector's module for delegation tokens, which topics without users do not need: mirrors lack its 4.2.0."""

IN_SPARK = ("hadoop-", "jsr305-", "lz4-", "scala-", "slf4j-", "snappy-", "spark-tags")
"""Jars that Spark brings itself."""


def installed() -> str:
    """The version of the PySpark that this process would import."""
    return version("pyspark")


def connector(spark: str) -> list[Path]:
    """The jars of the Kafka source for this version of Spark; `UnavailableError` if Maven has none."""
    tokens = TOKENS if spark == WITH_CONNECTOR else spark
    found = jars(POM, {"spark.version": spark, "tokens.version": tokens})
    return sorted(jar for jar in found.glob("*.jar") if not jar.name.startswith(IN_SPARK))


def pyspark_folder(wanted: str) -> Path:
    """A folder with this PySpark, for the front of PYTHONPATH. The project's environment keeps its own."""

    def fill(place: Path) -> None:
        options = ("--quiet", "--disable-pip-version-check", "--target", str(place))
        run_tool(sys.executable, "-m", "pip", "install", *options, f"pyspark=={wanted}")

    return cached(f"pyspark-{wanted}", [], fill)


def fitting_jars(
    words: Sequence[str],
    *,
    find: Callable[[str], list[Path]] = connector,
    start_again: Callable[[Sequence[str]], None] | None = None,
) -> list[Path]:
    """The jars for the installed PySpark. If there are none, this process starts again with a PySpark that has some."""
    here = installed()
    try:
        return find(here)
    except UnavailableError as reason:
        if here == WITH_CONNECTOR:
            raise
        print(f"no Kafka source for PySpark {here} ({reason}): both sources run with {WITH_CONNECTOR}", file=sys.stderr)
    (start_again or _start_again)(words)
    return []


def _start_again(words: Sequence[str]) -> None:
    path = os.pathsep.join([str(pyspark_folder(WITH_CONNECTOR)), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.stderr.flush()
    command = [sys.executable, "-m", "benchmarks.spark_peers", *words]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
