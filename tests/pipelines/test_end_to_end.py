"""From producer to table while an executor and the driver are killed, compared with naive code.

On a standalone cluster: master, worker, executors and driver are separate processes, and the cluster outlives drivers.

`LANEMQ_PROOF_EVENTS=1000000 pytest tests/pipelines/test_end_to_end.py` is the same at full size.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.pipelines.standalone import Cluster, standalone
from tests.quick_spark import JAVA_OPTIONS

from lanemq.client.producer.producer import Producer
from lanemq.testing.demo.result import compare, read_rows, rows_in
from lanemq.testing.dying import VARIABLE
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.order_life import OrderEvent, order_events, order_truth
from lanemq.testing.processes import executors

EVENTS = int(os.environ.get("LANEMQ_PROOF_EVENTS", "20000"))
PATIENCE_SECONDS = max(900, EVENTS // 1_000)
BATCHES = 8
KILLED_IN = 4
KILL_AT = f"sink:{KILLED_IN}"
"""The driver is killed right after the sink's commit of this batch: Spark has not recorded it and repeats it."""


def send_all(address: str, topic: str, events: list[OrderEvent]) -> None:
    with Producer(address) as producer:
        for first in range(0, len(events), 5_000):
            sent = [
                producer.submit(topic, msgspec.to_builtins(event), key=event.order)
                for event in events[first : first + 5_000]
            ]
            for one in sent:
                one.result()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by the tests, because a cluster takes longer to start than the tests to run."""
    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@contextmanager
def pipeline_process(folder: Path, master: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the pipeline as a user does, on two executors."""
    command = [
        sys.executable, "-m", "lanemq.cli.main", "pipeline", "run", str(Path(__file__).with_name("end_to_end.py")),
        "--master", master, "--json", "--conf", "spark.executor.cores=1", "--conf", "spark.executor.memory=512m",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=4",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}",
    ]  # fmt: skip
    with (folder / "pipeline.log").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: str, is_true: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"waiting for {what}, the pipeline ended: {process.poll()}\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


@pytest.fixture
def proof(
    broker: EmbeddedBroker, topic: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[OrderEvent]:
    """Send all events; returns them. Both programs read the topic and their folder from the environment."""
    events = order_events(max(100, EVENTS // 5 - 500), seed=14, repeats=0.05)
    settings = {
        "FOLDER": str(tmp_path),
        "SERVERS": broker.address,
        "TOPIC": topic,
        "BATCH": str(len(events) // BATCHES),
    }
    settings["MASTER"] = cluster.master
    for name, value in settings.items():
        monkeypatch.setenv(f"LANEMQ_PROOF_{name}", value)
    send_all(broker.address, topic, events)
    return events


def repeated_batches(folder: Path) -> set[int]:
    """Batches that more than one run processed."""
    runs: dict[int, set[int]] = defaultdict(set)
    for line in (folder / "seen").read_text().splitlines():
        batch, run = map(int, line.split())
        runs[batch].add(run)
    return {batch for batch, found in runs.items() if len(found) > 1}


@pytest.mark.slow
@pytest.mark.driver
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_every_transition_is_in_the_table_once_and_in_order_although_executor_and_driver_are_killed(
    proof: list[OrderEvent], cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = order_truth(proof)
    wanted = sum(order.events for order in truth.values())
    table, log = tmp_path / "table", tmp_path / "pipeline.log"
    monkeypatch.setenv(VARIABLE, KILL_AT)
    with pipeline_process(tmp_path, cluster.master) as driver:
        wait_for("a quarter of the rows", lambda: rows_in(table) >= wanted // 4, driver, log)
        victims = executors(cluster.worker)
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        assert driver.wait(PATIENCE_SECONDS) == -signal.SIGKILL, log.read_text()[-3000:]
    assert rows_in(table) < wanted, "the driver was killed too late to prove anything"
    monkeypatch.delenv(VARIABLE)
    with pipeline_process(tmp_path, cluster.master) as driver:
        wait_for("all rows", lambda: rows_in(table) >= wanted, driver, log)
        driver.terminate()
        assert driver.wait(PATIENCE_SECONDS) == 0, log.read_text()[-3000:]
    assert KILLED_IN in repeated_batches(tmp_path), "no batch came twice, so nothing was proved"
    verdict = compare(read_rows(table), truth)
    assert verdict.wrong == []
    assert verdict.rows == wanted


@pytest.mark.extended
@pytest.mark.driver
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_naive_code_killed_at_the_same_point_writes_a_batch_twice(
    proof: list[OrderEvent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the same topic, cluster, shuffle, batches and kill of the driver.

    The test below is the same in a small form, for `make test`.
    """

    def run() -> int:
        program = [sys.executable, str(Path(__file__).with_name("naive.py"))]
        with (tmp_path / "naive.log").open("ab") as out:
            return subprocess.run(program, stdout=out, stderr=out, timeout=PATIENCE_SECONDS, check=False).returncode

    monkeypatch.setenv(VARIABLE, KILL_AT)
    assert run() == -signal.SIGKILL, (tmp_path / "naive.log").read_text()[-3000:]
    monkeypatch.delenv(VARIABLE)
    assert run() == 0, (tmp_path / "naive.log").read_text()[-3000:]
    assert repeated_batches(tmp_path) == {KILLED_IN}
    found = pq.read_table(tmp_path / "table", columns=["value"])["value"].to_pylist()
    surplus = len(found) - len(proof)
    assert surplus >= len(proof) // BATCHES - 1, "naive code got it right, so the test above proves nothing"
    rows = [msgspec.json.decode(value, type=OrderEvent) for value in found]
    assert {(row.order, row.seq) for row in rows} == {(event.order, event.seq) for event in proof}


def test_naive_appending_from_foreach_batch_writes_a_batch_twice(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """The negative control in a small form: a driver that dies after writing a batch, before Spark's record of it."""
    events = order_events(60, seed=3, repeats=0.0)
    send_all(broker.address, topic, events)
    crashes = iter([False, True])
    table = tmp_path / "table"

    def naive(rows: Any, batch: int) -> None:
        rows.selectExpr("cast(value as string) value").write.mode("append").parquet(str(table))
        if next(crashes, False):
            raise RuntimeError("the driver dies here")

    def run() -> None:
        options = {"servers": broker.address, "topic": topic, "startingOffsets": "earliest"}
        reader = spark.readStream.format("lanemq").options(**options, maxOffsetsPerTrigger=str(len(events) // 3))
        writer = reader.load().writeStream.foreachBatch(naive).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(Exception, match="the driver dies here"):
        run()
    run()
    found = [msgspec.json.decode(row.value, type=OrderEvent) for row in spark.read.parquet(str(table)).collect()]
    twice = [key for key, count in Counter((event.order, event.seq) for event in found).items() if count > 1]
    assert twice, "naive code got it right, so the test above proves nothing"
