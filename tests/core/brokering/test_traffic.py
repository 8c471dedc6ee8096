"""Figures of the last minute, hour and day."""

import pytest

from lanemq.core.brokering.traffic import DAY, HOUR, MINUTE, TEN_MINUTES, TEN_SECONDS, Tally, Traffic, Window
from lanemq.model.units import Millis

START = 50_000_000


def at(millis: int) -> Millis:
    return Millis(START + millis)


def steady(until: int, every: int = 1_000) -> Tally:
    """One more every second."""
    tally = Tally()
    for millis in range(0, until, every):
        tally.add(1, now=at(millis))
    return tally


def test_the_rate_of_a_young_broker_counts_from_its_start() -> None:
    tally = steady(until=10_000, every=100)
    assert tally.last(MINUTE, now=at(10_000)).since(10_000).per_second == pytest.approx(10)
    assert tally.last(MINUTE, now=at(10_000)).since(DAY).per_second == pytest.approx(100 / 60)
    assert Window(5, 5, MINUTE).since(0).per_second == 5


def test_nothing_was_added() -> None:
    assert Tally().last(MINUTE, now=at(0)) == Window(0, 0, MINUTE)
    assert Tally().last(MINUTE, now=at(0)).average == 0


@pytest.mark.parametrize("window", [TEN_SECONDS, MINUTE, TEN_MINUTES, HOUR])
def test_a_steady_rate_is_found_in_every_window(window: int) -> None:
    tally = steady(2 * HOUR)
    assert tally.last(window, now=at(2 * HOUR)).per_second == pytest.approx(1.0, rel=0.11)


def test_a_day_is_found() -> None:
    tally = steady(2 * DAY, every=60_000)
    assert tally.last(DAY, now=at(2 * DAY)).per_second == pytest.approx(1 / 60, rel=0.05)


def test_a_window_that_began_before_the_first_addition_counts_all() -> None:
    tally = steady(5_000)
    assert tally.last(MINUTE, now=at(5_000)) == Window(5, 5, MINUTE)
    assert tally.last(DAY, now=at(5_000)).total == 5


def test_what_is_older_than_a_window_does_not_count() -> None:
    tally = steady(30_000)
    assert tally.last(MINUTE, now=at(120_000)).total == 0
    assert tally.last(HOUR, now=at(120_000)).total == 30
    tally.add(7, now=at(120_000))
    assert tally.last(MINUTE, now=at(121_000)) == Window(7, 1, MINUTE)


def test_no_window_counts_less_than_was_added_in_it() -> None:
    tally = Tally()
    added: list[tuple[int, int]] = []
    for number, millis in enumerate(range(0, 400_000, 3_700)):
        amount = number % 5
        tally.add(amount, now=at(millis))
        added.append((millis, amount))
        for window in (TEN_SECONDS, MINUTE, TEN_MINUTES):
            true = sum(each for when, each in added if when > millis - window)
            longer = sum(each for when, each in added if when >= millis - 2 * window)
            assert true <= tally.last(window, now=at(millis)).total <= longer


def test_traffic_is_counted_by_topic_and_group() -> None:
    traffic = Traffic()
    traffic.stored("T", 3, 300, took=0, now=at(0))
    traffic.stored("U", 1, 50, took=30, now=at(0))
    traffic.delivered("g", "T", 2, 200, now=at(0))
    traffic.delivered("g", "T", 0, 0, now=at(0))
    traffic.sent_back("g", "T", now=at(0))
    assert (traffic.put.total, traffic.put_bytes) == (4, 350)
    assert [tally.total for tally in traffic.put_of("T")] == [3, 300]
    assert [tally.total for tally in traffic.got_of("g", "T")] == [2, 200]
    assert (traffic.got.times, traffic.missed.total, traffic.got.total) == (1, 1, 2)
    assert traffic.sent_back_of("g", "T").total == 1
    assert traffic.put_counts[:4] == [3, 0, 1, 0]


def test_a_deleted_topic_is_forgotten() -> None:
    traffic = Traffic()
    for topic in ("T", "U"):
        traffic.stored(topic, 1, 1, took=0, now=at(0))
        traffic.delivered("g", topic, 1, 1, now=at(0))
        traffic.sent_back("g", topic, now=at(0))
    traffic.forget_topic("T")
    assert [traffic.put_of(topic)[0].total for topic in ("T", "U")] == [0, 1]
    assert [traffic.got_of("g", topic)[0].total for topic in ("T", "U")] == [0, 1]
    assert [traffic.sent_back_of("g", topic).total for topic in ("T", "U")] == [0, 1]
    assert traffic.put.total == 2
