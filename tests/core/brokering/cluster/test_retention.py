"""Which parked messages are copied, and which were deleted too early."""

from lanemq.core.brokering.cluster.retention import HOUR_MS, BrokerRetention, deleted, to_copy
from lanemq.core.brokering.lane_offsets import LaneOffsets
from lanemq.core.brokering.queue_progress import LaneName, ParkedLane
from lanemq.core.lane_status import Failure
from lanemq.core.offset_windows import windows
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis


def lane(*offsets: int, copied: int = -1) -> ParkedLane:
    made = ParkedLane(LaneName("g", MessageQueue("t", "b", 0), "k"), Failure("x", 1), Millis(0), copied=copied)
    made.offsets = LaneOffsets()
    made.offsets.extend(offsets)
    return made


def test_half_of_the_retention_is_the_time_to_copy() -> None:
    assert BrokerRetention(48 * HOUR_MS, 0.2).copied_before(100 * HOUR_MS) == 76 * HOUR_MS


def test_everything_is_copied_while_the_disk_is_filling() -> None:
    assert BrokerRetention(48 * HOUR_MS, 0.71).copied_before(100 * HOUR_MS) == 100 * HOUR_MS


def test_what_is_old_and_not_copied_is_copied_up_to_a_limit() -> None:
    first, second = lane(5, 50, 500, copied=5), lane(7, 70)
    assert [each.offsets for each in to_copy([first, second], below=100, first=0, limit=10)] == [[50], [7, 70]]
    assert [each.offsets for each in to_copy([first, second], below=100, first=60, limit=10)] == [[70]]
    assert [each.offsets for each in to_copy([first, second], below=100, first=0, limit=2)] == [[50], [7]]


def test_what_was_deleted_without_a_copy_is_known() -> None:
    assert deleted(lane(5, 50, 500), first=60, limit=10) == [5, 50]
    assert deleted(lane(5, 50, 500, copied=5), first=60, limit=10) == [50]
    assert deleted(lane(5, 50, 500, copied=50), first=60, limit=10) == []
    assert deleted(lane(70), first=60, limit=10) == []


def test_offsets_that_are_near_each_other_need_one_pull() -> None:
    assert windows([1, 2, 32, 33, 100, 131, 132]) == [[1, 2, 32], [33], [100, 131], [132]]
    assert windows(range(0, 64)) == [[*range(32)], [*range(32, 64)]]
