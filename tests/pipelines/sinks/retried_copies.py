"""A program whose Spark tasks die after they have committed their copy, each once; Spark runs them again.

    python -m tests.pipelines.sinks.retried_copies DSN TABLE FOLDER

Prints how many rows were in the staging table when the batch was merged.
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from lanemq.model.errors import LaneError
from lanemq.pipelines import PostgresSink
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, SEQUENCE, FileRows, Merge, RowFile, SinkRun
from lanemq.pipelines.sinks.postgres_staging import Copied, CopyTask
from lanemq.spark import recommended

SCHEMA = StructType(
    [StructField(name, LongType(), False) for name in ("id", SEQUENCE)] + [StructField(DELETED, BooleanType(), False)]
)
FILES, ROWS = 4, 25


class DyingCopy(CopyTask):
    def copy(self, files: Sequence[RowFile]) -> Copied:
        copied = super().copy(files)
        mark = Path(f"{files[0].path}.died")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return copied


class DyingTasks(PostgresSink):
    def _run_tasks(self, task: CopyTask, lists: Sequence[Sequence[RowFile]]) -> list[Copied | LaneError]:
        dying = DyingCopy(*(getattr(task, field.name) for field in fields(task)))
        return super()._run_tasks(dying, lists)

    def _apply_staged(self, connection: Any, staging: Any, *args: Any) -> int:
        print(connection.execute(f"SELECT count(*) FROM {staging.name}").fetchone()[0], flush=True)
        return super()._apply_staged(connection, staging, *args)


def main(dsn: str, table: str, folder: Path) -> None:
    files = []
    for at in range(FILES):
        ids = range(at * ROWS, (at + 1) * ROWS)
        path = folder / f"{at}.parquet"
        pq.write_table(pa.table({"id": ids, SEQUENCE: [1] * ROWS, DELETED: [False] * ROWS}), path)
        files.append(RowFile(str(at), path, ROWS))
    builder = recommended().master("local[2,3]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF").getOrCreate()
    sink = DyingTasks(dsn, table, staged_from=1)
    sink.open(SinkRun(spark, "retried", 1, SCHEMA, Merge(("id",))))
    assert sink.write(FileRows(SCHEMA, files), Batch("retried", 0, 1))
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
