"""One file per promise of docs/guarantees.md, each with a negative control: the naive variant visibly fails.

Promises 10 (end to end through Spark) and 11 (order survives a change of the queue count) are not part of this
release and have no file. Promises that need killed or frozen processes are also defended in tests/chaos.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.members import Town, town_in


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with town_in(tmp_path) as town:
        yield town
