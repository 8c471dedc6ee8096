"""The low-space watermark and the size limit of a log."""

import pytest

from lanemq.core.brokering.disk_space import NO_LIMIT, LowSpace, Space, log_limit

GIB = 1 << 30


@pytest.mark.parametrize(
    ("given", "disk", "limit"),
    [(0, 100 * GIB, 75 * GIB), (5, 100 * GIB, 5), (0, 40, 64), (5, 0, 5), (0, 0, NO_LIMIT)],
    ids=["by default", "as given", "at least a segment", "given without a size", "without a size"],
)
def test_the_log_is_limited_by_the_disk_unless_the_disk_has_no_size(given: int, disk: int, limit: int) -> None:
    """Three quarters of 0 would delete all but the newest file."""
    assert log_limit(given, 64, disk) == limit


def test_a_disk_without_a_size_is_never_nearly_full() -> None:
    low = LowSpace(512 << 20)
    assert not low.look(Space(0, 0))
    assert low.look(Space(1 << 20, 100 * GIB))
