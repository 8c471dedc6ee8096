"""SIGHUP makes a broker read its users again, and does not end it."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.broker.raw_client import RawClient

USERS = '[[user]]\naccess_key = "{name}"\nsecret_key = "secret-of-a-test"\nadmin = true\n'


def test_sighup_reads_users_again(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS.format(name="first"))
    users.chmod(0o600)
    command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path / "data"), "--users", str(users), "--monitor", "off"]
    broker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert broker.stderr is not None
    try:
        started = broker.stderr.readline()
        assert " on 127.0.0.1:" in started
        users.write_text(USERS.format(name="second"))
        broker.send_signal(signal.SIGHUP)
        assert "read again" in broker.stderr.readline()
        with RawClient(started.split(" on ")[1].split(",")[0]) as raw:
            assert raw.send("T").code != 0, "it runs"
    finally:
        broker.terminate()
        broker.communicate(timeout=60)
    assert broker.returncode == 0
