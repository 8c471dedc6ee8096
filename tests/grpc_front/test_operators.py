"""Operators see the clients of a front, and what each of them has."""

import time

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests.grpc_front.conftest import Scene
from tests.grpc_front.test_front import one

from lanemq.cli.commands.group import group as group_command
from lanemq.cli.commands.key import why
from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings
from lanemq.wire.grpc.messages import Code

pytestmark = pytest.mark.slow


def page_of(scene: Scene) -> str:
    """The console's page of the group."""
    app = console_app(ConsoleSettings(scene.broker.address), "token")
    with TestClient(app, base_url="http://127.0.0.1:9870", client=("127.0.0.1", 50000)) as browser:
        return browser.get(f"/groups/{scene.group}").text


def test_group_and_key_name_the_client(scene: Scene) -> None:
    client = scene.client(language="JAVA")
    client.send("0", key="k")
    got = one(client)
    until, shown = time.monotonic() + 10, ""
    while client.id not in shown and time.monotonic() < until:
        shown = CliRunner().invoke(group_command, ["describe", scene.group, "--server", scene.broker.address]).output
    assert client.id in shown
    assert "java" in shown
    assert "1 message" in shown
    page = page_of(scene)
    assert client.id in page
    assert "5.0.0" in page
    reason = CliRunner().invoke(why, ["k", "--topic", scene.topic, "--server", scene.broker.address])
    assert f"its handler at {client.id} (java 5.0.0)" in " ".join(reason.output.split()), reason.output
    assert client.acknowledge(got) == Code.OK
