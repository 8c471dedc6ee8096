"""Bodies: what Java writes is read, what we write Java and Go read."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.queue import MessageQueue
from lanemq.wire import bodies, route_bodies, stats_bodies
from lanemq.wire.bodies import (
    Body,
    ConsumeDirectlyResult,
    HeartbeatData,
    LaneLease,
    LaneRefusal,
    LockRequest,
    LockResponse,
    QueueBody,
)
from lanemq.wire.loose_json import BodyError, loads_loose
from lanemq.wire.route_bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData, encode_route
from lanemq.wire.stats_bodies import (
    ConsumerRunningInfo,
    ConsumeStats,
    ProcessQueueInfo,
    QueueTableBody,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)

QUEUE = MessageQueue("T", "broker-a", 0)

ALL_BODIES = sorted(
    {
        kind
        for module in (bodies, route_bodies, stats_bodies)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Body) and kind not in (Body, QueueTableBody)
    },
    key=lambda kind: kind.__name__,
)


def route(**changes: Any) -> TopicRouteData:
    addresses = {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    broker = BrokerData(broker_addrs=addresses, broker_name="broker-a", cluster="DefaultCluster", **changes)
    return TopicRouteData(broker_datas=[broker], queue_datas=[QueueData(broker_name="broker-a")])


def test_route_is_written_as_java_writes_it(vectors: dict[str, Any]) -> None:
    assert encode_route(route(), strict=True).decode() == vectors["strict_route"]
    assert encode_route(route(), strict=False).decode() == vectors["loose_route"]


def test_both_routes_are_read(vectors: dict[str, Any]) -> None:
    assert TopicRouteData.decode(vectors["strict_route"].encode()) == route()
    assert TopicRouteData.decode(vectors["loose_route"].encode()) == route()


def test_empty_route_still_has_its_three_members() -> None:
    """Java has no default for them and would dereference null."""
    assert json.loads(TopicRouteData().encode()) == {
        "brokerDatas": [], "queueDatas": [], "filterServerTable": {}
    }  # fmt: skip


def test_features_are_in_the_route_only_when_there_are_some() -> None:
    assert b"laneFeatures" not in encode_route(route(), strict=True)
    featured = encode_route(route(lane_features=3), strict=False)
    assert TopicRouteData.decode(featured).broker_datas[0].lane_features == 3
    cluster = ClusterInfo(broker_addr_table={"b": BrokerData(lane_features=1), "c": BrokerData()})
    assert cluster.encode().count(b"laneFeatures") == 1
    assert ClusterInfo.decode(cluster.encode()) == cluster


def test_heartbeat_is_read_and_written_alike(vectors: dict[str, Any]) -> None:
    heartbeat = HeartbeatData.decode(vectors["heartbeat"].encode())
    consumer = heartbeat.consumer_data_set[0]
    assert (heartbeat.client_id, consumer.group_name) == ("10.0.0.9@4711#123", "G")
    assert consumer.subscription_data_set[0].code_set == [2598919]
    assert json.loads(heartbeat.encode()) == json.loads(vectors["heartbeat"])


def test_heartbeat_of_another_client_may_lack_or_add_members() -> None:
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","future":{"a":[1]}}],"producerDataSet":null}'
    heartbeat = HeartbeatData.decode(body)
    assert heartbeat.consumer_data_set[0].message_model == "CLUSTERING"
    assert heartbeat.producer_data_set == []


def test_lock_bodies_match_java(vectors: dict[str, Any]) -> None:
    queues = [QueueBody.of(QUEUE)]
    request = LockRequest(client_id="c", consumer_group="G", mq_set=queues)
    assert request.encode().decode() == vectors["lock_request"]
    assert LockResponse(lock_ok_mq_set=queues).encode().decode() == vectors["lock_response"]
    assert LockRequest.decode(vectors["lock_request"].encode()).mq_set[0].queue == QUEUE
    assert LockResponse().encode() == b'{"lockOKMQSet":[]}'


def test_lock_additions_come_back() -> None:
    response = LockResponse(
        lane_leases=[LaneLease(topic="T", broker_name="b", queue_id=1, epoch=5, lease_millis=9000, offset=7)],
        lane_refused=[LaneRefusal(topic="T", broker_name="b", queue_id=2, holder="x", remaining_millis=10)],
    )
    assert LockResponse.decode(response.encode()) == response
    assert response.lane_refused[0].queue == MessageQueue("T", "b", 2)
    assert set(json.loads(response.encode())["laneLeases"][0]) == {
        "topic", "brokerName", "queueId", "epoch", "leaseMillis", "offset", "finished", "moved", "parked"
    }  # fmt: skip


def test_empty_remark_is_left_out() -> None:
    assert "remark" not in json.loads(ConsumeDirectlyResult().encode())
    assert json.loads(ConsumeDirectlyResult(remark="r").encode())["remark"] == "r"


def test_queue_tables_have_objects_as_keys(vectors: dict[str, Any]) -> None:
    stats = TopicStatsTable(offset_table={MessageQueue("t", "b", 0): TopicOffset(max_offset=7)})
    assert stats.encode().decode() == vectors["topic_stats"]
    assert TopicStatsTable.decode(vectors["topic_stats"].encode()) == stats


def test_queue_keys_given_as_text_are_read_too() -> None:
    key = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "T"})
    body = json.dumps({"offsetTable": {key: 9}}).encode()
    assert ResetOffsetBody.decode(body).offset_table == {QUEUE: 9}


def test_running_info_comes_back() -> None:
    info = ConsumerRunningInfo(
        mq_table={QUEUE: ProcessQueueInfo(commit_offset=4, locked=True)},
        properties={"PROP_CONSUMEORDERLY": "true"},
    )
    assert ConsumerRunningInfo.decode(info.encode()) == info


def test_repeated_queue_given_as_reference_is_the_same_queue() -> None:
    """fastjson writes an object's second occurrence as a reference; defaults would name another queue."""
    body = b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"T"},{"$ref":"$.lockOKMQSet[0]"}]}'
    assert [entry.queue for entry in LockResponse.decode(body).lock_ok_mq_set] == [QUEUE, QUEUE]


