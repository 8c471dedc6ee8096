"""Several fronts of one broker, and how one of them stops."""

import asyncio
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from tests.grpc_front.client import FakeClient, Got
from tests.grpc_front.conftest import RunningFront, Scene
from tests.grpc_front.test_front import one

from lanemq.client.admin.admin import Admin
from lanemq.grpc_front.service import MAX_WAITING
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.codec import decode, encode
from lanemq.wire.grpc.messages import Code

pytestmark = pytest.mark.slow

SUPERVISOR_SECONDS = 20.0
"""After which a broker kills the front that it has started."""


@pytest.fixture
def second(lanemq_session_broker: EmbeddedBroker) -> Iterator[RunningFront]:
    """A front that is stopped by the test, or after it."""
    front = RunningFront(lanemq_session_broker.address, advertise=Address("front-2.example", 18081))
    yield front
    front.stop()


def at(front: RunningFront, scene: Scene, **options: str) -> FakeClient:
    client = FakeClient(front.address, group=scene.group, topic=options.pop("topic", scene.topic), **options)
    scene.opened(client)
    return client


def settings_of(client: FakeClient) -> m.Settings:
    entry = m.SubscriptionEntry(m.Resource(name=client.topic), m.FilterExpression(m.FilterType.TAG, "*"))
    return m.Settings(m.ClientType.PUSH_CONSUMER, subscription=m.Subscribing(m.Resource(name=client.group), [entry]))


def decided(client: FakeClient, got: Got) -> int:
    """The answer to an acknowledgement that is sent again while the front does not reach the broker, as clients do."""
    until = time.monotonic() + 5
    while (code := client.acknowledge(got)) == Code.HA_NOT_AVAILABLE and time.monotonic() < until:
        time.sleep(0.1)
    return code


def both_have_queues(scene: Scene, first: FakeClient, second: FakeClient) -> None:
    """Waits until each front has queues of the topic."""
    with Admin(scene.broker.address) as admin:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            first.receive(poll_ms=100), second.receive(poll_ms=100)
            owners = {queue.owner for queue in admin.describe_group(scene.group).queues if queue.owner}
            if len(owners) == 2:
                return
    raise AssertionError(f"owners: {owners}")


def test_routes_and_assignments_name_the_advertised_address(scene: Scene, second: RunningFront) -> None:
    client = at(second, scene)
    asked = m.Endpoints(m.AddressScheme.DOMAIN_NAME, (m.HostPort("all-fronts.example", 8081),))
    here = m.Endpoints(m.AddressScheme.DOMAIN_NAME, (m.HostPort("front-2.example", 18081),))
    route = client.call("QueryRoute", m.QueryRouteRequest(m.Resource(name=scene.topic), asked), m.QueryRouteResponse)
    assert [queue.broker and queue.broker.endpoints for queue in route.queues] == [here] * 4
    request = m.QueryAssignmentRequest(m.Resource(name=scene.topic), m.Resource(name=scene.group), asked)
    assigned = client.call("QueryAssignment", request, m.QueryAssignmentResponse).assignments
    queues = [each.queue for each in assigned]
    assert [queue and queue.broker and queue.broker.endpoints for queue in queues] == [here] * 4


