"""A broker in this process and a way to run commands against it."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from lanemq.cli.main import main
from lanemq.client.producer.producer import Producer
from lanemq.testing.embedded import EmbeddedBroker

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tests ask where nobody listens; what waiting is for has tests of its own."""
    monkeypatch.setattr("lanemq.cli.wait_for_broker.WAIT_SECONDS", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("topic", "list")` asks the embedded broker; the result has exit_code, stdout and stderr."""
    monkeypatch.setenv("LANEMQ_SERVER", broker.address)
    runner = CliRunner()
    return lambda *words, stdin=None: runner.invoke(main, list(words), input=stdin)


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(broker.address) as running:
        yield running
