"""The files of a history, spread over Spark's tasks: a few files each, about the same work for all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from lanemq.pipelines.audit.scanning import Files, RunFile

TASKS_PER_CORE = 3
"""More, and starting them takes longer than reading; fewer, and the last one keeps all others waiting."""

TASK_BYTES = 128 * 1024 * 1024
"""Of history for each task behind a shuffle: more, and a task may not fit into its memory."""

PIECES_TOGETHER = 1000
"""Pieces have kilobytes, so Spark's usual ten thousand rows would be a hundred megabytes on their way to a task."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Tasks:
    """`map` lets every task see which of the files are its own."""

    numbers: DataFrame
    files: Files

    @classmethod
    def deal(cls, spark: SparkSession, files: Files) -> "Tasks":
        """In a session beside the given one, so that the settings a history needs stay out of it."""
        sizes = {file: _size(Path(file.path)) for file in files}
        cores = spark.sparkContext.defaultParallelism
        session = spark.newSession()
        shuffled = max(TASKS_PER_CORE * cores, sum(sizes.values()) // TASK_BYTES)
        session.conf.set("spark.sql.shuffle.partitions", str(shuffled))
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(PIECES_TOGETHER))
        tasks = max(1, min(len(files), TASKS_PER_CORE * cores))
        return cls(session.range(0, len(files), 1, tasks), _dealt(sizes, tasks))

    def map(self, task: Callable[[Files, Batches], Batches], schema: pa.Schema) -> DataFrame:
        return self.numbers.mapInArrow(partial(task, self.files), from_arrow_schema(schema))


def _dealt(sizes: dict[RunFile, int], tasks: int) -> Files:
    """The files in such an order that equal stretches of them are about the same work."""
    by_size = sorted(sizes, key=sizes.__getitem__, reverse=True)
    return tuple(file for first in range(tasks) for file in by_size[first::tasks])


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in path.iterdir()) if path.is_dir() else path.stat().st_size
