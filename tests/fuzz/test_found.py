"""What fuzzing has found, each input by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.running import Running
from tests.broker.talk import lock_body

from lanemq.wire.codes import RequestCode, ResponseCode

ODD_NUMBERS = ["\u00b2", "--5", "9" * 5000, "\u0663"]
"""Digits to Python, or almost; not all of them are numbers."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "data")
    yield running
    running.stop()


@pytest.mark.parametrize("text", ODD_NUMBERS)
def test_a_delay_that_is_no_number_is_none(broker: Running, text: str) -> None:
    """It was an internal error, with a traceback in the broker's log for every send."""
    talk = broker.talk()
    assert talk.send("T", properties={"DELAY": text}).code == ResponseCode.SUCCESS
    assert talk.bounds("T") == (0, 1), "stored at once"


@pytest.mark.parametrize("text", ODD_NUMBERS)
def test_an_epoch_that_is_no_number_is_none(broker: Running, text: str) -> None:
    talk = broker.talk()
    talk.create("T")
    reply = talk.ask(RequestCode.UNLOCK_BATCH_MQ, {"laneEpoch": text}, lock_body("c", "T", (0,), "g"))
    assert reply.code == ResponseCode.SUCCESS, reply
