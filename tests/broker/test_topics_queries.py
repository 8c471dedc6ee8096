"""Topics, searches, statistics, retention."""

import msgspec
import pytest
from tests.broker.conftest import Start
from tests.broker.running import WALL, HandClock, Running
from tests.broker.talk import Talk, bodies, records

from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.record import RecordView, decode_offset_id

HOUR = 3_600_000


@pytest.fixture
def hand(start: Start) -> Running:
    return start(clock=HandClock())


def query(talk: Talk, key: str, unique: bool = False, begin: int = 0, end: int = 2 * WALL, most: int = 10) -> Command:
    ext = {
        "topic": "T",
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": str(begin),
        "endTimestamp": str(end),
        "_UNIQUE_KEY_QUERY": str(unique).lower(),
    }
    return talk.ask(RequestCode.QUERY_MESSAGE, ext)


def test_message_is_found_by_each_of_its_keys_and_its_unique_id(hand: Running) -> None:
    talk = hand.talk()
    talk.send("T", b"1", properties={"KEYS": "order-1 alice", "UNIQ_KEY": "0A" * 16})
    hand.advance(HOUR)
    talk.send("T", b"2", properties={"KEYS": "order-2 alice"})
    talk.send("U", b"3", properties={"KEYS": "alice"})
    hand.tick()
    assert bodies(records(query(talk, "order-1"))) == [b"1"]
    assert sorted(bodies(records(query(talk, "alice")))) == [b"1", b"2"]
    assert bodies(records(query(talk, "0A" * 16, unique=True))) == [b"1"]
    assert bodies(records(query(talk, "alice", begin=WALL + 1))) == [b"2"]
    assert bodies(records(query(talk, "alice", end=WALL))) == [b"1"]
    assert len(records(query(talk, "alice", most=1))) == 1
    assert query(talk, "nobody").code == ResponseCode.QUERY_NOT_FOUND


def test_message_is_viewed_by_the_id_its_send_returned(hand: Running) -> None:
    talk = hand.talk()
    talk.send("T", b"other")
    where = decode_offset_id(talk.send("T", b"this one").ext["msgId"])
    assert f"{where.ip}:{where.port}" == hand.address
    reply = talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(where.position)})
    assert RecordView(reply.body).body == b"this one"


def test_every_message_of_a_batch_has_its_id(hand: Running) -> None:
    talk = hand.talk()
    reply = talk.send_batch("T", [(b"a", {}), (b"b", {})])
    ids = reply.ext["msgId"].split(",")
    found = [talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(decode_offset_id(i).position)}) for i in ids]
    assert [RecordView(one.body).body for one in found] == [b"a", b"b"]


def test_time_search_and_earliest(hand: Running) -> None:
    talk = hand.talk()
    where = {"topic": "T", "queueId": "0"}
    assert talk.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, where).ext["timestamp"] == "-1"
    for _ in range(3):
        talk.send("T")
        hand.advance(1_000)
    assert talk.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, where).ext["timestamp"] == str(WALL)

    def search(time: int, boundary: str = "LOWER") -> str:
        ext = {**where, "timestamp": str(time), "boundaryType": boundary}
        return talk.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext["offset"]

    assert [search(WALL - 5), search(WALL + 1), search(WALL + 1_000), search(WALL + HOUR)] == ["0", "1", "1", "3"]
    assert search(WALL + 1_500, "UPPER") == "1"


@pytest.mark.row("A1")
@pytest.mark.row("A5")
def test_globally_ordered_topic_has_one_queue(hand: Running) -> None:
    talk = hand.talk()
    refused = talk.create("Global", 2, order="true", attributes="+lane.order=global")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert talk.create("Global", 1, order="true", attributes="+lane.order=global").code == 0


