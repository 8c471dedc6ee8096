"""The pytest plugin: a broker, topics and groups for tests. It is active wherever LaneMQ is installed.

All tests share one broker, because its start takes longer than most tests. Each test gets a topic and a group that no
other test has. A test that stops or kills its broker asks for one of its own: `@pytest.mark.lanemq(own_broker=True)`.
"""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lanemq.testing.embedded import EmbeddedBroker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lanemq(own_broker=True): the test gets a broker that no other test uses")


@pytest.fixture(scope="session")
def lanemq_session_broker() -> "Iterator[EmbeddedBroker]":
    """The broker that all tests share, for fixtures of session scope."""
    from lanemq.testing.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def lanemq_broker(request: pytest.FixtureRequest) -> "Iterator[EmbeddedBroker]":
    """A real broker on a free port: `lanemq_broker.address`. Paused or stopped, it runs again after the test."""
    from lanemq.testing.embedded import EmbeddedBroker

    if _wants_own_broker(request.node.get_closest_marker("lanemq")):
        with EmbeddedBroker() as broker:
            yield broker
        return
    shared: EmbeddedBroker = request.getfixturevalue("lanemq_session_broker")
    yield shared
    shared.heal()


def _wants_own_broker(mark: pytest.Mark | None) -> bool:
    """Refuses a misspelt option, with which the test would stop or kill the broker of all the others."""
    if mark is None:
        return False
    if mark.args or {*mark.kwargs} - {"own_broker"}:
        words = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
        raise pytest.UsageError(f"@pytest.mark.lanemq({words}): the only option is own_broker=True")
    return bool(mark.kwargs.get("own_broker"))


@pytest.fixture
def lanemq_topic(lanemq_broker: "EmbeddedBroker") -> str:
    """The name of a new ordered topic with four queues."""
    from lanemq.client.admin.admin import Admin

    name = f"test-{uuid.uuid4().hex[:12]}"
    with Admin(lanemq_broker.address) as admin:
        admin.create_topic(name, 4, ordered=True)
    return name


@pytest.fixture
def lanemq_group() -> str:
    """The name of a new group."""
    return f"test-{uuid.uuid4().hex[:12]}"