def test_a_handle_of_another_front_is_refused_at_once(
    scene: Scene, second: RunningFront, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = scene.client(), at(second, scene)
    first.send("0")
    got = one(first)
    began = time.monotonic()
    assert other.acknowledge(got) == Code.INVALID_RECEIPT_HANDLE
    assert other.change(got, 1000)[0] == Code.INVALID_RECEIPT_HANDLE
    assert other.forward(got) == Code.OK, "clients repeat anything else for ever"
    assert time.monotonic() - began < 2
    assert "--advertise" in caplog.text
    assert first.acknowledge(got) == Code.OK, "nothing happened to it"


def test_a_group_continues_at_another_front_while_one_waits_for_its_clients(scene: Scene, second: RunningFront) -> None:
    here, there = scene.client(), at(second, scene)
    both_have_queues(scene, here, there)
    for number in range(20):
        here.send("0", key=f"k{number}")
    slow = one(there)
    telemetry = there.telemetry(settings_of(there))
    telemetry.answer()
    stopping = second.begin_stop()
    found, until = {slow.body + (slow.key or "")}, time.monotonic() + 4
    while len(found) < 20 - 5 and time.monotonic() < until:
        for got in here.receive(poll_ms=200):
            assert decided(here, got) == Code.OK
            found.add(got.body + (got.key or ""))
    assert len(found) >= 20 - 5, "queues without a message at a client are here before that one is decided"
    assert decided(there, slow) == Code.OK, "the front that stops still takes the decision"
    assert telemetry.answer().reconnect is not None
    stopping.join(SUPERVISOR_SECONDS)
    while len(found) < 20:
        got = one(here)
        here.acknowledge(got)
        found.add(got.body + (got.key or ""))
    assert here.receive(poll_ms=300) == [], "what was acknowledged there does not come here"


def test_receives_that_wait_are_answered_when_a_front_stops(scene: Scene, second: RunningFront) -> None:
    client = at(second, scene)
    waiting = client.receiving(poll_ms=20_000, seconds=30)
    time.sleep(0.5)
    second.begin_stop().join(SUPERVISOR_SECONDS)
    answers = [decode(m.ReceiveMessageResponse, part) for part in waiting]
    assert [answer.status and answer.status.code for answer in answers] == [Code.MESSAGE_NOT_FOUND]


@pytest.mark.parametrize("broker_answers", [True, False])
def test_a_stop_ends_before_the_broker_kills_its_front(
    scene: Scene, second: RunningFront, broker_answers: bool
) -> None:
    client = at(second, scene)
    client.send("0")
    one(client)
    if not broker_answers:
        scene.broker.pause()
    began = time.monotonic()
    try:
        second.begin_stop().join(SUPERVISOR_SECONDS + 10)
    finally:
        scene.broker.heal()
    assert time.monotonic() - began < SUPERVISOR_SECONDS - 5


# topics of a group that change


def another_topic(scene: Scene) -> str:
    topic = f"{scene.topic}-more"
    with Admin(scene.broker.address) as admin:
        admin.create_topic(topic, 4, ordered=True)
    return topic


def test_a_topic_is_added_while_a_message_of_another_is_with_a_client(scene: Scene) -> None:
    first, more = scene.client(), another_topic(scene)
    first.send("0")
    got = one(first)
    with Admin(scene.broker.address) as admin:
        members = [member.client_id for member in admin.describe_group(scene.group).members]
    late = at(scene.front, scene, topic=more)
    late.send("1")
    assert one(late).body == "1"
    assert first.receive(poll_ms=200) == [], "the message is with one client only"
    assert first.acknowledge(got) == Code.OK
    with Admin(scene.broker.address) as admin:
        assert [member.client_id for member in admin.describe_group(scene.group).members] == members


def test_a_topic_is_removed_and_its_queues_wait_for_what_a_client_has(scene: Scene, second: RunningFront) -> None:
    client, more = scene.client(), another_topic(scene)
    client.send("0")
    got = one(client)
    both = settings_of(client)
    assert both.subscription is not None
    both.subscription.subscriptions = [m.SubscriptionEntry(m.Resource(name=more), m.FilterExpression(1, "*"))]
    telemetry = client.telemetry(both)
    telemetry.answer()  # from now on, the client consumes the other topic only
    other = at(second, scene)
    assert other.receive(poll_ms=3000, seconds=6) == [], "the queue is handed over when its message is decided"
    assert client.acknowledge(got) == Code.OK
    client.send("1")
    assert one(other).body == "1"
    telemetry.close()


# limits


def test_a_client_may_have_so_many_receives_open(scene: Scene) -> None:
    client = scene.client()
    client.receive(poll_ms=100)
    open_calls = [client.receiving(poll_ms=20_000, seconds=30) for _ in range(MAX_WAITING)]
    until = time.monotonic() + 10
    while scene.front.front.service.handing.waiting < MAX_WAITING and time.monotonic() < until:
        time.sleep(0.01)
    assert client.status(poll_ms=100) == Code.TOO_MANY_REQUESTS
    for call in open_calls:
        call.cancel()


def test_a_thousand_idle_streams_delay_nobody(scene: Scene) -> None:
    async def idle() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(scene.front.address, options) as channel:
            settings = encode(m.TelemetryCommand(settings=m.Settings(m.ClientType.PRODUCER)))
            calls = []
            for number in range(1000):
                call = channel.stream_stream(f"/{m.SERVICE}/Telemetry")(metadata=(("x-mq-client-id", f"idle{number}"),))
                await call.write(settings)
                calls.append(call)
            for call in calls:
                assert decode(m.TelemetryCommand, await call.read()).settings is not None
            await asyncio.to_thread(_used_by, scene)

    asyncio.run(idle())


def _used_by(scene: Scene) -> None:
    client = scene.client()
    client.receive(poll_ms=100)
    client.send("0")
    began = time.monotonic()
    assert client.acknowledge(one(client)) == Code.OK
    assert time.monotonic() - began < 2


def test_many_groups_end_at_the_same_time(scene: Scene) -> None:
    """Each group needs a thread while its member ends; on two cores Python's own executor has six."""
    together = threading.Barrier(50)

    async def all_at_once() -> None:
        await asyncio.gather(*(asyncio.to_thread(together.wait, 10) for _ in range(50)))

    asyncio.run_coroutine_threadsafe(all_at_once(), scene.front.loop).result(15)
