"""One file per promise of docs/guarantees.md, each with a negative control: a naive variant that fails.

Promises that need killed or frozen processes are also defended in tests/chaos, those of pipelines in tests/pipelines.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.chaos.members import LocalGroup, local_group_in
from tests.promises.backends import COORDINATED, EXCEPTIONS, apache_with_coordinator

from lanemq.testing.embedded import EmbeddedBroker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not COORDINATED:
        return
    for item in items:
        why = next((why for name, why in EXCEPTIONS.items() if item.path.name.startswith(name)), None)
        item.add_marker(pytest.mark.timeout(300) if why is None else pytest.mark.skip(reason=why))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    server = partial(apache_with_coordinator, tmp_path) if COORDINATED else EmbeddedBroker
    with local_group_in(tmp_path, server) as group:
        yield group
