"""The driver is killed at every step of a batch, and the tables are as if it had not been."""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.files.roots import SERVER
from tests.files.servers import BUCKET, s3a_settings

from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.model.queue import MessageQueue
from lanemq.pipelines import read_table
from lanemq.pipelines.batches import Batch
from lanemq.testing.dying import STEPS, KillPoint
from lanemq.testing.embedded import EmbeddedBroker

MESSAGES, KEYS = 140, 7
SECONDS = 600
KINDS = ("local", *(pytest.param(kind, marks=SERVER) for kind in ("hdfs", "s3")))


class Runs:
    """Runs of one checkpoint, each a separate process."""

    def __init__(
        self, folder: Path, place: str, settings: Mapping[str, str], broker: EmbeddedBroker, topic: str
    ) -> None:
        """`place`: where checkpoint and tables are. `settings`: of Spark."""
        self.folder = folder
        self.place = place
        self._count = 0
        self._env = {"FOLDER": str(folder), "PLACE": place, "SERVERS": broker.address, "TOPIC": topic}
        self._settings = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]

    def run(self, die_at: str = "", *, group: str = "") -> int:
        """Run the pipeline; returns its exit code. Only a group member waits for the leases of the run before."""
        self._count += 1
        settings = {f"LANEMQ_PROOF_{name}": value for name, value in self._env.items()}
        settings["LANEMQ_PROOF_GROUP"] = group
        env = os.environ | settings | {"LANEMQ_PROOF_RUN": str(self._count), "LANEMQ_DIE_AT": die_at}
        command = [
            sys.executable, "-m", "lanemq.cli.main", "pipeline", "run", str(Path(__file__).with_name("killed.py")),
            "--once", "--master", "local[2]", "--conf", "spark.ui.enabled=false", *self._settings,
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as out:
            return subprocess.run(command, stdout=out, stderr=out, env=env, timeout=SECONDS, check=False).returncode

    def runs_of(self) -> dict[int, set[int]]:
        """The runs that processed each batch."""
        found: dict[int, set[int]] = defaultdict(set)
        for line in (self.folder / "seen").read_text().splitlines():
            batch, epoch = map(int, line.split())
            found[batch].add(epoch)
        return found

    def log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


@pytest.fixture(params=KINDS)
def runs(
    request: pytest.FixtureRequest,
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Runs:
    with Producer(broker.address) as producer:
        for number in range(MESSAGES):
            producer.send(topic, {"n": number}, key=f"k{number % KEYS}")
    place, settings = str(tmp_path), dict[str, str]()
    if request.param == "hdfs":
        place = f"{request.getfixturevalue('hdfs')}/{topic}"
    elif request.param == "s3":
        variables = request.getfixturevalue("s3")
        place, settings = f"s3a://{BUCKET}/{topic}", s3a_settings(variables)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
    return Runs(tmp_path, place, settings, broker, topic)


@pytest.mark.slow
@pytest.mark.driver
@pytest.mark.timeout(6 * SECONDS)
def test_a_driver_killed_at_any_step_leaves_every_message_in_one_table_once(
    runs: Runs, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """The step's answers differ between two runs, so a batch that is decided twice is visible."""
    for number, step in enumerate(STEPS):
        member = group if step == "recorded" else ""
        assert runs.run(f"{step}:{number}", group=member) == -signal.SIGKILL, runs.log()
    assert runs.run(group=group) == 0, runs.log()

    seen = runs.runs_of()
    assert [len(seen[number]) for number in range(len(STEPS))] == [2, 2, 2, 2, 1], "all but the last were repeated"
    rows = read_table(f"{runs.place}/table").to_pylist()
    dead_letters = [int(value.decode().strip('{"n: }')) for value in dead_values(f"{runs.place}/dead")]
    assert sorted([row["n"] for row in rows] + dead_letters) == list(range(MESSAGES)), "in one of them, once"
    assert dead_letters
    assert all(number % 3 == 0 for number in dead_letters)
    for key in range(KEYS):
        mine = sorted((row for row in rows if row["key"] == f"k{key}"), key=lambda row: int(row["n"]))
        assert [row["count"] for row in mine] == list(range(1, len(mine) + 1)), "the state is that of the rows"
    with Admin(broker.address) as admin:
        name = admin.describe_topic(topic).queues[0].queue.broker
        offsets = [admin.committed(group, MessageQueue(topic, name, queue)) for queue in range(2)]
    assert sum(offset or 0 for offset in offsets) == MESSAGES


def dead_values(table: str) -> list[bytes]:
    """The bodies of the dead letters."""
    values: list[bytes] = read_table(table)["value"].to_pylist()
    return values


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the steps are run, state, dead_letters, sink, recorded"):
        KillPoint(tmp_path / "seen", "somewhere:1")
    assert not KillPoint(tmp_path / "seen", "").is_at("run", Batch("q", 0, 1))
