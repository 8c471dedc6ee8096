"""Executors whose Python has nothing installed run a pipeline with the archive of `lanemq spark pack`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipelines.standalone import Cluster, standalone

from lanemq.client.producer.producer import Producer
from lanemq.pipelines import read_table
from lanemq.spark.packing import pack
from lanemq.testing.embedded import EmbeddedBroker

PATIENCE_SECONDS = 900
PIPELINE = """
[pipeline]
name = "packed"
checkpoint = "{folder}/checkpoint"

[source]
servers = "{servers}"
topic = "{topic}"

[stage]
kind = "last_state"
schema = "id bigint, name string"
keys = ["id"]

[sink]
kind = "delta"
path = "{folder}/table"
"""


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose `python3` has no packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with standalone(tmp_path / "cluster", f"{tmp_path}/bare/bin:/usr/bin:/bin") as running:
        yield running


def run(folder: Path, master: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    given = {"spark.pyspark.python": "python3", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    given |= {"spark.executor.memory": "512m", "spark.cores.max": "1", "spark.task.maxFailures": "1"} | settings
    confs = [each for name, value in given.items() for each in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "lanemq.cli.main", "pipeline", "run", str(folder / "packed.toml"), "--once"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    plain = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | {"PATH": path}
    return subprocess.run(
        [*command, "--master", master, *confs],
        env=plain, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.extended
@pytest.mark.driver
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_executors_need_nothing_but_python_and_the_archive(
    broker: EmbeddedBroker, topic: str, bare_cluster: Cluster, tmp_path: Path
) -> None:
    with Producer(broker.address) as producer:
        for number in range(100):
            producer.send(topic, {"id": number % 40, "name": f"v{number}"}, key=str(number % 40))
    text = PIPELINE.format(folder=tmp_path, servers=broker.address, topic=topic)
    (tmp_path / "packed.toml").write_text(text)
    without = run(tmp_path, bare_cluster.master, {})
    assert without.returncode != 0, "control: without the archive the executors have no lanemq"
    assert "No module named" in without.stdout + without.stderr
    packed = pack(tmp_path / "pack.zip")
    done = run(tmp_path, bare_cluster.master, packed.settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rows = {row["id"]: row["name"] for row in read_table(tmp_path / "table").to_pylist()}
    assert rows == {key: f"v{max(n for n in range(100) if n % 40 == key)}" for key in range(40)}
