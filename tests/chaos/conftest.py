"""Real processes, killed and frozen while they work; and whole groups inside the test, where that is enough."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.members import Town, town_in
from tests.chaos.stage import Stage, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with town_in(tmp_path) as town:
        yield town
