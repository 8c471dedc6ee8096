"""`lanemq why`: one sentence for every state of a lane, within a tenth of a second."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.chaos.members import TIMEOUT, until
from tests.cli.conftest import Run

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.key_progress import KeyProgress
from lanemq.client.admin.queue_progress import QueueBacklog
from lanemq.client.admin.views import GroupQueue, LaneStateView, NoAnswer
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import FailurePolicy, HoldKey, HoldQueue, Park
from lanemq.core.consuming.views import LaneActivity
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command, encode_command

LONG = Backoff(60, 1.0, 60)
Handle = Callable[[Message], None]


class LaneFixture:
    """A topic with one queue whose messages are sent before its member starts; every group and topic is new."""

    def __init__(self, broker: EmbeddedBroker, run: Run, name: str) -> None:
        self.broker, self.run, self.name = broker, run, name
        self._apps: list[App] = []
        with Admin(broker.address) as admin:
            admin.create_topic(name, queues=1, ordered=True)

    def send(self, *keys: str) -> None:
        with Producer(self.broker.address) as producer:
            for key in keys:
                producer.send(self.name, {}, key=key)

    def member(self, handle: Handle, policy: FailurePolicy | None = None, lanes: int = 4) -> App:
        app = App(self.broker.address, group=self.name, client_id=f"member-of-{self.name}")
        app.ordered(self.name, on_fail=policy, lanes=lanes)(handle)
        app.start()
        self._apps.append(app)
        return app

    def why(self, key: str) -> dict[str, Any]:
        result = self.run("why", key, "--topic", self.name, "--group", self.name, "--json")
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout)[self.name])

    def until_it_waits_for(self, key: str, begin: str) -> dict[str, Any]:
        """Asks until the sentence matches; a busy member may miss the 50 ms."""
        found: dict[str, Any] = {}

        def is_it() -> bool:
            found.update(self.why(key))
            return str(found["waits_for"]).startswith(begin)

        until(f"{key} waits for {begin!r}", is_it)
        return found

    def close(self) -> None:
        for app in self._apps:
            app.stop(now=True)


@pytest.fixture
def lane(broker: EmbeddedBroker, run: Run, request: pytest.FixtureRequest) -> Iterator[LaneFixture]:
    made = LaneFixture(broker, run, request.node.name.replace("[", "-").replace("]", "")[:40])
    yield made
    made.close()


def fails(message: Message) -> None:
    raise ValueError("no stock left")


class Gate:
    """A handler that blocks until it is released."""

    def __init__(self) -> None:
        self.open, self.inside = threading.Event(), threading.Event()

    def __call__(self, message: Message) -> None:
        self.inside.set()
        assert self.open.wait(TIMEOUT)


def test_a_held_key_shows_attempts_next_retry_and_last_error(lane: LaneFixture) -> None:
    lane.send("a", "a")
    lane.member(fails, HoldKey(backoff=LONG))
    found = lane.until_it_waits_for("a", "its next attempt, in")
    lane = found["lane"]
    assert "ValueError('no stock left')" in found["waits_for"]
    assert (lane["state"], lane["head"], lane["attempts"], lane["waiting"]) == ("held", 0, 1, 2)
    assert 0 < lane["next_retry_ms"] <= 60_000
    assert 0 <= lane["blocked_ms"] < TIMEOUT * 1000


def test_blocked_since_counts_from_the_first_failure_not_from_the_last(lane: LaneFixture) -> None:
    lane.send("a")
    lane.member(fails, HoldKey(retries=100, backoff=Backoff(0.02, 1.0, 0.02)))
    seen: list[dict[str, Any]] = []

    def failed_often() -> bool:
        seen.append(lane.why("a")["lane"] or {})
        return int(seen[-1].get("attempts", 0)) >= 5

    until("it failed five times", failed_often)
    assert seen[-1]["blocked_ms"] >= 4 * 20


def test_a_success_clears_the_failures(lane: LaneFixture) -> None:
    lane.send("a", "a")
    gate, calls = Gate(), []

    def second_time_lucky(message: Message) -> None:
        calls.append(message.queue_offset)
        if len(calls) == 1:
            raise ValueError("only once")
        if message.queue_offset == 1:
            gate(message)

    lane.member(second_time_lucky, HoldKey(backoff=Backoff(0.01, 1.0, 0.01)), lanes=1)
    assert gate.inside.wait(TIMEOUT)
    lane.send("a")
    gate.open.set()
    until("all is done", lambda: lane.why("a")["waits_for"].startswith("nothing"))


def test_a_running_handler_is_named_with_its_time(lane: LaneFixture) -> None:
    gate = Gate()
    lane.send("a")
    lane.member(gate)
    found = lane.until_it_waits_for("a", "its handler: running for")
    gate.open.set()
    assert found["lane"]["running_ms"] >= 0
    assert found["owner"] == f"member-of-{lane.name}"
    assert found["epoch"] == 1


def test_a_key_can_wait_for_a_free_worker(lane: LaneFixture) -> None:
    gate = Gate()
    lane.send("a", "b", "b")
    lane.member(gate, lanes=1)
    assert gate.inside.wait(TIMEOUT)
    found = lane.until_it_waits_for("b", "a free worker: 2 messages from offset 1 on")
    gate.open.set()
    assert found["lane"]["state"] == "ready"


def test_in_queue_order_the_message_ahead_is_named(lane: LaneFixture) -> None:
    lane.send("a", "b")
    lane.member(fails, HoldQueue(suspend=30))
    found = lane.until_it_waits_for("b", "offset 0 of the queue, 1 before its own, which waits for its next attempt")
    assert found["lane"]["last_error"].startswith("ValueError('no stock left') at commands/test_why.py:")
    lane.until_it_waits_for("a", "its next attempt, in")


def test_a_lane_parked_at_the_broker_waits_for_an_operator(lane: LaneFixture) -> None:
    lane.send("a", "a")
    lane.member(fails, HoldKey(retries=0))
    found = lane.until_it_waits_for("a", "an operator: parked since")
    assert "no stock left" in found["waits_for"]


def test_a_held_lane_with_many_messages_waits_for_its_owner(lane: LaneFixture) -> None:
    """Its messages are at the broker, and it needs no operator."""
    lane.send(*["a"] * 70)
    lane.member(fails)
    found = lane.until_it_waits_for("a", "its next attempt, which its owner makes by itself: offset 0 failed")
    assert "no stock left" in found["waits_for"]
    listed = json.loads(lane.run("parked", "list", "--group", lane.name, "--json").stdout)
    assert [(each["status"], each["messages"], each["first_offset"]) for each in listed] == [("held", 70, 0)]
    redriven = lane.run("parked", "redrive", "a", "--group", lane.name)
    assert "already being redriven, or retried by their owner" in redriven.stdout
    assert "0 lanes" not in redriven.stdout


def test_a_lane_parked_in_memory_waits_for_an_operator(lane: LaneFixture) -> None:
    lane.send("a")
    lane.member(fails, HoldKey(retries=0, then=Park(at_broker=False)))
    found = lane.until_it_waits_for("a", "an operator: parked in its owner's memory at offset 0")
    assert "no stock left" in found["waits_for"]


def test_a_finished_key_behind_a_stuck_one_waits_only_for_the_commit(lane: LaneFixture) -> None:
    gate = Gate()
    lane.send("stuck", "b")

    def one_is_stuck(message: Message) -> None:
        if message.key == "stuck":
            gate(message)

    lane.member(one_is_stuck)
    lane.until_it_waits_for("b", "nothing: all messages are finished, and only the commit waits for offset 0")
    gate.open.set()


def test_the_key_of_an_offline_group_waits_for_a_member(lane: LaneFixture) -> None:
    lane.send("a")
    with Admin(lane.broker.address) as admin:
        admin.reset_offsets(lane.name, lane.name, to="first")
    assert lane.why("a")["waits_for"].startswith("a member: no member of the group is online")


def sentence_of(lane: LaneStateView | NoAnswer, pending: tuple[int, ...] = (5,)) -> str:
    at = GroupQueue(MessageQueue("t", "b", 0), QueueOffset(5), QueueOffset(9), owner="m")
    return KeyProgress("g", 1, QueueBacklog(at, None, 700), 0, pending, lane=lane).waits_for


@pytest.mark.parametrize("state", [state for state in LaneActivity if state is not LaneActivity.EMPTY])
def test_every_state_has_a_sentence(state: LaneActivity) -> None:
    lane = LaneStateView(state=state.value, order="key", head=QueueOffset(5), blocked_for=1.5, attempts=2, reason="E()")
    assert "offset 5" in sentence_of(lane)
    assert ", failed 2 times, blocked for 1.5 s: E()" in sentence_of(lane)


def test_a_key_that_is_not_fetched_shows_how_far_the_owner_is() -> None:
    lane = LaneStateView(state="empty", order="key", next_offset=QueueOffset(4), committable=QueueOffset(2))
    assert sentence_of(lane) == "its fetch: the owner has fetched up to offset 4; the first unfinished is 2"


def test_an_owner_that_is_silent_is_named_with_its_lease() -> None:
    sentence = sentence_of(NoAnswer("its owner m is not connected any more", silent=True))
    assert sentence.endswith("its owner m is not connected any more. Its lease ends in 700 ms unless it is renewed")


def test_a_silent_member_is_waited_for_only_half_a_second(lane: LaneFixture) -> None:
    """A frozen process keeps its connection; it receives the request and never answers."""
    with frozen_member(lane.broker, lane.name, "frozen"):
        admin = Admin(lane.broker.address)
        until("the broker knows it", lambda: not _offline(admin, lane.name))
        began = time.monotonic()
        answer = admin.lane_state(lane.name, "frozen", MessageQueue(lane.name, "lanemq", 0), "a")
        spent = time.monotonic() - began
        admin.close()
    assert isinstance(answer, NoAnswer)
    assert answer.silent
    assert spent < 3.0, "half a second, with slack for a busy machine; an ordinary request waits for 5 s"


def _offline(admin: Admin, group: str) -> bool:
    answer = admin.lane_state(group, "frozen", MessageQueue(group, "lanemq", 0), "a")
    return isinstance(answer, NoAnswer) and "not online" in answer.why


def test_the_answer_comes_within_a_tenth_of_a_second(lane: LaneFixture) -> None:
    lane.send("a")
    lane.member(fails, HoldKey(backoff=LONG))
    lane.until_it_waits_for("a", "its next attempt")
    spans: list[float] = []

    def in_time() -> bool:
        began = time.monotonic()
        lane.why("a")
        spans.append(time.monotonic() - began)
        return spans[-1] < 0.1

    until("it came in time once, as on a machine that is idle", in_time)


def frozen_member(broker: EmbeddedBroker, group: str, client_id: str) -> socket.socket:
    """A member that has sent a heartbeat and reads nothing."""
    host, port = broker.address.split(":")
    sock = socket.create_connection(Address(host, int(port)), 5)
    consumer = ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic=group, sub_string="*")])
    body = HeartbeatData(client_id=client_id, consumer_data_set=[consumer])
    sock.sendall(encode_command(Command(RequestCode.HEART_BEAT, 1, body=body.encode())))
    return sock
