"""One coordinator beside the broker of the session: a cluster has one."""

from collections.abc import Iterator

import pytest

from interop.coordinator.node import CoordinatorNode


@pytest.fixture(scope="session")
def coordinator(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorNode]:
    node = CoordinatorNode(address, tmp_path_factory.mktemp("coordinator"))
    node.start()
    yield node
    node.stop()
