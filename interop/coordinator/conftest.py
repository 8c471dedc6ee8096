"""A real Apache broker, and a coordinator beside it."""

from collections.abc import Iterator

import pytest

from interop.coordinator.node import CoordinatorNode
from interop.ports import eventually, route


@pytest.fixture
def broker(address: str) -> int:
    """The port of the broker."""
    found = eventually(lambda: route(int(address.rpartition(":")[2]), "TBW102"), 60, "the broker")
    return int(found["brokerDatas"][0]["brokerAddrs"]["0"].rpartition(":")[2])


@pytest.fixture(scope="session")
def coordinator(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorNode]:
    node = CoordinatorNode(address, tmp_path_factory.mktemp("coordinator"))
    node.start()
    yield node
    node.stop()
