"""Child processes end when the process that started them is gone."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.client.consumer.with_broker import wait_for

from lanemq.cli.main import main
from lanemq.signals import PARENT_PIPE, end_with_parent
from lanemq.testing.demo.traffic import traffic

NO_PIPE = "987654"

PARENT = """
import signal, sys
from lanemq.signals import ChildProcesses

child = ChildProcesses().start([sys.executable, "-c", sys.argv[1]])
signal.pause()
"""
CHILD = """
import os, pathlib, signal
from lanemq.signals import end_with_parent

def on_term(*_):
    pathlib.Path("ended").touch()
    os._exit(0)

signal.alarm(60)
signal.signal(signal.SIGTERM, on_term)
end_with_parent()
assert "LANEMQ_PARENT_PIPE" not in os.environ
pathlib.Path("ready").touch()
signal.pause()
"""


def test_a_child_gets_sigterm_when_its_parent_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], cwd=tmp_path) as parent:
        wait_for((tmp_path / "ready").exists)
        assert not (tmp_path / "ended").exists()
        parent.kill()
    wait_for((tmp_path / "ended").exists)


@pytest.mark.parametrize("command", [main, traffic])
def test_the_commands_that_run_as_children_watch_their_parent(
    command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT_PIPE, NO_PIPE)
    assert command.callback is not None
    command.callback()
    assert PARENT_PIPE not in os.environ


@pytest.mark.parametrize("number", ["", "x", NO_PIPE])
def test_a_process_without_such_a_parent_goes_on(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT_PIPE, number)
    end_with_parent()
    assert PARENT_PIPE not in os.environ
