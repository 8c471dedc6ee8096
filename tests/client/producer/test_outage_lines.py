"""What a producer writes to the log while its broker is away: that it is away, and that it is back."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from tests.client.fake_broker import FakeBroker, serving
from tests.client.logged_lines import warnings_of_clients
from tests.client.producer.producers import Open, sending

from lanemq.net import rate_limited_log

fake = serving()

PAUSE = threading.Event()
Outage = Callable[[FakeBroker], AbstractContextManager[None]]


def send_through(fake: FakeBroker, kind: Open, away: Outage, until: Callable[[], bool]) -> None:
    """Submits messages during an outage that lasts until the condition holds."""
    with sending(answer_timeout=300), kind(fake.address) as producer:
        producer.send("orders", 0, key="k")
        with away(fake):
            waiting = [producer.submit("orders", 1, key="k")]
            while not until():
                PAUSE.wait(0.05)
                waiting.append(producer.submit("orders", 1, key="k"))
        for future in waiting:
            future.result(60)


@pytest.mark.slow
@pytest.mark.parametrize("away", [FakeBroker.stopped, FakeBroker.asleep])
def test_an_outage_is_two_lines_of_a_producer(
    fake: FakeBroker, kind: Open, away: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = iter(range(24))
    send_through(fake, kind, away, lambda: next(rounds, None) is None)
    first, last = warnings_of_clients(caplog)
    assert first.startswith(f"{fake.address} does not answer, trying again until it does: ")
    assert last.startswith(f"{fake.address} answers again after ")


def test_without_the_limit_every_attempt_is_a_line(
    fake: FakeBroker, kind: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(rate_limited_log, "REMIND_AFTER", 0)
    send_through(fake, kind, FakeBroker.stopped, lambda: len(warnings_of_clients(caplog)) > 4)
