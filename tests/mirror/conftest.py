"""Two brokers."""

from collections.abc import Iterator

import pytest
from tests.mirror.pair import Pair

from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with EmbeddedBroker() as source, EmbeddedBroker() as target:
        yield Pair(source.address, target.address)
