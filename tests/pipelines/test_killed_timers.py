"""The driver of a pipeline with timers and an Iceberg table is killed at every step of batches and retry passes."""

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from lanemq import Producer
from lanemq.pipelines import read_iceberg
from lanemq.testing.embedded import EmbeddedBroker

MESSAGES, KEYS = 140, 7
SECONDS = 600
DEATHS = (
    "run:1",
    "pass-state:0",
    "pass-staged:0",
    "pass-sink:0",
    "state:1",
    "staged:1",
    "sink:1",
    "recorded:2",
)
"""In the order in which the runs meet them: a start begins with the retry pass that is due after the last batch."""


def run(folder: Path, servers: str, topic: str, die_at: str = "") -> int:
    settings = {"FOLDER": str(folder), "SERVERS": servers, "TOPIC": topic}
    env = os.environ | {f"LANEMQ_PROOF_{name}": value for name, value in settings.items()} | {"LANEMQ_DIE_AT": die_at}
    command = [sys.executable, "-m", "lanemq.cli.main", "pipeline", "run"]
    command += [str(Path(__file__).with_name("killed_timers.py")), "--once", "--master", "local[2]"]
    with (folder / "log").open("ab") as out:
        done = subprocess.run(
            [*command, "--conf", "spark.ui.enabled=false"],
            stdout=out, stderr=out, env=env, timeout=SECONDS, check=False,
        )  # fmt: skip
    return done.returncode


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.driver
@pytest.mark.timeout(6 * SECONDS)
def test_a_driver_killed_at_any_step_calls_every_timer_once_and_leaves_every_row_once_in_iceberg(
    broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEMQ_PROOF_FOLDER", str(tmp_path))
    monkeypatch.setenv("LANEMQ_PROOF_SERVERS", broker.address)
    monkeypatch.setenv("LANEMQ_PROOF_TOPIC", topic)
    from tests.pipelines.killed_timers import BEGIN, EVERY, SILENCE_SECONDS

    queues: dict[int, list[int]] = {}
    with Producer(broker.address) as producer:
        for number in range(MESSAGES):
            at = (BEGIN + timedelta(seconds=number)).isoformat()
            sent = producer.send(topic, {"n": number, "at": at}, key=f"k{number % KEYS}")
            queues.setdefault(sent.queue.queue_id, []).append(number)
    for death in DEATHS:
        assert run(tmp_path, broker.address, topic, death) == -signal.SIGKILL, (death, log(tmp_path))
    assert run(tmp_path, broker.address, topic) == 0, log(tmp_path)

    rows = read_iceberg("shop.rows", warehouse=tmp_path / "lake").to_pylist()
    called = {what: Counter(row["n"] for row in rows if row["what"] == what) for what in ("event", "silence", "wall")}
    assert called["event"] == Counter(range(MESSAGES))
    reached = [n for numbers in queues.values() for n in numbers if max(numbers) >= n + SILENCE_SECONDS]
    assert called["silence"] == Counter(reached), "each once, unless the time of the key's queue has not come"
    assert called["wall"] == Counter(range(0, MESSAGES, EVERY))
    for row in rows:
        if row["what"] in ("event", "silence"):
            assert row["count"] == row["n"] // KEYS + 1, "the state is that of the rows"


def log(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]
