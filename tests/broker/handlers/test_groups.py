"""Members of a group: heartbeats, notices, settings."""

import msgspec
import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, lock_body
from tests.broker.running import ManualClock, RunningBroker

from lanemq.core.brokering.quotas import Quota
from lanemq.net.serving import loop_slices
from lanemq.wire.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockResponse,
    ProducerData,
    SubscriptionData,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import RESPONSE_BIT, Command, encode_command


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 4)
    return running


def member(clocked: RunningBroker, name: str, **more: str) -> RawClient:
    raw = clocked.connect()
    assert raw.heartbeat(name, topics={"T": "*"}, **more).code == 0
    assert notified(raw) == "g", "the new member is notified too"
    return raw


def notified(raw: RawClient) -> str:
    notice = raw.notice()
    assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert notice.is_oneway
    assert notice.opaque > 0, "Node clients take 0 for missing"
    return notice.ext["consumerGroup"]


def members(raw: RawClient) -> list[str]:
    reply = raw.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    return ConsumerIdList.decode(reply.body).consumer_id_list if reply.code == 0 else []


def test_members_are_notified_when_one_joins_or_leaves(clocked: RunningBroker) -> None:
    first = member(clocked, "a")
    second = member(clocked, "b")
    assert notified(first) == "g"
    assert members(first) == ["a", "b"]
    second.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "b", "consumerGroup": "g"})
    assert notified(first) == "g"
    assert members(first) == ["a"]


def test_members_of_a_topic_are_those_that_subscribe_to_it(clocked: RunningBroker) -> None:
    first, second = clocked.connect(), clocked.connect()
    first.heartbeat("a", topics={"T": "*", "U": "*"})
    second.heartbeat("b", topics={"T": "*"})

    def of(topic: str) -> list[str]:
        request = {"consumerGroup": "g", "laneTopic": topic}
        reply = first.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, request)
        return ConsumerIdList.decode(reply.body).consumer_id_list if reply.code == 0 else []

    assert (of("T"), of("U"), of("V"), members(first)) == (["a", "b"], ["a"], [], ["a", "b"])


def test_a_member_that_consumes_in_another_way_is_refused_with_the_others_name(clocked: RunningBroker) -> None:
    def beat(name: str, *, ordered: bool) -> Command:
        data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T", lane_ordered=ordered)])
        body = HeartbeatData(client_id=name, consumer_data_set=[data]).encode()
        return clocked.connect().ask(RequestCode.HEART_BEAT, {}, body)

    assert beat("a", ordered=True).code == 0
    refused = beat("b", ordered=False)
    assert refused.code == ResponseCode.GROUP_CONFLICT
    assert "member a consumes T in order" in (refused.remark or "")
    assert members(clocked.connect()) == ["a"]
    assert beat("c", ordered=True).code == 0


def test_members_are_notified_when_a_connection_is_lost(clocked: RunningBroker) -> None:
    first = member(clocked, "a")
    second = member(clocked, "b")
    notified(first)
    second.close()
    assert notified(first) == "g"
    assert members(first) == ["a"]


def test_members_are_notified_when_a_silent_one_is_removed(clocked: RunningBroker) -> None:
    first = member(clocked, "a")
    member(clocked, "b")
    notified(first)
    clocked.run_for(100_000)
    first.heartbeat("a", topics={"T": "*"})
    clocked.run_for(20_000)
    assert notified(first) == "g"
    assert members(first) == ["a"]


def test_a_member_without_keep_alives_is_removed_when_its_leases_end(clocked: RunningBroker) -> None:
    silent, other = member(clocked, "a", laneExpiryMillis="5000"), member(clocked, "b", laneExpiryMillis="5000")
    notified(silent)
    assert silent.lane_lock("a", millis=5_000).lock_ok_mq_set
    clocked.run_for(4_500)
    assert "laneNotMember" not in other.keep_alive("b").ext
    assert members(other) == ["a", "b"]
    assert not other.lane_lock("b").lock_ok_mq_set
    clocked.run_for(500)
    assert notified(other) == "g", "one notice for the lease and the member"
    assert members(other) == ["b"]
    assert other.lane_lock("b").lock_ok_mq_set
    assert not other.notices


