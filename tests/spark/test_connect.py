"""The source and the sink through a real Spark Connect server.

pytest -m extended tests/spark/test_connect.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.spark_driver import send

from lanemq.testing.embedded import EmbeddedBroker

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

CLIENT = """
import sys

from pyspark.sql import SparkSession

from lanemq.spark import register

address, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
options = {"servers": address, "topic": topic}
stream = spark.readStream.format("lanemq").options(**options, group="connect", startingOffsets="earliest").load()
written = stream.writeStream.format("parquet").option("path", f"{folder}/table")
query = written.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
streamed = spark.read.parquet(f"{folder}/table")
streamed.select("key", "value").write.format("lanemq").options(**options).mode("append").save()
print("result", streamed.count(), spark.read.format("lanemq").options(**options).load().count())
spark.stop()
"""


def test_a_client_of_spark_connect_streams_reads_and_writes(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """In a process of its own: a process with a Spark session cannot be a client."""
    send(broker.address, topic, range(40))
    arguments = [sys.executable, "-c", CLIENT, broker.address, topic, str(tmp_path)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ})
    assert "result 40 80" in run.stdout, run.stderr[-3000:]
