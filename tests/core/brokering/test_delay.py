"""Delay levels, retries and dead letters."""

import pytest

from lanemq.core.brokering.delay import (
    DELAYS_MS,
    MAX_LEVEL,
    DelayQueueCursors,
    DueTimes,
    Route,
    RouteToDeadLetter,
    RouteToRetry,
    delay_of,
    level_for_pass,
    level_for_retry,
    route_retry_send,
    route_send_back,
)
from lanemq.model.units import Millis, QueueOffset


def test_delay_levels_are_those_of_rocketmq() -> None:
    text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000}
    assert [int(word[:-1]) * units[word[-1]] for word in text.split()] == list(DELAYS_MS)


@pytest.mark.parametrize(("level", "delay"), [(-1, 0), (0, 0), (1, 1_000), (18, 7_200_000), (19, 7_200_000)])
def test_level_beyond_the_last_is_the_last(level: int, delay: int) -> None:
    assert delay_of(level) == delay


@pytest.mark.row("A107")
@pytest.mark.parametrize(
    ("reconsume_times", "requested", "level"),
    [(0, 0, 3), (1, 0, 4), (15, 0, 18), (16, 0, 18), (99, 0, 18), (0, 1, 1), (7, 2, 2), (0, 99, 18)],
)
def test_retry_level_is_three_plus_attempts_unless_asked_for(reconsume_times: int, requested: int, level: int) -> None:
    assert level_for_retry(reconsume_times, requested) == level


@pytest.mark.row("A108")
@pytest.mark.parametrize(
    ("times", "requested", "limit", "route"),
    [
        (0, 0, 16, RouteToRetry(3, 1)),
        (15, 0, 16, RouteToRetry(18, 16)),
        (16, 0, 16, RouteToDeadLetter(17)),
        (15, 0, None, RouteToRetry(18, 16)),
        (16, 0, None, RouteToDeadLetter(17)),
        (0, -1, 16, RouteToDeadLetter(1)),
        (0, 0, 0, RouteToDeadLetter(1)),
        (0, 5, 16, RouteToRetry(5, 1)),
    ],
)
def test_message_sent_back_is_retried_up_to_its_limit(
    times: int, requested: int, limit: int | None, route: Route
) -> None:
    assert route_send_back(times, requested, limit) == route


def test_a_message_that_always_fails_is_retried_sixteen_times() -> None:
    times, levels = 0, []
    while isinstance(route := route_send_back(times, 0, None), RouteToRetry):
        levels.append(route.level)
        times = route.reconsume_times
    assert levels == list(range(3, 19))


@pytest.mark.row("A108")
@pytest.mark.parametrize(
    ("times", "limit", "ordered", "route"),
    [
        (3, 3, False, RouteToRetry(6, 3)),
        (4, 3, False, RouteToDeadLetter(4)),
        (
            3,
            3,
            True,
            RouteToDeadLetter(3),
        ),  # clients before 5.1.3 send a count equal to the limit; without the lock rule they would retry endlessly
        (0, 3, True, RouteToDeadLetter(0)),
        (16, None, False, RouteToRetry(18, 16)),
        (17, None, False, RouteToDeadLetter(17)),
    ],
)
def test_a_message_that_a_client_sends_to_its_retry_topic_is_retried_or_dead_lettered(
    times: int, limit: int | None, ordered: bool, route: Route
) -> None:
    assert route_retry_send(times, limit, requested=0, group_holds_lock=ordered) == route


NOW, WALL, DAY = Millis(50_000), Millis(1_700_000_000_000), 24 * 3_600_000


def test_a_message_of_this_run_is_due_its_delay_after_it_was_stored_whatever_its_timestamp() -> None:
    times = DueTimes({}, now=NOW, wall=WALL)
    times.stored(3, QueueOffset(2), now=Millis(60_000))
    times.stored(3, QueueOffset(3), now=Millis(70_000))
    for timestamp in (WALL - DAY, WALL, WALL + DAY):
        assert [times.due_at(3, QueueOffset(n), Millis(timestamp)) for n in range(3)] == [70_000, 70_000, 80_000]


