"""Inputs with which fuzzing has found a fault."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.raw_client import lock_body
from tests.broker.running import RunningBroker

from lanemq.wire.codes import RequestCode, ResponseCode

ODD_NUMBERS = ["\u00b2", "--5", "9" * 5000, "\u0663"]
"""Texts of characters that Python calls digits, or similar; not all of them are numbers."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path / "data")
    yield running
    running.stop()


@pytest.mark.parametrize("text", ODD_NUMBERS)
def test_a_delay_that_is_no_number_is_none(broker: RunningBroker, text: str) -> None:
    """It must not be an internal error."""
    raw = broker.connect()
    assert raw.send("T", properties={"DELAY": text}).code == ResponseCode.SUCCESS
    assert raw.bounds("T") == (0, 1), "stored at once"


@pytest.mark.parametrize("text", ODD_NUMBERS)
def test_an_epoch_that_is_no_number_is_none(broker: RunningBroker, text: str) -> None:
    raw = broker.connect()
    raw.create("T")
    reply = raw.ask(RequestCode.UNLOCK_BATCH_MQ, {"laneEpoch": text}, lock_body("c", "T", (0,), "g"))
    assert reply.code == ResponseCode.SUCCESS, reply
