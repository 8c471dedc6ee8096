"""`lanemq backup`, `restore` and `doctor` on real data folders."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lanemq.broker.config import BrokerOptions
from lanemq.cli.main import main
from lanemq.cli.server import doctor
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.log.examination import Examined
from lanemq.log.state import VERSION
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker


def lanemq(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def broker_on(data: Path) -> EmbeddedBroker:
    return EmbeddedBroker(BrokerOptions(data, listen=Address("127.0.0.1", 0)))


def findings(data: Path, *flags: str) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(lanemq("doctor", "--data", str(data), "--json", *flags).stdout)}


def test_a_folder_is_examined_backed_up_and_restored(tmp_path: Path) -> None:
    data, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    with broker_on(data) as broker, Producer(broker.address, create=[NewTopic("orders", 2)]) as producer:
        producer.send("orders", "first", key="k")
        assert "runs as process" in findings(data)["broker"]["text"]
        made = lanemq("backup", str(copy), "--data", str(data))
        assert made.exit_code == 0, made.output
    shown = findings(data, "--scan")
    assert {each["result"] for each in shown.values()} <= {"ok", "warning"}
    assert "1 record read" in shown["records"]["text"]
    assert lanemq("restore", str(copy), "--data", str(restored)).exit_code == 0
    assert "1 topic" in findings(restored)["state"]["text"]
    with broker_on(restored) as broker, Producer(broker.address) as producer:
        assert producer.send("orders", "second", key="k").offset == 1
    again = lanemq("restore", str(copy), "--data", str(restored))
    assert again.exit_code == 1
    assert "is not empty" in again.output


def test_damage_and_lost_state_are_problems(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker_on(data) as broker, Producer(broker.address, create=[NewTopic("orders", 1)]) as producer:
        for number in range(3):
            producer.send("orders", f"message {number}", key="k")
    (segment,) = [path for path in (data / "log").iterdir() if path.stat().st_size]
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"message 1", b"massage 1"))
    assert findings(data)["records"]["result"] == "ok", "found only by reading"
    assert findings(data, "--scan")["records"]["result"] == "PROBLEM"
    (data / "state.db").unlink()
    result = lanemq("doctor", "--data", str(data))
    assert result.exit_code == 1
    assert "state.db is missing" in result.output
    assert "does not exist" in lanemq("doctor", "--data", str(tmp_path / "nowhere")).output


@pytest.mark.parametrize(
    ("finding", "result"),
    [
        (doctor.limits_finding((1024, 1024)), "warning"),
        (doctor.limits_finding((1024, 1_000_000)), "ok"),
        (doctor.limits_finding((-1, -1)), "ok"),
        (doctor.space_finding(10, 2**40), "PROBLEM"),
        (doctor.space_finding(2**39, 2**40), "ok"),
        (doctor.layout_finding(Examined(layout=VERSION + 1)), "PROBLEM"),
        (doctor.layout_finding(Examined(layout=1)), "ok"),
        (doctor.clock_finding(Examined(last_store_time=10_000), now=5_000), "PROBLEM"),
        (doctor.clock_finding(Examined(last_store_time=10_000), now=10_000), "ok"),
    ],
)
def test_results(finding: doctor.Finding | None, result: str) -> None:
    assert finding is not None
    assert finding.result == result
