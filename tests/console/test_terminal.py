"""The state that the pages show, in a terminal of eighty columns: every table fits."""

import re

import pytest
from click.testing import CliRunner
from tests.console.conftest import Stage

from lanemq.cli import output
from lanemq.cli.main import main

TABLES = {
    "status": "ready, durable",
    "topic list": "orders",
    "topic describe orders": "last stored",
    "group list": "shipping",
    "group describe shipping": "worker-1@1",
    "locks": "worker-1@1",
    "key order-7 --topic orders": "parked",
    "parked list": "no carrier takes order-7",
    "parked show order-7 --group shipping": "paid",
    "dead list --group mail": "no mail address",
    "config show": "retention",
}
SENTENCE = re.compile(r"group shipping waits for an operator: |  once the cause is fixed: |after \d+ attempts: ")
"""What `key` prints under its table: the terminal folds sentences."""


@pytest.mark.parametrize(("command", "text"), TABLES.items())
def test_every_table_fits_eighty_columns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, text: str
) -> None:
    lines = shown(stage, monkeypatch, command, 80)
    assert re.sub(r"\s+", "", text) in re.sub(r"\s+", "", "".join(lines))  # a cell may be folded
    assert [line for line in lines if len(line) > 80 and not SENTENCE.match(line)] == []


def test_control_without_the_width_of_the_terminal_tables_are_wider(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(map(len, shown(stage, monkeypatch, "parked list", 400))) > 80


def shown(stage: Stage, monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> list[str]:
    monkeypatch.setattr(output, "_width", lambda stream: width)
    result = CliRunner().invoke(main, command.split(), env={"LANEMQ_SERVER": stage.address})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()
