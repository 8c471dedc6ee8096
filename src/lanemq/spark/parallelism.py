"""How many tasks a session can run at once: a batch is divided among at least so many, if it has enough queues.

A batch is planned in a Python process that Spark starts. Spark does not tell it anything about the session, so
`register` puts the number into the environment of the session's Python processes.

The number comes from settings, not from the executors that are there: right after the start of a session on a cluster
there are none, and with dynamic allocation their number follows the number of tasks.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Final

from pyspark import SparkContext

from lanemq.spark.options import ReadOptions

log = logging.getLogger(__name__)

VARIABLE: Final = "LANEMQ_SPARK_SLOTS"
UNKNOWN_SLOTS: Final = 32
"""Assumed if settings do not tell. Fewer: cores may have nothing to do. More: a small batch of many queues pays for
tasks that bring nothing."""


def task_slots(settings: Mapping[str, str], local: int) -> int | None:
    """How many tasks can run at once by these settings of Spark; None if they do not tell.

    `local` is Spark's own number for a local master. On a cluster that number counts executors that are there.
    """
    given = _number(settings, "spark.default.parallelism")
    if given is not None:
        return given
    if re.fullmatch(r"local(\[.*\])?", settings.get("spark.master", "")):
        return local
    elastic = settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true"
    executors = _number(settings, "spark.dynamicAllocation.maxExecutors" if elastic else "spark.executor.instances")
    cores = _number(settings, "spark.executor.cores")
    if executors is not None and cores is not None:
        return executors * cores
    return _number(settings, "spark.cores.max")


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) else None


def tell_python_processes(context: SparkContext) -> None:
    """Puts the number into the environment of Python processes that the session starts from now on.

    The first number stays: Spark keeps apart the Python workers of different environments, and would start more.
    """
    if VARIABLE in context.environment:
        return
    found = task_slots(dict(context.getConf().getAll()), context.defaultParallelism)
    if found is not None:
        context.environment[VARIABLE] = str(found)


def least_tasks(options: ReadOptions, environment: Mapping[str, str] | None = None) -> int:
    """Among how many tasks a batch is divided at least, if it has so many queues: the option, else the session's cores.

    `environment` is that of this process unless given.
    """
    known = _number(os.environ if environment is None else environment, VARIABLE)
    return options.min_partitions or known or UNKNOWN_SLOTS


def warn_if_too_few_queues(options: ReadOptions, queues: int) -> None:
    """Logs that `minPartitions` cannot be reached. It is not an error: topics may get more queues."""
    if options.ordered and options.min_partitions > queues:
        log.warning(
            "minPartitions=%d: the query reads %d queues, and a queue is not divided while ordered=true, so a batch "
            "has at most %d tasks; set ordered=false if order does not matter",
            options.min_partitions, queues, queues,
        )  # fmt: skip
