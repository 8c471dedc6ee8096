"""Durations mean the same wherever a user writes them."""

import pytest

from lanemq.errors import InvalidOption
from lanemq.model.units import parse_duration, to_millis
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


def test_a_spark_option_without_a_unit_is_seconds() -> None:
    given = {"servers": "h:1", "topic": "t", "brokerWait": "30", "maxTriggerDelay": "2m"}
    options = parse_read_options(given, streaming=True)
    assert (options.wait, options.max_delay) == (to_millis(30), to_millis(120))
