"""Users of a front: signatures, and rights per topic and group."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.grpc_front.conftest import RunningFront, Scene

from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.messages import Code

USERS = """
[[user]]
access_key = "billing"
secret_key = "bill-secret"
topics = {{ "{topic}" = "PUB|SUB" }}
groups = {{ "{group}" = "SUB" }}

[[user]]
access_key = "reader"
secret_key = "read-secret"
topics = {{ "{topic}" = "SUB" }}
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def guarded(lanemq_session_broker: EmbeddedBroker, scene: Scene, tmp_path: Path) -> Iterator[Scene]:
    """The scene, with a front that has users."""
    file = tmp_path / "users.toml"
    file.write_text(USERS.format(topic=scene.topic, group=scene.group))
    open_front = scene.front
    scene.front = RunningFront(lanemq_session_broker.address, users=file)
    yield scene
    scene.front.stop()
    scene.front = open_front


def send_code(scene: Scene, **options: str) -> int:
    answer = scene.client(**options).send("0")
    assert answer.status is not None
    return answer.status.code


def test_a_user_with_rights(guarded: Scene) -> None:
    client = guarded.client(user="billing", secret="bill-secret")
    assert send_code(guarded, user="billing", secret="bill-secret") == Code.OK
    got: list[object] = []
    while not got:
        got = [*client.receive()]
    assert client.acknowledge(*got) == Code.OK  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "secret", "code"),
    [
        ("", "", Code.UNAUTHORIZED),
        ("billing", "wrong-secret", Code.UNAUTHORIZED),
        ("nobody", "bill-secret", Code.UNAUTHORIZED),
        ("reader", "read-secret", Code.FORBIDDEN),
    ],
)
def test_others_cannot_send(guarded: Scene, user: str, secret: str, code: Code) -> None:
    assert send_code(guarded, user=user, secret=secret) == code


def test_every_call_is_checked(guarded: Scene) -> None:
    client = guarded.client()
    topic, group = m.Resource(name=guarded.topic), m.Resource(name=guarded.group)
    calls = [
        ("QueryRoute", m.QueryRouteRequest(topic), m.QueryRouteResponse),
        ("QueryAssignment", m.QueryAssignmentRequest(topic, group), m.QueryAssignmentResponse),
        ("Heartbeat", m.HeartbeatRequest(group), m.StatusResponse),
        ("NotifyClientTermination", m.TerminationRequest(group), m.StatusResponse),
        ("AckMessage", m.AckMessageRequest(group, topic, [m.AckMessageEntry("i", "h")]), m.AckMessageResponse),
        ("ForwardMessageToDeadLetterQueue", m.ForwardRequest(group, topic, "h"), m.StatusResponse),
        ("ChangeInvisibleDuration", m.ChangeInvisibleRequest(group, topic, "h"), m.ChangeInvisibleResponse),
    ]
    for method, request, answer in calls:
        found = client.call(method, request, answer).status  # type: ignore[attr-defined]
        assert found.code == Code.UNAUTHORIZED, method
    assert client.status() == Code.UNAUTHORIZED
    telemetry = client.telemetry(m.Settings(m.ClientType.PRODUCER, publishing=m.Publishing()))
    told = telemetry.answer()
    telemetry.close()
    assert told.status is not None
    assert told.status.code == Code.UNAUTHORIZED


def test_nobody_else_can_use_the_id_of_a_client(guarded: Scene) -> None:
    client = guarded.client(user="billing", secret="bill-secret")
    assert client.receive(poll_ms=100) == []
    other = guarded.client(user="reader", secret="read-secret", id=client.id)
    assert other.terminate() == Code.FORBIDDEN


def test_a_reader_cannot_be_a_member(guarded: Scene) -> None:
    assert guarded.client(user="reader", secret="read-secret").status() == Code.FORBIDDEN