@pytest.mark.parametrize("request_kind", ["keep-alive", "lock"])
def test_keep_alives_and_lock_requests_keep_a_member(clocked: RunningBroker, request_kind: str) -> None:
    alive, other = member(clocked, "a", laneExpiryMillis="5000"), member(clocked, "stock")
    for _ in range(4):
        clocked.run_for(4_000)
        alive.keep_alive("a") if request_kind == "keep-alive" else alive.lane_lock("a")
    assert members(other) == ["a", "stock"]


def test_a_removed_member_is_recognised_and_joins_with_a_heartbeat(clocked: RunningBroker) -> None:
    raw = member(clocked, "a", laneExpiryMillis="5000")
    assert "laneNotMember" not in raw.keep_alive("a").ext
    clocked.run_for(5_000)
    assert raw.keep_alive("a").ext["laneNotMember"] == "true"
    lock = raw.ask(RequestCode.LOCK_BATCH_MQ, {"laneLeaseMillis": "5000"}, lock_body("a", "T", (0,), "g"))
    assert lock.ext["laneNotMember"] == "true"
    assert LockResponse.decode(lock.body).lock_ok_mq_set, "the leases do not depend on it"
    raw.heartbeat("a", topics={"T": "*"}, laneExpiryMillis="5000")
    assert members(raw) == ["a"]
    assert "laneNotMember" not in raw.keep_alive("a").ext


def test_stock_clients_are_not_bothered(clocked: RunningBroker) -> None:
    """They lock without being asked for a heartbeat, and stay for two minutes."""
    raw = member(clocked, "a")
    clocked.run_for(119_000)
    assert members(raw) == ["a"]
    other = clocked.connect()
    assert other.ask(RequestCode.LOCK_BATCH_MQ, {}, lock_body("x", "T", (0,), "g")).ext == {}


def test_a_broker_that_was_suspended_keeps_its_members(clocked: RunningBroker) -> None:
    """Their keep-alives could not arrive. All would join again one by one, and take queues from each other."""
    raw = member(clocked, "a", laneExpiryMillis="5000")
    clocked.advance(600_000)
    assert members(raw) == ["a"]
    clocked.run_for(5_000)
    assert members(raw) == []


def test_members_are_notified_of_expired_and_released_leases(clocked: RunningBroker) -> None:
    """The next owner does not wait for its own timer."""
    first = member(clocked, "a")
    first.lane_lock("a", millis=1_000)
    clocked.advance(1_000)
    assert notified(first) == "g"
    first.lane_lock("a", millis=1_000)
    first.unlock("a")
    assert notified(first) == "g"


def test_an_ordinary_heartbeat_notifies_no_member(clocked: RunningBroker) -> None:
    first = member(clocked, "a")
    first.heartbeat("a", topics={"T": "*"})
    first.bounds("T")
    assert not first.notices


def test_group_without_members_is_an_error_code(clocked: RunningBroker) -> None:
    reply = clocked.connect().ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "absent"})
    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_heartbeat_publishes_the_retry_topic_before_it_is_answered(clocked: RunningBroker) -> None:
    raw = member(clocked, "a")
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"}).code == 0


def test_client_check_refuses_sql_and_accepts_tags(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    sql = b'{"clientId":"a","group":"g","subscriptionData":{"expressionType":"SQL92","subString":"a > 1"}}'
    refused = raw.ask(RequestCode.CHECK_CLIENT_CONFIG, body=sql)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "SQL92" in (refused.remark or "")
    assert raw.ask(RequestCode.CHECK_CLIENT_CONFIG, body=sql.replace(b"SQL92", b"TAG")).code == 0


def test_producers_are_listed_until_they_leave(clocked: RunningBroker) -> None:
    raw, other = clocked.connect(), clocked.connect()
    beat = HeartbeatData(client_id="p1", producer_data_set=[ProducerData(group_name="makers")]).encode()
    raw.ask(RequestCode.HEART_BEAT, body=beat)
    asked = {"producerGroup": "makers"}
    assert b'"p1"' in other.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked).body
    raw.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "p1", "producerGroup": "makers"})
    assert other.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked).code == ResponseCode.SYSTEM_ERROR
    assert clocked.broker.running.groups._producers == {}


