"""Promise 9: nothing is lost silently."""

import shutil
from pathlib import Path

import pytest
from tests.chaos.roles import FOUR_QUEUES
from tests.chaos.system import TOPIC

from lanemq.broker.config import BrokerOptions
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.producer.producer import Producer
from lanemq.log import recovery
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

COUNT = 10
HURT = 4


@pytest.fixture
def damaged(tmp_path: Path) -> BrokerOptions:
    """A broker's folder as a crash left it, with one bit of message 4 flipped since."""
    options = BrokerOptions(tmp_path / "live", listen=Address("127.0.0.1", 0))
    with EmbeddedBroker(options) as broker:
        with Producer(broker.address, create=FOUR_QUEUES) as producer:
            for number in range(COUNT):
                producer.send(TOPIC, f"message {number}", key="k", queue=0)
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    log = next((tmp_path / "crashed" / "log").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[data.index(f"message {HURT}".encode())] ^= 1
    log.write_bytes(data)
    return BrokerOptions(tmp_path / "crashed", listen=Address("127.0.0.1", 0))


def read_all(options: BrokerOptions, expected: int) -> list[str]:
    found: list[str] = []
    with (
        EmbeddedBroker(options) as broker,
        Consumer(broker.address, group="g", topics=[TOPIC]) as consumer,
    ):
        while len(found) < expected and (message := consumer.poll(timeout=60)) is not None:
            found.append(message.value())
            consumer.done(message)
    return found


def test_a_damaged_record_is_reported_and_those_behind_it_are_delivered(
    damaged: BrokerOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """ "A damaged record is reported and quarantined; intact records behind it stay readable.\""""
    expected = [f"message {number}" for number in range(COUNT) if number != HURT]
    assert read_all(damaged, len(expected)) == expected
    reports = [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]
    assert any("the log is damaged at" in text for text in reports), reports
    assert any(f"offset {HURT}" in text for text in reports), reports


def test_a_recovery_that_stops_at_the_first_damage_loses_the_rest(
    damaged: BrokerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: many logs are cut at the first damaged record."""
    monkeypatch.setattr(recovery, "_next_record", lambda log, position, end: end)
    assert read_all(damaged, HURT) == [f"message {number}" for number in range(HURT)]
    log = next((damaged.data / "log").glob("*.log"))
    assert f"message {COUNT - 1}".encode() not in log.read_bytes()
