"""An embedded broker, and `run` to call commands against it."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from lanemq.cli.main import main
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.testing.embedded import EmbeddedBroker

Run = Callable[..., Result]

TOPICS = [NewTopic(name, 4, ordered=False) for name in ("one-of-two", "two-of-two", "long", "followed")]
"""Topics that tests send keys to without creating them."""


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands do not wait for a broker; test_wait_for_broker.py tests that."""
    monkeypatch.setattr("lanemq.cli.wait_for_broker.WAIT_SECONDS", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("topic", "list")` calls the command with the embedded broker; results have exit_code, stdout and stderr."""
    monkeypatch.setenv("LANEMQ_SERVER", broker.address)
    runner = CliRunner()
    return lambda *words, stdin=None: runner.invoke(main, list(words), input=stdin)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands ask before they destroy something; the answer is `stdin`."""
    monkeypatch.setattr("lanemq.cli.options.is_terminal", lambda: True)


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(broker.address, create=TOPICS) as running:
        yield running
