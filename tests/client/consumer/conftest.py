"""A broker per module and a topic per test."""

from collections.abc import Iterator

import pytest

from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t-{abs(hash(request.node.name)) % 10**9}"
