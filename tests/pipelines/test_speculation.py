"""A cluster that runs slow tasks twice (`spark.speculation`) leaves no row twice in any sink."""

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from tests.pipelines.speculated import SLOW_KEY
from tests.pipelines.standalone import standalone
from tests.postgres_server import Server
from tests.spark.spark_driver import Query

from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.pipelines import read_iceberg, read_table
from lanemq.testing.embedded import EmbeddedBroker

KEYS, ROUNDS = 12, 40
SECONDS = 600
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark never runs both attempts of a task on one machine."""


@pytest.mark.extended
@pytest.mark.driver
@pytest.mark.timeout(2 * SECONDS)
def test_tasks_that_run_twice_leave_every_row_once_in_every_sink(
    broker: EmbeddedBroker, topic: str, tmp_path: Path, postgres: Server
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-results", 4, ordered=True)
    with Producer(broker.address) as producer:
        for number in range(ROUNDS):
            for key in range(KEYS):
                producer.send(topic, {"n": number}, key=f"k{key}")
    settings = {
        "FOLDER": str(tmp_path),
        "SERVERS": broker.address,
        "TOPIC": topic,
        "RESULTS": f"{topic}-results",
        "DSN": postgres.dsn,
    }
    with standalone(tmp_path / "cluster", hosts=HOSTS) as cluster:
        settings["MASTER"] = cluster.master
        env = os.environ | {f"LANEMQ_PROOF_{name}": value for name, value in settings.items()}
        env["PYSPARK_PYTHON"] = sys.executable
        command = [sys.executable, "-m", "tests.pipelines.speculated"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]

    assert speculated(tmp_path / "events") > 0, "no task ran twice, so nothing was proved"
    found = {
        "delta": read_table(tmp_path / "delta").to_pylist(),
        "parquet": ds.dataset(tmp_path / "parquet", format="parquet").to_table().to_pylist(),
        "iceberg": read_iceberg("shop.rows", warehouse=tmp_path / "lake").to_pylist(),
        "sqlite": rows_of(sqlite3.connect(tmp_path / "rows.db"), "rows"),
        "postgres": rows_of(psycopg.connect(postgres.dsn), "speculated"),
        "topic": messages_of(broker, f"{topic}-results"),
    }
    wanted = Counter((f"k{key}", number, number + 1) for key in range(KEYS) for number in range(ROUNDS))
    for name, rows in found.items():
        assert Counter((row["key"], row["n"], row["count"]) for row in rows) == wanted, name
        assert any(row["attempt"] for row in rows if row["key"] == SLOW_KEY), f"{name}: the second attempt counted"


def speculated(folder: Path) -> int:
    """Tasks that Spark started although another attempt of them was running."""
    lines = [line for file in folder.iterdir() if file.is_file() for line in file.read_text().splitlines()]
    starts = (json.loads(line) for line in lines if '"SparkListenerTaskStart"' in line)
    return sum(each["Task Info"]["Speculative"] for each in starts)


def rows_of(connection: Any, table: str) -> list[dict[str, Any]]:
    with closing(connection):
        found = connection.execute(f"SELECT key, n, count, attempt FROM {table}").fetchall()
    return [dict(zip(("key", "n", "count", "attempt"), row, strict=True)) for row in found]


def messages_of(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    with Query(servers=broker.address, topic=topic, startingOffsets="earliest") as query:
        return [json.loads(row["value"]) for row in query.everything()]
