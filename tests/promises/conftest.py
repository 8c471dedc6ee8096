"""One file per promise of docs/guarantees.md, each with a negative control: a naive variant that fails.

Promises that need killed or frozen processes are also defended in tests/chaos, those of pipelines in tests/pipelines.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.members import LocalGroup, local_group_in


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    with local_group_in(tmp_path) as group:
        yield group