@pytest.mark.parametrize("kind", ALL_BODIES, ids=lambda kind: kind.__name__)
def test_every_body_has_defaults_and_comes_back(kind: type[Body]) -> None:
    assert kind.decode(b"{}") == kind()
    assert kind.decode(kind().encode()) == kind()
    assert kind.decode(b'{"unknownMember":{"a":[1,null]}}') == kind()


@pytest.mark.parametrize("kind", ALL_BODIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"7", b'"x"', b"\xff", b"{", b"[" * 50_000])
def test_input_that_is_not_an_object_is_refused(kind: type[Body], data: bytes) -> None:
    with pytest.raises(BodyError):
        kind.decode(data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (LockRequest, b'{"mqSet":7}'),
        (LockRequest, b'{"mqSet":[{"queueId":"x"}]}'),
        (ConsumeStats, b'{"offsetTable":[1]}'),
        (ConsumeStats, b'{"offsetTable":{7:{}}}'),
        (ConsumeStats, b'{"offsetTable":{"no queue":{}}}'),
        (ResetOffsetBody, b'{"offsetTable":{{"queueId":0}:"x"}}'),
        (TopicRouteData, b'{"brokerDatas":[{"brokerAddrs":{"x":"y"}}]}'),
    ],
)
def test_member_of_the_wrong_kind_is_refused(kind: type[Body], data: bytes) -> None:
    with pytest.raises(BodyError):
        kind.decode(data)


@settings(max_examples=120)
@given(st.sampled_from(ALL_BODIES), st.text('{}[]:,"$ref.x01\\ntrue', max_size=40) | st.text(max_size=20))
def test_random_text_raises_nothing_but_the_documented_error(kind: type[Body], text: str) -> None:
    for action in (kind.decode, loads_loose):
        with suppress(BodyError):
            action(text.encode(errors="replace"))
