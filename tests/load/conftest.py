"""A broker in a process of its own, so that its memory can be measured."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.system import SystemUnderTest, system_in


@pytest.fixture
def system(tmp_path: Path) -> Iterator[SystemUnderTest]:
    with system_in(tmp_path) as system:
        yield system
