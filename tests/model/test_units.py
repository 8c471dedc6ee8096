"""Durations mean the same wherever a user writes them."""

from datetime import timedelta

import pytest

from lanemq import Backoff, HoldQueue, LeaseTimes, Retry
from lanemq.core.consuming.retry_policy import next_attempt
from lanemq.errors import InvalidOption
from lanemq.model.units import parse_duration, to_millis
from lanemq.pipelines import DeltaSink, Hold, SqliteSink, StateLimits
from lanemq.pipelines.declare.options import build
from lanemq.spark.options import parse_read_options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), (" 90 s ", 90), ("10m", 600), ("72h", 259_200), ("3d", 259_200), ("500ms", 0.5)],
)
def test_a_text_is_seconds_unless_it_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "soon", "5 minutes", "1e3", "s"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a duration: write seconds"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["99999999d", "9" * 400])
def test_a_text_of_more_than_a_hundred_years_is_refused_and_not_shown_in_full(text: str) -> None:
    with pytest.raises(InvalidOption, match="is too long a duration: at most 36500d") as found:
        parse_duration(text)
    assert len(str(found.value)) < 200


def test_a_spark_option_without_a_unit_is_seconds() -> None:
    given = {"servers": "h:1", "topic": "t", "brokerWait": "30", "maxTriggerDelay": "2m"}
    options = parse_read_options(given, streaming=True)
    assert (options.wait, options.max_delay) == (to_millis(30), to_millis(120))


def test_a_duration_may_be_a_timedelta() -> None:
    second = timedelta(seconds=1)
    assert to_millis(second) == to_millis(1) == 1000
    assert Backoff(first=second, max=timedelta(minutes=1)).delay(3) == 4000
    assert next_attempt(HoldQueue(suspend=2 * second), 1).delay == 2000
    assert Retry(2 * second).after == 2.0
    times = LeaseTimes(second, 3 * second, 5 * second, timedelta(milliseconds=800), timedelta(milliseconds=250))
    assert (times.renew_every_ms, times.broker_lease_ms, times.keep_alive_timeout_ms) == (1000, 5000, 800)


def test_an_error_about_a_timedelta_names_its_seconds() -> None:
    with pytest.raises(InvalidOption, match=r"Backoff\(first=60, factor=2, max=30\)"):
        Backoff(first=timedelta(minutes=1))
    with pytest.raises(InvalidOption, match=r"renew_every \(7 s\) must be below client_lease \(3 s\)"):
        LeaseTimes(timedelta(seconds=7), 3, 5)


def test_what_is_neither_a_number_nor_a_timedelta_is_refused() -> None:
    with pytest.raises(InvalidOption, match="'5' is not a duration: use a number of seconds, or a timedelta"):
        Backoff(first="5")  # type: ignore[arg-type]


def test_a_file_may_give_a_duration_as_text() -> None:
    assert build("limits.", StateLimits, {"expire_after": "30m"}).expire_after_ms == 1_800_000
    assert build("limits.", StateLimits, {"expire_after": 90}).expire_after_ms == 90_000


def test_pipelines_take_a_timedelta() -> None:
    hour = timedelta(hours=1)
    assert Hold(first=hour, max=2 * hour).backoff().delay(3) == 7_200_000
    limits = StateLimits(expire_after=hour, forget_numbers_after=2 * hour)
    assert (limits.expire_after_ms, limits.forget_numbers_after_ms) == (3_600_000, 7_200_000)
    with pytest.raises(InvalidOption, match=r"forget_numbers_after=3600.0\): use 7200.0 seconds or more"):
        StateLimits(expire_after=2 * hour, forget_numbers_after=hour)
    DeltaSink("t", keep_files=hour)
    SqliteSink("f.db", "t", wait=hour)
