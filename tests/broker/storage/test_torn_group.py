"""A power cut may leave any part of a group commit that was in progress; its repeat must be stored all the same.

The device writes pages in any order, so the end of an unacknowledged batch may be on disk and its middle not. A broker
that keeps that end answers the repeat as a duplicate, and the middle is lost although acknowledged.
"""

from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.handlers.test_stamps import stamped
from tests.broker.raw_client import bodies
from tests.broker.running import RunningBroker

from lanemq.wire.codes import ResponseCode
from lanemq.wire.record import record_starts

ACKNOWLEDGED, LAST = 5, 12


def image_of_two_groups(running: RunningBroker, folder: Path) -> Path:
    """Sequences 0 to 4 in one group commit, 5 to 11 in the last one."""
    raw = running.connect()
    stamped(raw, 0, ACKNOWLEDGED)
    stamped(raw, ACKNOWLEDGED, LAST - ACKNOWLEDGED)
    return running.crash_image(folder / "image")


def never_written(image: Path, *records: int) -> None:
    """The pages of these records read as zeros."""
    (path,) = (image / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    starts = [*record_starts(bytes(data)), len(data)]
    for number in records:
        start, end = starts[number], starts[number + 1]
        data[start:end] = bytes(end - start)
    path.write_bytes(data)


@pytest.mark.parametrize("torn", [(7,), (5,), (5, 6, 9), (10,), (11,)], ids=str)
def test_a_batch_torn_in_its_middle_is_stored_when_it_is_repeated(
    start: Start, folder: Path, torn: tuple[int, ...]
) -> None:
    image = image_of_two_groups(start(), folder)
    never_written(image, *torn)
    raw = start(image).connect()
    assert [int(body) for body in bodies(raw.read("T"))] == list(range(torn[0])), "cut where it is torn"
    again = stamped(raw, ACKNOWLEDGED, LAST - ACKNOWLEDGED)
    assert again.code == 0  # type: ignore[attr-defined]
    assert [int(body) for body in bodies(raw.read("T"))] == list(range(LAST))


def test_damage_before_a_later_group_costs_no_intact_message(start: Start, folder: Path) -> None:
    """The last group was written after the damaged one was synced and answered, so this is not a torn write."""
    image = image_of_two_groups(start(), folder)
    never_written(image, 2)
    raw = start(image).connect()
    assert [int(body) for body in bodies(raw.read("T"))] == [n for n in range(LAST) if n != 2]


def test_a_repeat_that_reaches_into_damage_is_not_a_duplicate(start: Start, folder: Path) -> None:
    """A damaged record lost it, and its place in the order is taken."""
    image = image_of_two_groups(start(), folder)
    never_written(image, 2)
    raw = start(image).connect()
    for first, count in ((0, 5), (2, 1), (1, 11)):
        reply = stamped(raw, first, count)
        assert (reply.code, reply.ext["laneExpected"]) == (ResponseCode.SEQUENCE_GAP, "0")  # type: ignore[attr-defined]
    assert stamped(raw, 3, 2).ext["laneDuplicate"] == "true"  # type: ignore[attr-defined]
    assert stamped(raw, LAST, 1).code == 0  # type: ignore[attr-defined]


def test_in_relaxed_mode_the_log_ends_at_the_first_torn_record(start: Start, folder: Path) -> None:
    """Nothing between two syncs is known to have been on disk."""
    image = image_of_two_groups(start(durable=False), folder)
    never_written(image, 2)
    raw = start(image).connect()
    assert [int(body) for body in bodies(raw.read("T"))] == [0, 1]
    assert stamped(raw, 0, LAST).code == 0  # type: ignore[attr-defined]
    assert [int(body) for body in bodies(raw.read("T"))] == list(range(LAST))
