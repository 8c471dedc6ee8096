"""The negative control: code without a pipeline, with the same topic, shuffle and kill, and rows appended by hand."""

import os
from pathlib import Path

from pyspark.sql import DataFrame

from lanemq.pipelines.batches import Batch, batch_number
from lanemq.spark import recommended, register
from lanemq.testing.dying import KillPoint

FOLDER = Path(os.environ["LANEMQ_PROOF_FOLDER"])
KILL_POINT = KillPoint(FOLDER / "seen")


def append(messages: DataFrame, number: int) -> None:
    batch = Batch("naive", batch_number(number), os.getpid())
    KILL_POINT.record(batch)
    rows = messages.repartition(3).selectExpr("cast(value as string) value")
    rows.write.mode("append").parquet(str(FOLDER / "table"))
    KILL_POINT.reached("sink", batch)


def main() -> None:
    settings = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
    }
    builder = recommended().master(os.environ["LANEMQ_PROOF_MASTER"])
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    options = {
        "servers": os.environ["LANEMQ_PROOF_SERVERS"],
        "topic": os.environ["LANEMQ_PROOF_TOPIC"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": os.environ["LANEMQ_PROOF_BATCH"],
    }
    writer = spark.readStream.format("lanemq").options(**options).load().writeStream.foreachBatch(append)
    query = writer.option("checkpointLocation", str(FOLDER / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
