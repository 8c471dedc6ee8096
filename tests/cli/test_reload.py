"""SIGHUP makes a broker read its users again, and does not end it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.broker.raw_client import RawClient

from lanemq.cli.errors import CliError
from lanemq.cli.main import main
from lanemq.cli.server import serving

USERS = '[[user]]\naccess_key = "{name}"\nsecret_key = "secret-of-a-test"\nadmin = true\n'


def test_sighup_reads_users_again(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS.format(name="first"))
    users.chmod(0o600)
    command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path / "data"), "--users", str(users), "--monitor", "off"]
    command += ["--log-format", "json"]
    broker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert broker.stderr is not None
    try:
        # Every line is an event in JSON, the first one too.
        started = json.loads(broker.stderr.readline())["message"]
        assert " on 127.0.0.1:" in started
        users.write_text(USERS.format(name="second"))
        broker.send_signal(signal.SIGHUP)
        assert "read again" in json.loads(broker.stderr.readline())["message"]
        with RawClient(started.split(" on ")[1].split(",")[0]) as raw:
            assert raw.send("T").code != 0, "it runs"
    finally:
        broker.terminate()
        broker.communicate(timeout=60)
    assert broker.returncode == 0


def test_sighup_is_ignored_while_a_broker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the signal ends a process, and systemd may send it at any time."""
    seen = []

    def starting(_: object) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise CliError("enough")

    before = signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr(serving, "check_start", starting)
    assert "enough" in CliRunner().invoke(main, ["broker", "--data", str(tmp_path / "d")]).output
    assert seen == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGHUP) == before
