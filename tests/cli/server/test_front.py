"""`lanemq grpc`, and `lanemq broker --grpc`, whose front is a process of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.certificates import Authority

from lanemq.cli.main import main
from lanemq.cli.options import CliError
from lanemq.cli.server import front
from lanemq.testing.processes import RunningProcess, descendants

pytest.importorskip("grpc")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def eventually(true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def broker_with_front(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--data", str(folder / "data")]
    options = ["--listen", "127.0.0.1:0", "--monitor", "off", "--grpc", f"127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        broker = subprocess.Popen([*command, *options], stderr=log)
        try:
            eventually(lambda: listens(port), "the front listens")
            yield broker
        finally:
            broker.kill()
            broker.wait()
            eventually(lambda: not listens(port), "the front ends with its broker")


def front_of(broker: subprocess.Popen[bytes]) -> RunningProcess:
    (front,) = (each for each in descendants(broker.pid) if " grpc " in each.command)
    return front


@pytest.mark.slow
def test_a_front_that_ends_is_started_again_and_ends_with_its_broker(tmp_path: Path) -> None:
    port = free_port()
    with broker_with_front(tmp_path, port) as broker:
        first = front_of(broker).pid
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not listens(port), "it ended")
        eventually(lambda: listens(port), "it was started again")
        assert front_of(broker).pid != first


@pytest.mark.slow
def test_a_broker_that_stops_stops_its_front_first(tmp_path: Path) -> None:
    port = free_port()
    with broker_with_front(tmp_path, port) as broker:
        broker.terminate()
        assert broker.wait(30) == 0
        assert not listens(port)


@pytest.mark.parametrize("command", [["grpc", "--server", "{server}", "--listen"], ["broker", "--data", "d", "--grpc"]])
def test_users_on_a_network_need_tls(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanemq_session_broker: object
) -> None:
    monkeypatch.chdir(tmp_path)
    users = tmp_path / "users.toml"
    users.write_text('[[user]]\naccess_key = "a"\nsecret_key = "secret-of-a"\n')
    server = lanemq_session_broker.address  # type: ignore[attr-defined]
    words = [word.format(server=server) for word in command]
    ended = CliRunner().invoke(main, [*words, "0.0.0.0:0", "--users", str(users)])
    assert ended.exit_code == 1
    assert "TLS" in ended.output


def test_files_of_secrets_that_every_user_may_read_are_warnings_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: Authority
) -> None:
    def enough(_: object) -> None:
        raise CliError("enough")

    monkeypatch.setattr(front, "check_can_listen", enough)
    issued, users = authority.issue("front"), tmp_path / "users.toml"
    users.touch(0o600)
    words = ["grpc", "--cert", str(issued.cert), "--key", str(issued.key), "--users", str(users)]
    assert "warning" not in CliRunner().invoke(main, words).stderr
    users.chmod(0o644)
    issued.key.chmod(0o644)
    warned = CliRunner().invoke(main, words).stderr
    assert f"warning: {issued.key} holds a private key, and every user of this machine can read it: chmod 600" in warned
    assert f"warning: {users} holds secrets and can be read by other users of this machine: chmod 600" in warned
