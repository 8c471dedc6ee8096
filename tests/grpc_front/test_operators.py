"""Operators see the clients of a front, and what each of them has."""

import time
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests.grpc_front.client import FakeClient
from tests.grpc_front.conftest import RunningFront, Scene
from tests.grpc_front.test_front import one

from lanemq.cli.commands.group import group as group_command
from lanemq.cli.commands.key import why
from lanemq.console.app import console_app
from lanemq.console.settings import ConsoleSettings
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
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


def test_health_and_metrics_say_what_clients_have(lanemq_session_broker: EmbeddedBroker, scene: Scene) -> None:
    front = RunningFront(lanemq_session_broker.address, monitor=Address("127.0.0.1", 0))
    client = FakeClient(front.address, group=scene.group, topic=scene.topic, language="GO")
    scene.opened(client)
    client.send("0")
    got = one(client)
    assert asked(front, "/ready")[0] == 200
    _, text = asked(front, "/metrics")
    assert f'lanemq_grpc_clients{{group="{scene.group}",language="golang"}} 1.0' in text
    assert f'lanemq_grpc_held_messages{{group="{scene.group}"}} 1.0' in text
    assert "lanemq_grpc_stored_total 1.0" in text
    stopping = front.begin_stop()  # it waits for the client
    until, ready = time.monotonic() + 4, (200, "")
    while ready[0] == 200 and time.monotonic() < until:
        ready = asked(front, "/ready")
    assert ready[0] == 503
    assert "stopping" in ready[1]
    assert client.acknowledge(got) == Code.OK
    stopping.join(20)


def asked(front: RunningFront, path: str) -> tuple[int, str]:
    """The status and text of a page of the front's monitor."""
    assert front.front.monitor is not None
    try:
        with urllib.request.urlopen(f"http://{front.front.monitor.address}{path}", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
