"""`lanemq context`: which broker commands talk to."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from lanemq.cli.contexts import contexts_file
from lanemq.testing import EmbeddedBroker


@pytest.fixture(autouse=True)
def _no_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANEMQ_SERVER")


def names(run: Run) -> dict[str, bool]:
    return {each["context"]: each["in_use"] for each in json.loads(run("context", "list", "--json").stdout)}


def test_commands_talk_to_the_broker_of_the_context(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    assert topic not in run("topic", "list").stdout  # from the default address, where a broker may run
    assert run("context", "set", "here", "--server", broker.address).exit_code == 0
    assert topic in run("topic", "list").stdout
    assert contexts_file().stat().st_mode & 0o777 == 0o600


def test_flags_and_variables_win_over_the_context(
    run: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("context", "set", "elsewhere", "--server", "localhost:1")
    assert "localhost:1" in run("topic", "list").stderr
    assert run("topic", "list", "--server", broker.address).exit_code == 0
    monkeypatch.setenv("LANEMQ_SERVER", broker.address)
    assert run("topic", "list").exit_code == 0


def test_the_list_names_the_server_of_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "talk to localhost:9876" in run("context", "list").stdout
    monkeypatch.setenv("LANEMQ_SERVER", "localhost:7")
    shown = run("context", "list")
    assert "talk to localhost:7" in shown.stdout
    assert "LANEMQ_SERVER=localhost:7 is set in this shell, and wins" in shown.stderr


def test_contexts_are_chosen_and_deleted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no contexts" in run("context", "list").stdout
    run("context", "set", "one", "--server", "localhost:1")
    run("context", "set", "two", "--server", "localhost:2")
    assert names(run) == {"one": False, "two": True}
    run("context", "use", "one")
    assert names(run) == {"one": True, "two": False}
    monkeypatch.setenv("LANEMQ_CONTEXT", "two")
    assert "localhost:2" in run("topic", "list").stderr
    monkeypatch.setenv("LANEMQ_CONTEXT", "three")
    assert "there is no context 'three'" in run("topic", "list").stderr
    monkeypatch.delenv("LANEMQ_CONTEXT")
    run("context", "delete", "one")
    assert names(run) == {"two": False}
    assert run("context", "use", "one").exit_code == 1


def test_tls_and_users_belong_to_the_context_and_secrets_do_not(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    missing = tmp_path / "missing.pem"
    run("context", "set", "safe", "--server", "localhost:1", "--access-key", "ann", "--secret-key-file", str(secret))
    assert "hidden" not in contexts_file().read_text()
    run("context", "set", "safe", "--server", "localhost:1", "--tls-ca", str(missing))
    assert "missing.pem" in run("topic", "list").stderr
    assert "missing.pem" not in run("topic", "list", "--server", "localhost:1").stderr


def test_a_damaged_file_is_named(run: Run) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text("{")
    result = run("topic", "list")
    assert result.exit_code == 1
    assert "contexts.json cannot be read" in result.stderr
