"""What clients of a front get for their calls."""

import time

import grpc
import pytest
from tests.grpc_front.client import FakeClient, Got
from tests.grpc_front.conftest import Scene

from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.codec import decode, encode
from lanemq.wire.grpc.messages import Code

pytestmark = pytest.mark.slow


def one(client: FakeClient, **options: object) -> Got:
    """The next message of a client, with some patience."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = client.receive(batch=1, **options)
        if found:
            return found[0]
    raise AssertionError("no message came")


def bodies(client: FakeClient, count: int) -> list[str]:
    """The bodies of so many messages, each acknowledged before the next is asked for."""
    found = []
    for _ in range(count):
        got = one(client)
        assert client.acknowledge(got) == Code.OK
        found.append(got.body)
    return found


def test_messages_of_a_group_are_stored_by_key_and_come_in_order(scene: Scene) -> None:
    client = scene.client()
    for number in range(5):
        assert client.send(f"{number}").entries[0].status == m.Status(Code.OK, "OK")
    got = one(client)
    assert (got.body, got.key, got.attempt, got.properties["colour"]) == ("0", "k", 1, "red")
    assert client.acknowledge(got) == Code.OK
    assert bodies(client, 4) == ["1", "2", "3", "4"]


def pipelined(scene: Scene, count: int) -> list[int]:
    """The offsets of so many messages that are sent at once, without waiting for answers."""
    client = scene.client()
    client.send("first")  # gRPC's client sends in any order what waits for its connection
    unary = client.channel.unary_unary(f"/{m.SERVICE}/SendMessage")
    topic = m.Resource(name=scene.topic)
    sending = []
    for number in range(count):
        system = m.SystemProperties(message_id=f"P{scene.topic}{number}", message_group="k")
        request = m.SendMessageRequest([m.WireMessage(topic, {}, system, b"%d" % number)])
        sending.append(unary.future(encode(request), timeout=60, metadata=client.metadata))
    answers = [decode(m.SendMessageResponse, each.result()) for each in sending]
    return [answer.entries[0].offset for answer in answers]


def test_calls_of_one_connection_are_begun_in_their_order(scene: Scene) -> None:
    assert pipelined(scene, 300) == list(range(1, 301))


def test_thousands_of_calls_at_once_are_not_refused(scene: Scene) -> None:
    assert sorted(pipelined(scene, 3000)) == list(range(1, 3001))


def test_a_second_message_of_a_key_waits_for_the_first(scene: Scene) -> None:
    first, second = scene.client(), scene.client()
    for number in range(2):
        first.send(f"{number}")
    got = one(first)
    assert second.receive(poll_ms=300) == []
    first.acknowledge(got)
    assert one(second).body == "1"


def test_a_failure_holds_the_key_and_parks_it_at_last(scene: Scene) -> None:
    client = scene.client()
    client.send("bad", key="bad")
    client.send("good", key="good")
    attempts = []
    done = []
    for _ in range(4):
        got = one(client)
        if got.body == "good":
            done.append(got.body)
            client.acknowledge(got)
            continue
        attempts.append(got.attempt)
        assert client.forward(got) == Code.OK
    assert (attempts, done) == ([1, 2, 3], ["good"])
    assert client.receive(poll_ms=500) == []


def test_a_stale_acknowledgement_is_refused_and_a_stale_forward_ignored(scene: Scene) -> None:
    client = scene.client()
    client.send("0")
    client.send("1")
    got = one(client)
    assert client.acknowledge(got) == Code.OK
    assert client.acknowledge(got) == Code.INVALID_RECEIPT_HANDLE
    assert client.change(got, 1000)[0] == Code.INVALID_RECEIPT_HANDLE
    assert client.forward(got) == Code.OK
    after = one(client)
    assert (after.body, after.attempt) == ("1", 1), "the stale forward failed nothing"


def test_an_acknowledgement_without_a_lease_is_not_confirmed(scene: Scene) -> None:
    client = scene.client()
    client.send("0")
    got = one(client)
    scene.broker.pause()
    try:
        time.sleep(1.0)
        assert client.acknowledge(got) in (Code.HA_NOT_AVAILABLE, Code.INVALID_RECEIPT_HANDLE)
    finally:
        scene.broker.heal()


def test_a_failure_without_a_lease_is_to_be_sent_again(scene: Scene) -> None:
    client = scene.client()
    client.send("0")
    got = one(client)
    scene.broker.pause()
    try:
        time.sleep(1.0)
        assert client.forward(got) == Code.HA_NOT_AVAILABLE
    finally:
        scene.broker.heal()
    while client.forward(got) == Code.HA_NOT_AVAILABLE:  # as clients do, every second
        time.sleep(0.1)
    assert one(client).body == "0", "it did not stay with a client that had given it up"


def test_what_a_client_that_ends_has_goes_to_another_at_once(scene: Scene) -> None:
    first, second = scene.client(), scene.client()
    first.send("0")
    lost = one(first)
    began = time.monotonic()
    assert first.terminate() == Code.OK
    again = one(second)
    assert (again.body, again.attempt) == ("0", 1), "no attempt was counted"
    assert time.monotonic() - began < 5
    assert int(again.properties["LANE_DELIVERY"]) > int(lost.properties["LANE_DELIVERY"])
    assert first.acknowledge(lost) == Code.INVALID_RECEIPT_HANDLE


def test_what_a_lost_connection_has_goes_to_another_soon(scene: Scene) -> None:
    first, second = scene.client(), scene.client()
    first.send("0")
    one(first)
    waiting = first.receiving(poll_ms=20_000, seconds=30)
    time.sleep(0.2)
    first.channel.close()
    del waiting
    began = time.monotonic()
    assert one(second).body == "0"
    assert time.monotonic() - began < 5


def test_an_answer_that_its_client_gave_up_returns_at_once(scene: Scene) -> None:
    first, second = scene.client(), scene.client()
    waiting = first.receiving(poll_ms=20_000, seconds=30)
    time.sleep(1.0)
    waiting.cancel()
    time.sleep(0.2)
    first.send("0")
    assert one(second).body == "0", "it did not go to the call that was given up"


def test_a_repeated_call_gets_the_same_handles(scene: Scene) -> None:
    client = scene.client()
    client.send("0")
    until = time.monotonic() + 10
    first: list[Got] = []
    while not first and time.monotonic() < until:
        first = client.receive(attempt_id="one")
    assert client.receive(attempt_id="one") == first
    assert client.receive(attempt_id="two", poll_ms=200) == []


def test_a_message_that_is_sent_again_is_stored_once(scene: Scene) -> None:
    client = scene.client()
    first = client.send("0", message_id="SAME")
    again = client.send("0", message_id="SAME")
    assert first.entries[0].offset == again.entries[0].offset
    client.send("1")
    assert bodies(client, 2) == ["0", "1"]


# simple consumers


def test_a_simple_consumer_gets_a_run_of_a_key(scene: Scene) -> None:
    client = scene.client()
    for number in range(3):
        client.send(f"{number}")
    invisible = m.Duration(10)
    got = [one(client, invisible_duration=invisible)]
    client.acknowledge(*got)
    rest = client.receive(batch=8, invisible_duration=invisible)
    assert [each.body for each in rest] == ["1", "2"]
    assert client.acknowledge(*rest) == Code.OK


def test_what_a_simple_consumer_does_not_acknowledge_comes_again(scene: Scene) -> None:
    client = scene.client()
    client.send("0")
    lost = one(client, invisible_duration=m.Duration(1))
    again = one(client, invisible_duration=m.Duration(10))
    assert (again.body, again.attempt) == ("0", 2)
    assert client.acknowledge(lost) == Code.INVALID_RECEIPT_HANDLE
    assert client.acknowledge(again) == Code.OK


def test_more_time_voids_the_old_handle(scene: Scene) -> None:
    client = scene.client()
    client.send("0")
    got = one(client, invisible_duration=m.Duration(5))
    code, handle = client.change(got, 20_000)
    assert code == Code.OK
    assert client.acknowledge(got) == Code.INVALID_RECEIPT_HANDLE
    got.handle = handle
    assert client.acknowledge(got) == Code.OK


@pytest.mark.parametrize("milliseconds", [0, 999, 13 * 3_600_000])
def test_an_invisible_duration_has_limits(scene: Scene, milliseconds: int) -> None:
    duration = m.Duration.of_ms(milliseconds)
    assert scene.client().status(invisible_duration=duration) == Code.ILLEGAL_INVISIBLE_TIME


# topics without order


def test_a_topic_without_order(scene: Scene) -> None:
    topic = scene.topic + "-normal"
    with Admin(scene.broker.address) as admin:
        admin.create_topic(topic, 2)
    client = scene.client(topic=topic)
    for number in range(4):
        assert client.send(f"{number}", key=None).entries[0].status == m.Status(Code.OK, "OK")
    assert sorted(bodies(client, 4)) == ["0", "1", "2", "3"]


# routes and settings


def test_routes_name_the_address_that_the_client_asked_by(scene: Scene) -> None:
    at = m.Endpoints(m.AddressScheme.DOMAIN_NAME, (m.HostPort("front.example", 8081),))
    request = m.QueryRouteRequest(m.Resource(name=scene.topic), at)
    route = scene.client().call("QueryRoute", request, m.QueryRouteResponse)
    assert len(route.queues) == 4
    assert {queue.id for queue in route.queues} == {0, 1, 2, 3}
    assert all(queue.broker is not None and queue.broker.endpoints == at for queue in route.queues)


def test_an_unknown_topic_is_said_so(scene: Scene) -> None:
    request = m.QueryRouteRequest(m.Resource(name="no-such-topic"))
    answer = scene.client().call("QueryRoute", request, m.QueryRouteResponse)
    assert answer.status is not None
    assert answer.status.code == Code.TOPIC_NOT_FOUND


@pytest.mark.parametrize(
    ("language", "strategy"), [(m.Language.NODE_JS, "exponential"), (m.Language.GOLANG, "customized")]
)
def test_settings_of_a_push_consumer(scene: Scene, language: m.Language, strategy: str) -> None:
    subscription = m.Subscribing(
        m.Resource(name=scene.group),
        [m.SubscriptionEntry(m.Resource(name=scene.topic), m.FilterExpression(m.FilterType.TAG, "*"))],
    )
    settings = m.Settings(
        m.ClientType.PUSH_CONSUMER, subscription=subscription, user_agent=m.UserAgent(language, "5.1.2")
    )
    telemetry = scene.client().telemetry(settings)
    answer = telemetry.answer()
    telemetry.close()
    assert answer.status == m.Status(Code.OK, "OK")
    assert answer.settings is not None
    told, policy = answer.settings.subscription, answer.settings.backoff_policy
    assert told is not None
    assert (told.fifo, told.receive_batch_size) == (True, 32)
    assert policy is not None
    assert policy.max_attempts == 1
    assert getattr(policy, strategy) is not None


def test_tags_of_a_group_must_agree(scene: Scene) -> None:
    first, second = scene.client(), scene.client()
    first.receive(poll_ms=100)
    request = m.ReceiveMessageRequest(
        m.Resource(name=scene.group), m.QueueAt(m.Resource(name=scene.topic)), m.FilterExpression(1, "red"),
        auto_renew=True,
    )  # fmt: skip
    stream = second.channel.unary_stream(f"/{m.SERVICE}/ReceiveMessage")
    parts = [decode(m.ReceiveMessageResponse, part) for part in stream(encode(request), metadata=second.metadata)]
    assert parts[0].status is not None
    assert parts[0].status.code == Code.ILLEGAL_FILTER_EXPRESSION


# what is refused


def test_calls_that_do_not_exist_are_unimplemented(scene: Scene) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        scene.client().call("RecallMessage", m.StatusResponse(), m.StatusResponse)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_bytes_that_are_no_message_are_refused(scene: Scene) -> None:
    unary = scene.client().channel.unary_unary(f"/{m.SERVICE}/AckMessage")
    with pytest.raises(grpc.RpcError) as refused:
        unary(b"\xff\xff\xff", timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"message_type": m.MessageType.DELAY}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": m.MessageType.TRANSACTION}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"body_encoding": m.Encoding.GZIP}, Code.UNSUPPORTED),
    ],
)
def test_messages_that_lanemq_has_not(scene: Scene, more: dict[str, int], code: Code) -> None:
    entry = scene.client().send("0", **more).entries[0]
    assert entry.status is not None
    assert entry.status.code == code


def test_an_ordered_topic_needs_a_message_group(scene: Scene) -> None:
    entry = scene.client().send("0", key=None).entries[0]
    assert entry.status is not None
    assert entry.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_a_lanemq_producer_and_a_grpc_client_use_the_same_lanes(scene: Scene) -> None:
    with Producer(scene.broker.address) as producer:
        producer.send(scene.topic, "python", key="k")
    client = scene.client()
    client.send("grpc")
    assert bodies(client, 2) == ['"python"', "grpc"]
