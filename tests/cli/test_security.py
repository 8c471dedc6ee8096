"""TLS and credentials on the command line, against a broker process that needs both."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.certificates import Authority
from tests.guarded_broker import SECRET, users_file

from lanemq.cli.main import main
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker in its own process, with the event loop that users run."""
    folder, identity = tmp_path_factory.mktemp("broker"), authority.issue("broker")
    command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0", "--data", folder / "data"]
    command += ["--tls-cert", identity.cert, "--tls-key", identity.key, "--users", users_file(folder)]
    with subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        result = process.stderr.readline()
        yield result.split(" on ")[1].split(",")[0]
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return tmp_path / "secret"


def lanemq(*words: object) -> Result:
    return CliRunner().invoke(main, [*map(str, words)])


def test_commands_use_tls_and_credentials_from_flags(server: str, authority: Authority, secret: Path) -> None:
    how = ("--server", server, "--tls-ca", authority.ca, "--access-key", "root", "--secret-key-file", secret)
    assert lanemq("topic", "create", "orders", "--ordered", *how).exit_code == 0
    assert lanemq("send", "orders", "hello", "--key", "a", *how).exit_code == 0
    result = lanemq("tail", "orders", "--from", "first", "--count", "1", *how)
    assert (result.exit_code, "hello" in result.stdout) == (0, True), result.stderr
    assert lanemq("group", "list", *how).exit_code == 0
    assert lanemq("parked", "list", *how).exit_code == 0
    assert lanemq("key", "a", "--topic", "orders", *how).exit_code == 0


def test_commands_use_tls_and_credentials_from_the_environment(
    server: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TLS_CA", authority.ca), ("ACCESS_KEY", "root"), ("SECRET_KEY", SECRET), ("SERVER", server)):
        monkeypatch.setenv(f"LANEMQ_{name}", str(value))
    assert lanemq("topic", "list").exit_code == 0


def test_a_mirror_uses_tls_and_credentials_for_one_side_only(
    server: str, authority: Authority, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = ("--server", server, "--tls-ca", authority.ca, "--access-key", "root", "--secret-key-file", secret)
    with EmbeddedBroker() as source:
        both = ("mirrored", "--from", source.address, "--to", server)
        assert lanemq("topic", "create", "mirrored", "--ordered", "--server", source.address).exit_code == 0
        assert lanemq("topic", "create", "mirrored", "--ordered", *guarded).exit_code == 0
        assert lanemq("send", "mirrored", "hello", "--key", "a", "--server", source.address).exit_code == 0
        refused = lanemq("mirror", "verify", *both)
        assert refused.exit_code == 1, "the target takes nothing without them"
        for name, value in (("TLS_CA", authority.ca), ("ACCESS_KEY", "root"), ("SECRET_KEY", SECRET)):
            monkeypatch.setenv(f"LANEMQ_TO_{name}", str(value))
        copied = lanemq("mirror", "run", *both, "--until-drained")
        assert (copied.exit_code, "1 message copied" in copied.stdout) == (0, True), copied.output
        equal = lanemq("mirror", "verify", *both)
        assert (equal.exit_code, "both sides are equal" in equal.stdout) == (0, True), equal.output


def test_flags_override_the_environment_and_restore_it(
    server: str, authority: Authority, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TLS", "off"), ("ACCESS_KEY", "absent"), ("SECRET_KEY", "another one")):
        monkeypatch.setenv(f"LANEMQ_{name}", value)
    before = dict(os.environ)
    how = ("--server", server, "--tls-ca", authority.ca, "--access-key", "root", "--secret-key-file", secret)
    result = lanemq("topic", "list", *how)
    assert result.exit_code == 0, result.stderr
    assert dict(os.environ) == before


def test_a_refusal_is_one_line_with_advice(server: str, authority: Authority) -> None:
    result = lanemq("topic", "list", "--server", server, "--tls-ca", authority.ca)
    assert result.exit_code == 1
    assert "connect with credentials" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_untrusted_broker_is_not_reported_as_missing(server: str) -> None:
    """The advice to start a broker is only for a missing broker."""
    result = lanemq("topic", "list", "--server", server, "--tls")
    assert result.exit_code == 1
    assert "not signed by the system's authorities" in result.stderr
    assert "Start one with" not in result.stderr
    assert ": --tls-ca must name the file of the one that signed it" in result.stderr, "named as a flag"


@pytest.mark.parametrize("words", [("topic", "list"), ("send", "orders", "hello", "--key", "a")])
def test_a_connection_closed_without_an_answer_is_explained(words: tuple[str, ...]) -> None:
    """Some brokers close connections without TLS; so does one that dies, so the cause is only a guess."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        thread = threading.Thread(target=hang_up, args=(deaf,))
        thread.start()
        result = lanemq(*words, "--server", f"127.0.0.1:{deaf.getsockname()[1]}")
        deaf.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert result.exit_code == 1
    assert "it hangs, is not a broker, or takes nothing but TLS (then connect with --tls)" in result.stderr
    assert ") Start one" not in result.stderr


def hang_up(server: socket.socket) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            peer.recv(1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--access-key", "root"), "--access-key root: the secret is missing; give --secret-key-file or set LANEMQ_"),
        (
            ("--secret-key-file", "any"),
            "--secret-key-file: the user is missing; give --access-key or set LANEMQ_ACCESS_KEY",
        ),
    ],
)
def test_incomplete_credentials_are_reported_with_the_flags(words: tuple[str, ...], expected: str) -> None:
    result = lanemq("topic", "list", "--server", "127.0.0.1:1", *words)
    assert result.exit_code == 2
    assert expected in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--tls-mode", "enforcing"), 2, "need --tls-cert"),
        (("--tls-cert", "missing.pem"), 2, "tls cert missing.pem: cannot be read"),
        (("--users", "missing.toml"), 2, "users file missing.toml: cannot be read"),
    ],
)
def test_a_broker_with_unusable_files_does_not_start(
    tmp_path: Path, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = lanemq("broker", "--listen", "127.0.0.1:0", "--data", tmp_path / "data", *words)
    assert result.exit_code == code
    assert expected in result.stderr


def test_a_secret_cannot_be_an_argument() -> None:
    """Every user of a machine can read the arguments of all processes."""
    result = lanemq("topic", "list", "--secret-key", "hush")
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_tls_options_have_a_part_of_the_help_of_their_own() -> None:
    for words in (("tail",), ("topic", "create"), ("status",)):
        own, _, protecting = lanemq(*words, "--help").stdout.partition("TLS and credentials:")
        assert "--tls" not in own.partition("Options:")[2]
        assert "--server" in own
        assert "--tls-ca" in protecting
        assert "--secret-key-file" in protecting
