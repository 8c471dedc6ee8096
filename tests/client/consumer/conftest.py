"""A broker per module and a topic per test."""

from collections.abc import Iterator

import pytest

from lanemq.client.admin.admin import Admin
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of four queues that no other test knows."""
    name = f"t-{abs(hash(request.node.name)) % 10**9}"
    if "broker" in request.fixturenames:
        with Admin(request.getfixturevalue("broker").address) as admin:
            admin.ensure_topic(name, 4)
    return name
