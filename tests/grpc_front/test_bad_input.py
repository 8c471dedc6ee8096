"""Clients that ask for what is not allowed, or vanish: each has a clear status, and nothing is lost."""

import time

import grpc
import pytest
from tests.grpc_front.client import Got
from tests.grpc_front.conftest import Scene
from tests.grpc_front.test_front import one

from lanemq.client.admin.parked import ParkedAdmin
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.transport import MESSAGE_ROOM
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.codec import decode
from lanemq.wire.grpc.messages import Code

pytestmark = pytest.mark.slow

MINUTE = m.Duration.of_ms(60_000)
LARGEST = FrontOptions(servers="127.0.0.1:9876").max_body_bytes


def test_a_body_that_is_too_large_is_refused_and_the_next_message_is_stored(scene: Scene) -> None:
    client = scene.client()
    entry = client.send("x" * (LARGEST + 1)).entries[0]
    assert entry.status is not None
    assert entry.status.code == Code.MESSAGE_BODY_TOO_LARGE
    with pytest.raises(grpc.RpcError) as refused:
        client.send("x" * (LARGEST + MESSAGE_ROOM))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    client.send("small")
    assert one(client).body == "small"


def test_a_topic_that_does_not_exist_is_said_to_producers_and_consumers(scene: Scene) -> None:
    client = scene.client(topic="no-such-topic")
    entry = client.send("0").entries[0]
    assert entry.status is not None
    assert entry.status.code == Code.TOPIC_NOT_FOUND
    assert client.status() == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize("handle", ["", "no handle", "x.1.0.0.0", "1.1.1.1.1.1.1", "\N{SNOWMAN}" * 1000])
def test_a_handle_that_nobody_made_decides_nothing(scene: Scene, handle: str) -> None:
    client = scene.client()
    client.send("0")
    got = one(client)
    forged = Got(got.body, handle, 1, got.key, got.topic, {}, got.message_id)
    assert client.acknowledge(forged) == Code.INVALID_RECEIPT_HANDLE
    assert client.change(forged, 1000)[0] == Code.INVALID_RECEIPT_HANDLE
    assert client.forward(forged) == Code.OK, "clients repeat anything else for ever"
    assert client.receive(poll_ms=200) == [], "the message is with its client still"
    assert client.acknowledge(got) == Code.OK


def test_a_message_that_nobody_acknowledges_is_parked_and_its_key_only(scene: Scene) -> None:
    client = scene.client()
    client.send("0", key="never")
    second = m.Duration.of_ms(1000)
    attempts, until = 0, time.monotonic() + 60
    with ParkedAdmin(scene.broker.address) as admin:
        while not admin.lanes(scene.group) and time.monotonic() < until:
            attempts += len(client.receive(batch=1, invisible_duration=second, poll_ms=500))
        assert [lane.key for lane in admin.lanes(scene.group)] == ["never"]
    assert attempts == 3, "the first one, and the two retries of this front"
    client.send("1", key="other")
    assert one(client).body == "1"


def test_what_a_client_has_not_read_of_an_answer_when_it_vanishes_goes_to_another(scene: Scene) -> None:
    sender, first, second = scene.client(), scene.client(), scene.client()
    large = "x" * 500_000  # together more than a client takes before it reads
    for number in range(10):
        sender.send(f"{number}{large}", key=f"k{number}")
    answer = first.receiving(batch=32, invisible_duration=MINUTE, poll_ms=10_000, seconds=15)
    next(answer)  # its status
    assert decode(m.ReceiveMessageResponse, next(answer)).message is not None
    first.channel.close()
    taken, until = set[str](), time.monotonic() + 20
    while len(taken) < 10 and time.monotonic() < until:
        for got in second.receive(batch=32, invisible_duration=MINUTE, poll_ms=500, seconds=10):
            assert second.acknowledge(got) == Code.OK
            taken.add(got.body[:1])
    assert len(taken) == 10
