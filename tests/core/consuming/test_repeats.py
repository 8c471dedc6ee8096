"""Repeats that a broker stored are recognised by their producer stamp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.broker.body_limits import body_problem
from lanemq.core.consuming.repeats import MAX_PRODUCERS, SeenStamps
from lanemq.core.finished_ranges import MAX_RANGES
from lanemq.model.log_marks import LastStamp, SeenLog
from lanemq.model.stamp import Stamp
from lanemq.wire.bodies import LaneProgress
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command


def kept(stamps: list[Stamp | None]) -> list[int]:
    """The offsets of messages that are not repeats."""
    seen = SeenStamps()
    return [offset for offset, stamp in enumerate(stamps) if not seen.is_repeat(stamp, offset)]


def test_a_batch_that_is_stored_twice_is_kept_once() -> None:
    batch: list[Stamp | None] = [Stamp("p", 1, number) for number in range(3)]
    assert kept([*batch, *batch, Stamp("p", 1, 3)]) == [0, 1, 2, 6]


def test_a_repeat_behind_a_newer_message_is_dropped() -> None:
    assert kept([Stamp("p", 1, 0), Stamp("p", 1, 1), Stamp("p", 1, 0)]) == [0, 1]


def test_a_new_epoch_starts_at_zero_and_is_not_a_repeat() -> None:
    assert kept([Stamp("p", 1, 7), Stamp("p", 2, 0), Stamp("p", 1, 8)]) == [0, 1]


def test_producers_do_not_affect_each_other_and_messages_without_a_stamp_are_kept() -> None:
    assert kept([Stamp("p", 1, 0), Stamp("q", 1, 0), None, None, Stamp("q", 1, 0)]) == [0, 1, 2, 3]


def test_messages_that_are_read_again_are_not_repeats() -> None:
    """After a reset the same offsets are pulled once more."""
    seen = SeenStamps()
    stamps = [Stamp("p", 1, number) for number in range(4)]
    for _ in range(2):
        assert not any(seen.is_repeat(stamp, offset) for offset, stamp in enumerate(stamps))


def test_few_producers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.core.consuming.repeats.MAX_PRODUCERS", 2)
    assert kept([Stamp("p", 1, 0), Stamp("q", 1, 0), Stamp("p", 1, 1), Stamp("r", 1, 0), Stamp("q", 1, 0)]) == [
        0,
        1,
        2,
        3,
        4,
    ]


@given(st.lists(st.tuples(st.sampled_from("pq"), st.integers(1, 3)), max_size=30))
def test_every_message_is_kept_exactly_once(sends: list[tuple[str, int]]) -> None:
    """Each message is stored one to three times in a row, as by a producer with one request under way."""
    numbers = {"p": 0, "q": 0}
    log: list[Stamp | None] = []
    for producer, times in sends:
        log += [Stamp(producer, 1, numbers[producer])] * times
        numbers[producer] += 1
    assert [log[offset] for offset in kept(log)] == list(dict.fromkeys(log))


def test_what_former_owners_have_read_makes_late_copies_repeats() -> None:
    seen = SeenStamps([LastStamp("p", 1, 9, 90)])
    assert seen.is_repeat(Stamp("p", 1, 4), 95)
    assert not seen.is_repeat(Stamp("p", 1, 8), 80)  # unfinished, and read again at its own offset
    assert seen.is_repeat(Stamp("p", 1, 8), 85)
    assert not seen.is_repeat(Stamp("p", 1, 10), 96)


def test_the_newest_stamps_are_reported_once_and_again_if_the_report_may_be_lost() -> None:
    seen = SeenStamps([LastStamp("q", 1, 1, 1)])
    for number in range(3):
        seen.is_repeat(Stamp("p", 1, number), number)
    first = seen.unreported()
    assert first == (LastStamp("p", 1, 2, 2),)
    seen.is_repeat(Stamp("p", 1, 3), 3)
    seen.reported(first)
    assert seen.unreported() == (LastStamp("p", 1, 3, 3),)
    seen.reported(seen.unreported())
    assert not seen.unreported()
    seen.report_again()
    assert seen.unreported() == (LastStamp("p", 1, 3, 3),)


def test_a_report_of_all_producers_comes_in_parts_that_a_coordinator_takes() -> None:
    """After a lost connection everything is reported again; a request that is refused would be sent for ever."""
    seen, parts = SeenStamps(), list[int]()
    for number in range(MAX_PRODUCERS):
        seen.is_repeat(Stamp(f"{number:016x}", 2**41, 2**31), 2**40 + number)
    seen.report_again()
    while stamps := seen.unreported():
        body = LaneProgress(lane_finished="9" * (MAX_RANGES * 20), lane_seen=SeenLog(stamps=stamps)).encode()
        assert body_problem(Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, body=body)) is None
        parts.append(len(stamps))
        seen.reported(stamps)
    assert sum(parts) == MAX_PRODUCERS
