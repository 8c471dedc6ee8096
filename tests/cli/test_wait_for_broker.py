"""Commands that are started just before their broker."""

import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from lanemq.broker.config import BrokerOptions
from lanemq.cli import wait_for_broker as waiting
from lanemq.cli.main import main
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture
def free() -> Address:
    """An address on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", taken.getsockname()[1])


@pytest.fixture
def waits_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 2.0)


@pytest.mark.usefixtures("waits_two_seconds")
def test_a_refused_connection_is_retried(free: Address) -> None:
    """A server listens from the third pause on."""
    pauses: list[float] = []
    with ExitStack() as stack:

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                stack.enter_context(socket.create_server(free))

        waiting.wait_for_broker([free], pause)
    assert len(pauses) == 3


@pytest.mark.usefixtures("waits_two_seconds")
def test_waiting_ends_after_two_seconds(free: Address) -> None:
    pauses: list[float] = []
    waiting.wait_for_broker([free], pauses.append)
    assert sum(pauses) == pytest.approx(2.0)


@pytest.mark.usefixtures("waits_two_seconds")
def test_one_server_of_several_is_enough(free: Address) -> None:
    pauses: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        waiting.wait_for_broker([free, Address("127.0.0.1", server.getsockname()[1])], pauses.append)
    assert pauses == []


@pytest.mark.usefixtures("waits_two_seconds")
def test_other_failures_are_not_retried(monkeypatch: pytest.MonkeyPatch, free: Address) -> None:
    """An unknown host will still be unknown in two seconds."""

    def unknown(*_: object) -> socket.socket:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    pauses: list[float] = []
    waiting.wait_for_broker([free], pauses.append)
    assert pauses == []


def test_command_succeeds_although_its_broker_starts_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: Address
) -> None:
    """The first refusal starts the broker, so the command came first."""
    monkeypatch.setattr(waiting, "WAIT_SECONDS", 30.0)
    refused, broker = threading.Event(), EmbeddedBroker(BrokerOptions(tmp_path, listen=free))
    asked = waiting._refuses

    def noted(address: Address) -> bool:
        refuses = asked(address)
        if refuses and not refused.is_set():
            refused.set()
            broker.start()
        return refuses

    monkeypatch.setattr(waiting, "_refuses", noted)
    try:
        result = CliRunner().invoke(main, ["topic", "create", "early", "--server", str(free)])
    finally:
        broker.stop()
    assert result.exit_code == 0, result.output
    assert refused.is_set()
