"""`sequence=`: repeats, gaps, and what `on_gap` does."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, Sent

from lanemq.clock import wall_time
from lanemq.model.errors import InvalidOption
from lanemq.pipelines import DeadLetter, Event, Hold, Park, StateLimits
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.stages.transitions.operator_requests import request_discard, request_redrive
from lanemq.pipelines.stages.transitions.shard import CACHE, MAX_MISSED_RANGES, KeyLane, WaitReason


def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.attempt <= event.value.get("fails", 0):
        raise ValueError("not yet")
    if event.value.get("end"):
        return None, []
    return (state or 0) + 1, [{"key": event.key, "n": event.value["seq"], "seen": (state or 0) + 1}]


def pipeline(folder: Path, on_gap: str, **options: Any) -> Pipeline:
    usual = {"step": step, "sequence": "seq", "on_failure": Park()}
    return Pipeline(folder, on_gap=on_gap, **(usual | options))


def numbered(*numbers: int, first: int = 0, **more: object) -> list[Sent]:
    return [Sent(0, first + at, "k", {"seq": number, **more}) for at, number in enumerate(numbers)]


def test_a_number_that_was_applied_is_a_repeat(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "report")
    assert running.process(*numbered(1, 2, 2, 1, 3))["repeats"] == 2
    assert running.process(*numbered(3, 4, first=5))["repeats"] == 1
    assert running.outputs("k") == [1, 2, 3, 4]


def test_a_reported_gap_is_counted_and_the_key_continues(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "report")
    assert running.process(*numbered(1, 4, 5))["gaps"] == 2
    assert running.outputs("k") == [1, 4, 5]


def test_a_late_number_is_a_dead_letter_and_its_repeat_is_dropped(tmp_path: Path) -> None:
    """It was never applied, so dropping it as a repeat would lose it silently."""
    running = pipeline(tmp_path, "report")
    counts = running.process(*numbered(1, 3, 2, 2, 3, 6))
    assert (counts["late"], counts["dead_letters"], counts["repeats"]) == (1, 1, 2)
    counts = running.process(*numbered(2, 5, 4, 5, first=6))
    assert (counts["late"], counts["repeats"]) == (2, 2)
    assert [row["queue_offset"] for row in running.sink.dead_rows()] == [2, 7, 8]
    assert "number 2 came late, its key had continued to 3" in running.sink.dead_rows()[0]["reason"]
    assert running.outputs("k") == [1, 3, 6]


def test_a_late_number_does_not_hold_its_key(tmp_path: Path) -> None:
    """Neither when it arrives nor when it waited behind a failure."""
    running = pipeline(tmp_path, "report", on_failure=Hold(retries=3, first=0.01))
    running.process(*numbered(1, 3), *numbered(4, first=2, fails=1), *numbered(2, 5, first=3))
    running.clock.time += 10
    counts = running.process_retry_pass()
    assert counts is not None
    assert (counts["late"], counts["lanes_held"]) == (1, 0)
    assert running.outputs("k") == [1, 3, 4, 5]


@pytest.mark.parametrize("decide", [request_redrive, request_discard])
def test_a_number_that_an_operator_skipped_is_late_when_it_comes(tmp_path: Path, decide: Any) -> None:
    running = pipeline(tmp_path, "hold")
    running.process(*numbered(1, 4))
    decide(tmp_path, "k")
    running.process_retry_pass()
    counts = running.process(*numbered(2, 6, 3, 3, first=2))
    assert (counts["late"], counts["repeats"], counts["lanes_held"]) == (2, 1, 1)


def test_a_late_number_is_never_taken_for_a_repeat_however_many_are_missing(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "report")
    running.process(*numbered(*range(2, 202, 2)))
    CACHE._shards.clear()
    assert running.process(*numbered(*range(1, 201, 2), first=100))["late"] == 100


def test_missing_numbers_are_remembered_with_a_typed_state(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "report", state_type=int)
    running.process(*numbered(1, 3))
    assert running.process(*numbered(2, first=2))["late"] == 1


def test_the_error_about_too_many_keys_suggests_only_what_helps(tmp_path: Path) -> None:
    """The number of an ended key is kept, so returning None from the step makes no room."""
    running = pipeline(tmp_path, "report", limits=StateLimits(max_keys_per_shard=1))
    with pytest.raises(InvalidOption, match=r"forget old keys with expire_after and .* forget_numbers_after$"):
        running.process(*(Sent(0, at, f"key-{at}", {"seq": 1, "end": True}) for at in range(2)))


def test_a_key_waits_for_a_missing_number_and_continues_when_it_comes(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold")
    counts = running.process(*numbered(1, 4, 3, 4))
    assert (counts["applied"], counts["repeats"], counts["lanes_held"]) == (1, 1, 1)
    assert running.stage.due(wall_time(running.clock.wall())) is None
    running.process(*numbered(2, 5, first=4))
    assert running.outputs("k") == [1, 2, 3, 4, 5]
    assert list_parked(tmp_path) == []


def test_a_key_waits_for_a_second_gap_after_the_first(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold")
    running.process(*numbered(1, 3, 5, 2))
    assert running.outputs("k") == [1, 2, 3]
    running.process(*numbered(4, first=4))
    assert running.outputs("k") == [1, 2, 3, 4, 5]


def test_a_full_lane_takes_the_number_that_it_waits_for_and_drops_repeats(tmp_path: Path) -> None:
    """With `when_lane_is_full="stop"` the batch that brings it would always fail."""
    running = pipeline(tmp_path, "hold", limits=StateLimits(max_waiting_per_lane=2))
    running.process(*numbered(1, 3, 4))
    assert running.process(*numbered(1, 4, 2, 5, first=3))["repeats"] == 2
    assert running.outputs("k") == [1, 2, 3, 4, 5]


def test_late_numbers_do_not_exceed_the_limit_of_missed_ranges(tmp_path: Path) -> None:
    """Each of them cuts a range in two."""
    running = pipeline(tmp_path, "report")
    counts = running.process(*numbered(1, 202, *range(3, 202, 2), *range(2, 202, 2)))
    assert counts["late"] == 200
    lane = KeyLane(number=202, missed=((2, 201),))
    for number in range(3, 202, 2):
        lane.settle_missed(number)
    assert len(lane.missed) <= MAX_MISSED_RANGES
    assert all(lane.has_missed(number) for number in range(2, 202, 2))
    assert not any(lane.has_missed(number) and not lane.is_doubtful(number) for number in range(3, 202, 2))


def test_a_redriven_key_continues_without_the_missing_number(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold")
    running.process(*numbered(1, 5, 4))
    (lane,) = list_parked(tmp_path)
    assert (lane.why, lane.reason) == (WaitReason.GAP, "number 5 came, 2 is missing")
    request_redrive(tmp_path, "k")
    running.process_retry_pass()
    running.process(*numbered(3, 6, first=3))
    assert running.outputs("k") == [1, 4, 5, 6]


def test_numbers_of_discarded_messages_count_as_seen(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold")
    running.process(*numbered(1, 4, 3))
    request_discard(tmp_path, "k")
    running.process_retry_pass()
    running.process(*numbered(5, first=3))
    assert running.outputs("k") == [1, 5]


def test_a_gap_can_be_a_failure_which_a_redrive_accepts(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "fail")
    counts = running.process(*numbered(1, 3, 4))
    assert (counts["parked"], counts["gaps"]) == (1, 1)
    request_redrive(tmp_path, "k")
    running.process_retry_pass()
    assert running.outputs("k") == [1, 3, 4]


def test_the_number_of_a_dead_letter_is_not_missing(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "fail", on_failure=DeadLetter(skip=True))
    counts = running.process(*numbered(1), *numbered(2, first=1, fails=1), *numbered(3, first=2))
    assert (counts["dead_letters"], counts["gaps"]) == (1, 0)
    assert running.outputs("k") == [1, 3]


def test_a_held_key_is_tried_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold", on_failure=Hold(retries=3, first=0.01))
    running.process(*numbered(1), *numbered(2, first=1, fails=1), *numbered(4, 3, first=2))
    running.clock.time += 10
    running.process_retry_pass()
    assert running.outputs("k") == [1, 2, 3, 4]


def test_no_message_overtakes_one_whose_number_is_unknown(tmp_path: Path) -> None:
    """It cannot be decoded, so it may have any number."""
    running = pipeline(tmp_path, "hold")
    running.process(*numbered(1), Sent(0, 1, "k", b"{"), *numbered(3, 2, first=2))
    request_redrive(tmp_path, "k")
    running.process_retry_pass()
    assert running.outputs("k") == [1]
    request_discard(tmp_path, "k", first_only=True)
    running.process_retry_pass()
    assert running.outputs("k") == [1, 2, 3]


def test_a_message_whose_number_is_unknown_overtakes_none(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold")
    running.process(*numbered(1, 3), Sent(0, 2, "k", b"{"), *numbered(4, first=3))
    assert list_parked(tmp_path)[0].why is WaitReason.GAP
    request_redrive(tmp_path, "k")
    running.process_retry_pass()
    assert running.outputs("k") == [1, 3]
    assert [each.offset for each in list_parked(tmp_path)[0].messages] == [2, 3]


def test_a_key_may_begin_with_any_number_if_first_number_is_none(tmp_path: Path) -> None:
    running = pipeline(tmp_path, "hold", first_number=None)
    running.process(*numbered(17, 18))
    assert running.outputs("k") == [17, 18]


@pytest.mark.parametrize("first_number", [0, -7, 5])
def test_first_number_may_be_zero_or_negative(tmp_path: Path, first_number: int) -> None:
    """Also if the first event is skipped, or redriven after a gap."""
    running = pipeline(tmp_path, "hold", first_number=first_number, on_failure=DeadLetter(skip=True))
    first = first_number
    running.process(*numbered(first, fails=1))
    running.process(*numbered(first + 1, first + 2, first + 1, first=1))
    assert running.outputs("k") == [first + 1, first + 2]
    running.process(Sent(0, 4, "gap", {"seq": first + 2}))
    request_redrive(tmp_path, "gap")
    running.process_retry_pass()
    assert running.outputs("gap") == [first + 2]
    assert running.process(Sent(0, 5, "gap", {"seq": first + 1}))["late"] == 1


def test_a_sequence_function_sees_the_key_of_waiting_events(tmp_path: Path) -> None:
    """If the number of a skipped message is unknown, its key would wait for it."""
    running = pipeline(tmp_path, "hold", on_failure=DeadLetter(skip=True), sequence=of_a_key)
    running.process(*numbered(1, fails=1), *numbered(2, 4, 3, first=1))
    assert running.outputs("k") == [2, 3, 4]


def of_a_key(event: Event) -> int:
    found: int = {"k": event.value}[event.key or ""]["seq"]
    return found


@pytest.mark.parametrize("number", [1.0, True, "1", None, 2**70])
def test_a_sequence_function_that_returns_no_integer_fails_its_event(tmp_path: Path, number: object) -> None:
    """A stored number of another type could not be read, and the pipeline would fail at every start."""
    running = pipeline(tmp_path, "hold", sequence=lambda event: number, first_number=None)
    assert running.process(*numbered(1))["parked"] == 1


def test_an_ended_key_keeps_its_number(tmp_path: Path) -> None:
    """Without it, a late repeat would revive the key."""
    running = pipeline(tmp_path, "report")
    running.process(*numbered(1), *numbered(2, first=1, end=True))
    assert running.process(*numbered(1, 2, first=2))["repeats"] == 2
    assert show(tmp_path, "k")[0].state is None


@pytest.mark.parametrize("value", [{"seq": "one"}, {}, 5])
def test_an_event_without_its_number_fails(tmp_path: Path, value: object) -> None:
    running = pipeline(tmp_path, "hold")
    assert running.process(Sent(0, 0, "k", value))["parked"] == 1
