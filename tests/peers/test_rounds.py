"""Statistics of `make bench-peers`."""

from typing import Any

import pytest
from benchmarks.peers.rounds import Case, figures, is_better, percentile, troubles


def record(value: float, unit: str = "msg/s", **more: Any) -> dict[str, Any]:
    return {"path": "consume", "mode": "relaxed", "bytes": 100, "contender": "x", "value": value, "unit": unit, **more}


def test_a_figure_is_the_median_of_its_rounds_with_the_best_beside_it() -> None:
    rounds = [record(value, client_cpu_us=value / 10, verdict="pass", count=5) for value in (10.0, 30.0, 20.0)]
    figure = figures(rounds)[Case("consume", "relaxed", 100, "x")]
    assert (figure.value, figure.best, figure.rounds, figure.count) == (20.0, 30.0, 3, 5)
    assert figure.more == {"client_cpu_us": 2.0}
    assert figure.trouble == ""


def test_the_best_time_is_the_shortest() -> None:
    (figure,) = figures([record(3.0, "s"), record(1.0, "s")]).values()
    assert figure.best == 1.0
    assert is_better(1.0, 3.0, "s")
    assert is_better(3.0, 1.0, "msg/s")


def test_a_round_that_lost_messages_does_not_count_and_its_verdict_shows() -> None:
    rounds = [record(1.0, verdict="pass"), record(9.0, verdict="lost 3 of 100,000"), record(3.0, verdict="pass")]
    (figure,) = figures(rounds).values()
    assert (figure.value, figure.best, figure.rounds) == (2.0, 3.0, 2)
    assert figure.trouble == "lost 3 of 100,000 (1 of 3 rounds)"


def test_a_case_without_a_good_round_has_a_verdict_and_no_figure() -> None:
    rounds = [record(1.0, verdict="lost 3 of 100,000"), record(2.0, verdict="1 of 100,000 out of order")]
    assert figures(rounds) == {}
    assert troubles(rounds) == {Case("consume", "relaxed", 100, "x"): "lost 3 of 100,000 (2 of 2 rounds)"}


def test_files_that_grew_by_less_than_their_messages_do_not_count() -> None:
    grown = [record(value, "B", path="disk") for value in (195.0, -116.0, 195.0)]
    (figure,) = figures(grown).values()
    assert (figure.value, figure.trouble) == (195.0, "the server rewrote its files (1 of 3 rounds)")
    assert figures([record(99.0, "B", path="disk")]) == {}


def test_a_failed_round_has_no_value_and_a_case_of_failed_rounds_no_figure() -> None:
    failed = {"path": "consume", "mode": "relaxed", "bytes": 100, "contender": "x", "failed": "no server"}
    assert figures([failed]) == {}
    (figure,) = figures([record(1.0, verdict="pass"), failed]).values()
    assert (figure.value, figure.rounds, figure.trouble) == (1.0, 1, "failed (1 of 2 rounds)")


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (100, 100), (1, 1)])
def test_a_percentile_is_a_value_that_was_measured(percent: int, expected: int) -> None:
    assert percentile(reversed(range(1, 101)), percent) == expected


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