def test_group_settings_survive_a_restart_and_can_forbid_pulls(start: Start) -> None:
    running = start()
    raw = running.connect()
    raw.send("T")
    body = b'{"groupName":"g","consumeEnable":false,"retryMaxTimes":2}'
    assert raw.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == 0
    assert raw.pull("T").code == ResponseCode.NO_PERMISSION
    running.restart()
    raw = running.connect()
    assert raw.pull("T").code == ResponseCode.NO_PERMISSION
    kept = raw.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).body
    assert msgspec.json.decode(kept)["retryMaxTimes"] == 2


@pytest.mark.parametrize(("clean", "kept"), [("true", None), ("false", 3)])
def test_a_deleted_group_keeps_its_offsets_by_default(start: Start, clean: str, kept: int | None) -> None:
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.create("T")
    raw.commit(3)
    running.advance(1_000)
    assert raw.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": clean}).code == 0
    assert raw.committed() == kept
    running.restart()
    assert running.connect().committed() == kept


def test_only_the_asked_member_can_answer_a_relayed_question(clocked: RunningBroker) -> None:
    asker, stranger, asked = clocked.connect(), clocked.connect(), member(clocked, "a")
    question = asker.post(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "a"})
    relayed = asked.notice()
    forged = Command(0, relayed.opaque, RESPONSE_BIT, body=b"forged")
    stranger.socket.sendall(encode_command(forged))
    stranger.bounds("T")
    assert question not in asker.answered()
    asked.socket.sendall(encode_command(Command(0, relayed.opaque, RESPONSE_BIT, body=b"true")))
    assert asker.answer(question).body == b"true"


def test_a_reset_survives_a_crash_and_is_answered_to_the_next_pull(start: Start) -> None:
    running = start()
    raw = running.connect()
    for n in range(5):
        raw.send("T", b"%d" % n)
    raw.heartbeat("a", topics={"T": "*"})
    raw.commit(5)
    ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "2"}
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
    image = running.crash_image(running.options.data.parent / "image")
    after = start(image).connect()
    assert after.committed() == 2
    after.commit(5)
    assert after.committed() == 2, "a commit from before the reset"
    moved = after.pull("T", 5)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    after.pull("T", 2)
    after.commit(3)
    assert after.committed() == 3


def test_a_heartbeat_with_many_new_groups_is_taken_in_slices_and_answered_when_its_client_is_a_member(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new group gets a topic; requests of others are served in between."""
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    raw, other = broker.connect(), broker.connect()
    data = [ConsumerData(group_name=f"g{number}") for number in range(200)]
    asked = raw.post(RequestCode.HEART_BEAT, {}, HeartbeatData(client_id="c", consumer_data_set=data).encode())
    assert other.send("T").code == 0
    assert raw.answer(asked).code == 0
    members = broker.broker.running.context.members
    assert {members.members(f"g{number}") for number in range(200)} == {("c",)}
    assert b"%RETRY%g199" in raw.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body


def test_a_client_that_leaves_before_its_many_groups_are_taken_is_no_member(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_slices, "SLICE_NS", 0)
    raw, other = broker.connect(), broker.connect()
    raw.bounds("T")
    other.bounds("T")
    data = [ConsumerData(group_name=f"g{number}") for number in range(200)]
    raw.post(RequestCode.HEART_BEAT, {}, HeartbeatData(client_id="c", consumer_data_set=data).encode())
    raw.close()
    server, context = broker.broker.running.server, broker.broker.running.context
    while len(server.peers) > 1:
        other.bounds("T")
    broker.settle()
    assert context.members.groups() == ()
    assert context.charges.quotas.charged(Quota.SEATS, "address 127.0.0.1") == 0
