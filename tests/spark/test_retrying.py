"""Waiting for a broker: frequent attempts, few lines."""

import logging

import pytest
from tests.spark.read.test_partition_reader import HandClock

from lanemq.model.errors import ConnectFailed, InvalidOption
from lanemq.model.units import Millis
from lanemq.spark.retrying import Retrying


class Away:
    """A broker that answers from some moment on."""

    def __init__(self, clock: HandClock, until: int) -> None:
        self.clock = clock
        self.until = until
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.clock.at < self.until:
            raise ConnectFailed("nobody listens")
        return "answer"


def run(until: int, limit: int, **more: str) -> Away:
    clock = HandClock()
    broker = Away(clock, until)
    assert Retrying(Millis(limit), clock, clock.pause, **more).run(broker, "topic orders") == "answer"
    return broker


def test_lines_become_rare_and_attempts_do_not(caplog: pytest.LogCaptureFixture) -> None:
    """A line every two seconds for ten minutes hides everything else; a broker that is back should not wait for us."""
    broker = run(until=600_000, limit=900_000)
    *away, back = caplog.messages
    assert len(away) == 14, "at once, after 2, 6, 14, 30, 62, 122 seconds, then every minute"
    assert back == "topic orders: answered again after 601.8 s"
    assert broker.asked > 290


def test_what_to_look_at_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    run(until=10_000, limit=60_000, hint="Look at it with: lanemq topic list")
    assert [("lanemq topic list" in line) for line in caplog.messages] == [True, False, False, False]


def test_nothing_is_said_about_what_works_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run(until=0, limit=0)
    assert caplog.messages == []


def test_the_end_of_patience_and_other_errors_are_raised(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConnectFailed):
        run(until=9_000, limit=5_000)
    assert caplog.messages[-1].startswith("topic orders: gave up after 5.")

    def wrong() -> None:
        raise InvalidOption("x")

    with pytest.raises(InvalidOption):
        Retrying(Millis(5_000)).run(wrong, "x")
