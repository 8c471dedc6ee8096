"""A broker for all tests here, and a topic and a group for each."""

import uuid
from collections.abc import Iterator

import pytest

from lanemq.client.admin import Admin
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """Shared: every test has a topic and a group of its own."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A topic of two queues that no other test knows."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(broker.address) as admin:
        admin.create_topic(name, 2)
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"
