"""Data frames into a topic, in order: by `format("lanemq")`, and by a pipeline from topic to topic.

`spark_write`: a data frame of 100-byte bodies, a partition per core, written as messages. `spark_copy`: a pipeline
that reads a topic and sends it to another (`Project`, `TopicSink`), `rows` messages a batch. What arrived is read back:
every row is there once, and each key's rows are in the order of the frame. The first round or batch warms up; `value`
is the median of the others. `cpu_us` is CPU time per message of everything but the broker, `broker_us` the broker's.

    python -m benchmarks.spark_write [rows, default 400000] [rounds, default 4]
"""

import statistics
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import cpu_seconds, fill, session, timed
from lanemq.pipelines import Pipeline, Progress, Project, Topic, TopicSink, start

KEYS = 10_000


def check_order(spark: SparkSession, address: str, topic: str, rows: int) -> None:
    """Each key's numbers grow by KEYS from one offset to the next; so none is missing, repeated or overtaken."""
    read = spark.read.format("lanemq").options(servers=address, topic=topic).load()
    numbered = read.select(
        "key", "queue_id", "queue_offset", f.substring(f.col("value").cast("string"), 1, 12).cast("long").alias("n")
    )
    place = Window.partitionBy("key").orderBy("queue_offset")
    before = numbered.withColumn("before", f.lag("n").over(place))
    wrong = before.where("before is not null and n != before + 10000").count()
    queues = numbered.groupBy("key").agg(f.countDistinct("queue_id").alias("q")).where("q > 1").count()
    there = numbered.count()
    assert (wrong, queues, there) == (0, 0, rows), (
        f"{topic}: {wrong} out of order, {queues} torn keys, {there} of {rows}"
    )


def body(number: int) -> bytes:
    return b"%012d" % number + b"x" * 88


def made(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """On disk, so that only the writing is measured; all rows of a key in one partition, in order."""
    text = f.concat(f.lpad(f.col("id").cast("string"), 12, "0"), f.lit("x" * 88))
    frame = spark.range(rows).select(
        f.concat(f.lit("key-"), f.col("id") % KEYS).alias("key"), text.alias("value"), "id"
    )
    frame.repartition(2, "key").sortWithinPartitions("id").drop("id").write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def write(spark: SparkSession, broker: BrokerProcess, folder: Path, rows: int, rounds: int) -> None:
    frame, seconds, used = made(spark, folder / "frame", rows), [], []
    for number in range(rounds):
        topic = f"written-{number}"
        broker.create_topic(topic)
        before, broker_before = cpu_seconds(broker.pid), broker.cpu_seconds()
        writer = frame.write.format("lanemq").options(servers=broker.address, topic=topic).mode("append")
        seconds.append(timed(writer.save))
        used.append((cpu_seconds(broker.pid) - before, broker.cpu_seconds() - broker_before))
        check_order(spark, broker.address, topic, rows)
    rates = [rows / each for each in seconds[1:]]
    ours, brokers = (statistics.median(each[at] for each in used[1:]) / rows * 1e6 for at in (0, 1))
    more = {"best": round(max(rates)), "cpu_us": round(ours, 2), "broker_us": round(brokers, 2)}
    report("spark_write", statistics.median(rates), "rows/s", rows=rows, **more)


def copy(spark: SparkSession, broker: BrokerProcess, folder: Path, rows: int, rounds: int) -> None:
    fill(broker.address, "copied", rows * rounds, body, KEYS)
    broker.create_topic("copy")
    progress: list[Progress] = []
    pipeline = Pipeline(
        "copy",
        Topic(broker.address, "copied", maxOffsetsPerTrigger=rows),
        Project(["key", "value"]),
        TopicSink(broker.address, "copy", key="key", value="value"),
        folder / "checkpoint",
    )
    start(pipeline, spark, once=True, report=progress.append).await_end()
    check_order(spark, broker.address, "copy", rows * rounds)
    rates = [each.rate for each in progress[1:]]
    sinks = [each.messages / each.applied.seconds for each in progress[1:] if each.applied.seconds]
    more = {"best": round(max(rates)), "stage_and_sink": round(statistics.median(sinks))}
    report("spark_copy", statistics.median(rates), "rows/s", rows=rows, batches=len(rates), **more)


def main(rows: int = 400_000, rounds: int = 4) -> None:
    spark = session()
    with BrokerProcess() as broker, tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
        write(spark, broker, Path(folder), rows, rounds)
        copy(spark, broker, Path(folder), rows, rounds)
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
