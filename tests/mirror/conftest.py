"""Two brokers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mirror.pair import Pair

from lanemq.broker.config import BrokerOptions
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker() as source,
        EmbeddedBroker(BrokerOptions(Path(folder), listen=Address("127.0.0.1", 0), name="there")) as target,
    ):
        yield Pair(source.address, target.address)