@pytest.mark.parametrize(
    ("age", "remaining"),
    [(0, 10_000), (4_000, 6_000), (10_000, 0), (DAY, 0), (-DAY, 10_000)],
    ids=["just stored", "waited", "due", "long due", "stored in the future"],
)
def test_a_message_from_before_the_start_waits_its_delay_from_the_start_at_most(age: int, remaining: int) -> None:
    times = DueTimes({3: QueueOffset(1)}, now=NOW, wall=WALL)
    times.stored(3, QueueOffset(2), now=Millis(NOW + 5))
    assert times.due_at(3, QueueOffset(0), Millis(WALL - age)) == NOW + remaining
    assert times.due_at(3, QueueOffset(1), Millis(WALL - age)) == NOW + 10_010, "not from before the start"


@pytest.mark.parametrize(("level", "step"), [(1, 1), (3, 10), (5, 60), (18, 100)])
def test_due_times_are_rounded_up_to_a_step(level: int, step: int) -> None:
    times = DueTimes({}, now=Millis(0), wall=WALL)
    stored_at = [Millis(7 * n) for n in range(300)]
    for n, now in enumerate(stored_at):
        times.stored(level, QueueOffset(n + 1), now=now)
    late = [times.due_at(level, QueueOffset(n), WALL) - delay_of(level) - now for n, now in enumerate(stored_at)]
    assert min(late) >= 0
    assert max(late) < step
    assert len(times._times[level]) <= 300 * 7 // step + 1


def test_times_of_delivered_messages_are_forgotten() -> None:
    times = DueTimes({}, now=NOW, wall=WALL)
    for n in range(10):
        times.stored(1, QueueOffset(n + 1), now=Millis(NOW + n))
    times.forget(1, QueueOffset(7))
    assert times.due_at(1, QueueOffset(7), WALL) == NOW + 7 + 1_000
    assert len(times._times[1]) == 3
    times.forget(1, QueueOffset(10))
    assert len(times._times[1]) == 1
    assert times.end(1) == 10


def test_the_end_of_a_level_is_that_of_the_start_until_messages_arrive() -> None:
    times = DueTimes({1: QueueOffset(4)}, now=NOW, wall=WALL)
    assert (times.end(1), times.end(2)) == (4, 0)
    times.stored(1, QueueOffset(5), now=NOW)
    assert times.end(1) == 5


def test_cursors_of_levels_start_at_zero_and_never_go_back() -> None:
    cursors = DelayQueueCursors()
    cursors.advance(1, QueueOffset(7))
    cursors.advance(1, QueueOffset(3))
    assert (cursors.next_offset(1), cursors.next_offset(2)) == (7, 0)


def test_cursors_survive_a_restart() -> None:
    cursors = DelayQueueCursors()
    cursors.advance(3, QueueOffset(1))
    restarted = DelayQueueCursors()
    restarted.restore(cursors.dirty().items())
    assert restarted.next_offset(3) == 1
    assert restarted.dirty() == {}


def test_cursor_that_moved_while_it_was_saved_stays_dirty() -> None:
    cursors = DelayQueueCursors()
    cursors.advance(3, QueueOffset(1))
    writing = cursors.dirty()
    cursors.advance(3, QueueOffset(2))
    cursors.saved(writing)
    assert cursors.dirty() == {3: 2}
    cursors.saved(cursors.dirty())
    assert cursors.dirty() == {}


@pytest.mark.parametrize("level", [0, MAX_LEVEL + 1])
def test_cursor_of_a_level_that_does_not_exist_is_refused(level: int) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        DelayQueueCursors().next_offset(level)


def test_a_message_that_is_passed_on_waits_longer_in_every_round_through_the_queues() -> None:
    assert [level_for_pass(passed, 3) for passed in range(7)] == [1, 1, 1, 2, 2, 2, 3]
    assert level_for_pass(1_000_000, 3) == MAX_LEVEL
