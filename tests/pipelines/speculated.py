"""Runs a pipeline into each sink on a cluster that speculates, for `test_speculation.py`; prints a JSON line for each.

The first attempt of the task that has the slow key waits, so Spark starts a second one on the other worker.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from lanemq.pipelines import (
    DeltaSink,
    Event,
    IcebergSink,
    ParquetSink,
    Pipeline,
    PostgresSink,
    SqliteSink,
    Topic,
    TopicSink,
    Transitions,
    start,
)
from lanemq.spark import recommended

SLOW_KEY, SLOW_SECONDS = "k0", 20.0
OUTPUTS = "key string, n long, count long, attempt long"
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.2",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.cores.max": "4",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def step(state: int | None, event: Event) -> tuple[int, list[dict[str, Any]]]:
    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    if event.key == SLOW_KEY and event.value["n"] == 0 and attempt == 0:
        time.sleep(SLOW_SECONDS)
    count = (state or 0) + 1
    return count, [{"key": event.key, "n": event.value["n"], "count": count, "attempt": attempt}]


def sinks(folder: Path, servers: str, dsn: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "delta": DeltaSink(folder / "delta"),
        "parquet": ParquetSink(folder / "parquet"),
        "sqlite": SqliteSink(folder / "rows.db", "rows"),
        "topic": TopicSink(servers, os.environ["LANEMQ_PROOF_RESULTS"], key="key"),
        "iceberg": IcebergSink("shop.rows", warehouse=folder / "lake"),
    }
    if dsn:
        found["postgres"] = PostgresSink(dsn, "speculated", copies=4, staged_from=1)
    return found


def main() -> None:
    folder, servers = Path(os.environ["LANEMQ_PROOF_FOLDER"]), os.environ["LANEMQ_PROOF_SERVERS"]
    (folder / "events").mkdir()
    builder = recommended().master(os.environ["LANEMQ_PROOF_MASTER"])
    own = {"spark.eventLog.dir": f"file://{folder}/events", "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path)}
    for name, value in (SETTINGS | own).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    source = Topic(servers, os.environ["LANEMQ_PROOF_TOPIC"], startingOffsets="earliest")
    for name, sink in sinks(folder, servers, os.environ["LANEMQ_PROOF_DSN"]).items():
        stage = Transitions(step=step, outputs=OUTPUTS)
        with start(Pipeline(name, source, stage, sink, folder / f"checkpoint-{name}"), spark, once=True) as running:
            running.await_end(300)
            assert running.progress is not None
            print(json.dumps({"sink": name, "rows": running.progress.applied.outputs}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