def test_ordered_topic_announces_its_queues_and_keeps_their_number(hand: Running) -> None:
    talk = hand.talk()
    talk.create("Ordered", 4, order="true")
    route = msgspec.json.decode(talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"}).body)
    assert route["orderTopicConf"] == "lanemq:4"
    kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Ordered"}
    assert talk.ask(RequestCode.GET_KV_CONFIG, kv).ext["value"] == "lanemq:4"
    refused = talk.create("Ordered", 8, order="true")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "keys would move" in (refused.remark or "")
    talk.create("Plain", 4)
    assert "orderTopicConf" not in msgspec.json.decode(
        talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Plain"}).body
    )
    assert talk.create("Plain", 8).code == 0


def test_topic_is_created_on_first_send_with_the_asked_queues(hand: Running) -> None:
    talk = hand.talk()
    assert talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
    talk.send("T", queue=-1)
    route = msgspec.json.decode(talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body)
    assert route["queueDatas"][0]["writeQueueNums"] == 4
    assert talk.send("T", queue=4).code == ResponseCode.INVALID_PARAMETER
    assert talk.send("SCHEDULE_TOPIC_XXXX").code == ResponseCode.NO_PERMISSION


def test_topic_is_not_created_where_that_is_switched_off(start: Start) -> None:
    talk = start(auto_create_topics=False).talk()
    assert talk.send("T").code == ResponseCode.TOPIC_NOT_EXIST
    assert talk.heartbeat("c", topics={"T": "*"}).code == 0, "retry topics are always made"


def test_old_clients_get_the_route_their_parser_expects(hand: Running) -> None:
    talk = hand.talk()
    talk.create("T")
    opaque, frame = talk.frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    talk.socket.sendall(frame.replace(b'"version":473', b'"version":317'))
    assert b"{0:" in talk.answer(opaque).body
    assert b'{"0":' in talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body


def test_deleted_topic_starts_again_at_zero(hand: Running) -> None:
    talk = hand.talk()
    talk.create("T")
    old = talk.send("T", b"old", properties={"KEYS": "k"}).ext["msgId"]
    talk.commit(1)
    assert talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert talk.pull("T").code == ResponseCode.TOPIC_NOT_EXIST
    assert talk.commit(1).code == ResponseCode.TOPIC_NOT_EXIST, "a late commit may not outlive the topic"
    for _ in range(2):
        talk.create("T")
        assert talk.bounds("T") == (0, 0)
        assert talk.committed() is None
        hand.restart()
        talk = hand.talk()
    assert talk.send("T", b"new").ext["queueOffset"] == "0"
    assert bodies(talk.read("T")) == [b"new"]
    position = str(decode_offset_id(old).position)
    assert talk.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position}).code == ResponseCode.SYSTEM_ERROR
    hand.tick()
    assert query(talk, "k").code == ResponseCode.QUERY_NOT_FOUND


def test_topic_deleted_while_its_messages_are_on_their_way(hand: Running) -> None:
    talk = hand.talk()
    talk.create("T")
    sends = [talk.post_send("T", b"%d" % n) for n in range(20)]
    deleted = talk.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert talk.answer(deleted).code == 0
    assert {talk.answer(opaque).code for opaque in sends} == {0}
    talk.create("T")
    assert talk.bounds("T") == (0, 0)
    assert talk.send("T", b"new").ext["queueOffset"] == "0"


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "lanemq", "Nowhere"])
def test_topics_of_the_broker_and_unknown_ones_cannot_be_deleted(hand: Running, name: str) -> None:
    assert hand.talk().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code != 0


def test_statistics_tell_bounds_and_lag(hand: Running) -> None:
    talk = hand.talk()
    talk.create("T", 1)
    for _ in range(5):
        talk.send("T")
    talk.commit(2)
    assert b'"maxOffset":5' in talk.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
    stats = talk.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body
    assert b'"brokerOffset":5' in stats
    assert b'"consumerOffset":2' in stats
    assert b'"g"' in talk.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body
    assert talk.runtime()["laneMessages"] == "5"
    assert talk.runtime()["laneReadOnly"] == "false"


def test_retention_deletes_old_files_and_moves_the_beginning(start: Start) -> None:
    running = start(clock=HandClock(), segment_bytes=64 * 1024, retention=3600.0)
    talk = running.talk()
    for _ in range(20):
        talk.send("T", bytes(10_000))
    running.advance(HOUR // 2)
    for _ in range(20):
        talk.send("T", bytes(10_000))
    assert talk.bounds("T") == (0, 40)
    running.advance(HOUR // 2 + 20_000)
    low, high = talk.bounds("T")
    assert 0 < low <= 20
    assert high == 40
    moved = talk.pull("T", 0)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(low))
    assert len(talk.read("T", offset=low)) == 40 - low
    running.restart()
    assert running.talk().bounds("T") == (low, high)


def test_retention_by_size(start: Start) -> None:
    running = start(clock=HandClock(), segment_bytes=64 * 1024, retention_bytes=128 * 1024)
    talk = running.talk()
    for _ in range(40):
        talk.send("T", bytes(10_000))
    running.advance(20_000)
    low, high = talk.bounds("T")
    assert high == 40
    assert 20 <= low < 40


def test_config_items_are_bounded(hand: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.broker.handlers.routes.MAX_KV_ITEMS", 2)
    talk = hand.talk()
    codes = [
        talk.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": str(k), "value": "v"}).code for k in range(3)
    ]
    assert codes == [0, 0, ResponseCode.SYSTEM_ERROR]
