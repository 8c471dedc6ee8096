"""The cut-over of the guide and the way back, run as they stand there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest
from click.testing import CliRunner
from tests.documents import ROOT, snippets
from tests.mirror.pair import Pair, by_key, send
from tests.mirror.test_moving_groups import consume

from lanemq.cli.main import main

GUIDE = ROOT / "docs" / "guides" / "mirroring.md"


@pytest.mark.slow
def test_the_scripts_of_the_guide_move_topic_and_group_there_and_back(pair: Pair, tmp_path: Path) -> None:
    there, back = [each.code for each in snippets("sh", [GUIDE]) if "cut-over" in each.code and "set -e" in each.code]
    (tmp_path / "lanemq").write_text(f'#!/bin/sh\nexec {sys.executable} -m lanemq.cli.main "$@"\n')
    (tmp_path / "lanemq").chmod(0o755)
    pair.create("orders")
    send(pair.source, "orders", 40)
    finished = consume(pair.source, "orders", "billing", 20)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FROM": pair.source, "TO": pair.target,
    }  # fmt: skip
    done = subprocess.run(["sh", "-c", there], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      verified: 40 messages of 10 keys are equal" in done.stdout
    assert f"group billing: 0 members, lag {40 - len(finished)} messages" in done.stdout
    assert by_key(pair.target, "orders") == by_key(pair.source, "orders")
    send(pair.target, "orders", 20, first=40)
    for line in back.splitlines():
        if line.startswith("lanemq "):
            words = shlex.split(Template(line).substitute(FROM=pair.source, TO=pair.target))
            moved = CliRunner().invoke(main, words[1:])
            assert moved.exit_code == 0, moved.output
    assert f"ok      positions: 1 groups moved, {60 - len(finished)} messages left for them" in moved.stdout
    assert by_key(pair.target, "orders") == by_key(pair.source, "orders")
