"""What README.md shows is run as it stands, against a real broker; only the address is another."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from lanemq.cli.main import main
from lanemq.client.admin.admin import Admin
from lanemq.testing.embedded import EmbeddedBroker

README = (Path(__file__).resolve().parent.parent / "README.md").read_text("utf-8")
ADDRESS = "localhost:9876"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def address() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", queues=8, ordered=True)
        yield broker.address


def start(code: str, address: str) -> subprocess.Popen[str]:
    assert ADDRESS in code
    command = [sys.executable, "-c", code.replace(ADDRESS, address)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_is_sent_is_received_in_order(address: str) -> None:
    send, receive = blocks("python")
    with start(send, address) as sender:
        receipts = [line.split() for line in sender.communicate(timeout=60)[0].splitlines()]
    assert sender.returncode == 0
    assert {queue for queue, _ in receipts} == {receipts[0][0]}
    assert [offset for _, offset in receipts] == ["0", "1", "2"]
    with start(receive, address) as receiver:
        assert receiver.stdout is not None
        lines = [receiver.stdout.readline().strip() for _ in range(3)]
        receiver.send_signal(signal.SIGTERM)
        _, trouble = receiver.communicate(timeout=60)
    assert lines == ["order-42 created", "order-42 paid", "order-42 shipped"]
    assert receiver.returncode == 0, trouble


def shell_lines() -> list[list[str]]:
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [[word for word in line if word != "&"] for line in lines if line and line[0] == "lanemq"]


@pytest.mark.parametrize("words", shell_lines(), ids=" ".join)
def test_a_command_is_understood(words: list[str]) -> None:
    """Parsed as click would, without running it."""
    context, command, rest = click.Context(main), main.get_command(click.Context(main), words[1]), words[2:]
    while isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    assert command is not None
    command.make_context(words[1], rest, parent=context)


def test_the_table_lists_every_command() -> None:
    assert re.findall(r"^\| `lanemq (\w+)` \|", README, re.MULTILINE) == main.list_commands(click.Context(main))


def test_one_sentence_per_line() -> None:
    """Markdown that changes sentence by sentence is reviewed sentence by sentence; lists may hold a few."""
    prose = [line for line in README.splitlines() if line[:1].isalpha()]
    assert [line for line in prose if re.search(r"[a-z`)]\. [A-Z]", line)] == []
