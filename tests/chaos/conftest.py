"""Fixtures: real processes that can be killed and frozen, and groups in the test's process where that is enough."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.members import LocalGroup, local_group_in
from tests.chaos.system import SystemUnderTest, system_in


@pytest.fixture
def system(tmp_path: Path) -> Iterator[SystemUnderTest]:
    with system_in(tmp_path) as system:
        yield system


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    with local_group_in(tmp_path) as group:
        yield group
