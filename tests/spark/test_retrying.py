"""Retrying: frequent attempts, few log lines."""

import logging

import pytest
from tests.spark.read.test_partition_reader import HandClock

from lanemq.model.errors import ConnectFailed, InvalidOption
from lanemq.model.units import Millis
from lanemq.spark.retrying import Retrying


class Away:
    """A broker that answers after some time."""

    def __init__(self, clock: HandClock, until: int) -> None:
        self.clock = clock
        self.until = until
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.clock.at < self.until:
            raise ConnectFailed("connection refused")
        return "answer"


def run(until: int, limit: int, **more: str) -> Away:
    clock = HandClock()
    broker = Away(clock, until)
    assert Retrying(Millis(limit), clock, clock.pause, **more).call(broker, "topic orders") == "answer"
    return broker


def test_log_lines_become_rare_while_attempts_stay_frequent(caplog: pytest.LogCaptureFixture) -> None:
    """A line every two seconds would hide everything else."""
    broker = run(until=600_000, limit=900_000)
    *away, back = caplog.messages
    assert len(away) == 14, "at once, after 2, 6, 14, 30, 62, 122 seconds, then every minute"
    assert back == "topic orders: answered again after 601.8 s"
    assert broker.asked > 290


def test_the_hint_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    run(until=10_000, limit=60_000, hint="Look at it with: lanemq topic list")
    assert [("lanemq topic list" in line) for line in caplog.messages] == [True, False, False, False]


def test_an_attempt_that_succeeds_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run(until=0, limit=0)
    assert caplog.messages == []


def test_the_error_is_raised_after_the_limit_or_if_it_is_not_retriable(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConnectFailed):
        run(until=9_000, limit=5_000)
    assert caplog.messages[-1].startswith("topic orders: gave up after 5.")

    def wrong() -> None:
        raise InvalidOption("x")

    with pytest.raises(InvalidOption):
        Retrying(Millis(5_000)).call(wrong, "x")
