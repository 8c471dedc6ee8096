"""A broker as a process of its own, so that its memory is its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.stage import Stage, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage
