"""Topics, searches, statistics and retention."""

import msgspec
import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, records
from tests.broker.running import WALL, ManualClock, RunningBroker

from lanemq.log.retention import Retention
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.record import RecordView, decode_offset_id
from lanemq.wire.stats_bodies import TopicStatsTable

HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    return start(clock=ManualClock())


def query(
    raw: RawClient, key: str, unique: bool = False, begin: int = 0, end: int = 2 * WALL, limit: int = 10
) -> Command:
    ext = {
        "topic": "T",
        "key": key,
        "maxNum": str(limit),
        "beginTimestamp": str(begin),
        "endTimestamp": str(end),
        "_UNIQUE_KEY_QUERY": str(unique).lower(),
    }
    return raw.ask(RequestCode.QUERY_MESSAGE, ext)


def test_message_is_found_by_each_of_its_keys_and_its_unique_id(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.send("T", b"1", properties={"KEYS": "order-1 alice", "UNIQ_KEY": "0A" * 16})
    clocked.advance(HOUR)
    raw.send("T", b"2", properties={"KEYS": "order-2 alice"})
    raw.send("U", b"3", properties={"KEYS": "alice"})
    clocked.tick()
    assert bodies(records(query(raw, "order-1"))) == [b"1"]
    assert sorted(bodies(records(query(raw, "alice")))) == [b"1", b"2"]
    assert bodies(records(query(raw, "0A" * 16, unique=True))) == [b"1"]
    assert bodies(records(query(raw, "alice", begin=WALL + 1))) == [b"2"]
    assert bodies(records(query(raw, "alice", end=WALL))) == [b"1"]
    assert len(records(query(raw, "alice", limit=1))) == 1
    assert query(raw, "absent").code == ResponseCode.QUERY_NOT_FOUND


def test_message_is_viewed_by_the_id_its_send_returned(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.send("T", b"other")
    where = decode_offset_id(raw.send("T", b"this one").ext["msgId"])
    assert f"{where.ip}:{where.port}" == clocked.address
    reply = raw.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(where.position)})
    assert RecordView(reply.body).body == b"this one"


def test_every_message_of_a_batch_has_its_id(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    reply = raw.send_batch("T", [(b"a", {}), (b"b", {})])
    ids = reply.ext["msgId"].split(",")
    found = [raw.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(decode_offset_id(i).position)}) for i in ids]
    assert [RecordView(one.body).body for one in found] == [b"a", b"b"]


def test_offsets_are_found_by_time(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    where = {"topic": "T", "queueId": "0"}
    assert raw.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, where).ext["timestamp"] == "-1"
    for _ in range(3):
        raw.send("T")
        clocked.advance(1_000)
    assert raw.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, where).ext["timestamp"] == str(WALL)

    def search(time: int, boundary: str = "LOWER") -> str:
        ext = {**where, "timestamp": str(time), "boundaryType": boundary}
        return raw.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext["offset"]

    assert [search(WALL - 5), search(WALL + 1), search(WALL + 1_000), search(WALL + HOUR)] == ["0", "1", "1", "3"]
    assert search(WALL + 1_500, "UPPER") == "1"


def test_a_topic_that_rocketmqs_tools_create_for_ordered_messages_is_ordered(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("Fifo", 8, order="false", attributes="+message.type=FIFO")
    raw.create("Normal", 8, order="false", attributes="+message.type=NORMAL")
    routes = [msgspec.json.decode(raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body)
              for topic in ("Fifo", "Normal")]  # fmt: skip
    assert [route.get("orderTopicConf") for route in routes] == ["lanemq:8", None]


@pytest.mark.row("A1")
@pytest.mark.row("A5")
def test_globally_ordered_topic_has_one_queue(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    refused = raw.create("Global", 2, order="true", attributes="+lane.order=global")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert raw.create("Global", 1, order="true", attributes="+lane.order=global").code == 0


def test_ordered_topic_announces_its_queues_and_keeps_their_number(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("Ordered", 4, order="true")
    route = msgspec.json.decode(raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Ordered"}).body)
    assert route["orderTopicConf"] == "lanemq:4"
    kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Ordered"}
    assert raw.ask(RequestCode.GET_KV_CONFIG, kv).ext["value"] == "lanemq:4"
    refused = raw.create("Ordered", 8, order="true")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "keys would move" in (refused.remark or "")
    raw.create("Plain", 4)
    assert "orderTopicConf" not in msgspec.json.decode(
        raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Plain"}).body
    )
    assert raw.create("Plain", 8).code == 0


def test_topic_is_created_on_first_send_with_the_asked_queues(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
    raw.send("T", queue=-1)
    route = msgspec.json.decode(raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body)
    assert route["queueDatas"][0]["writeQueueNums"] == 4
    assert raw.send("T", queue=4).code == ResponseCode.INVALID_PARAMETER
    assert raw.send("SCHEDULE_TOPIC_XXXX").code == ResponseCode.NO_PERMISSION


def test_a_send_creates_no_topic_if_that_is_switched_off(start: Start) -> None:
    raw = start(auto_create_topics=False).connect()
    assert raw.send("T").code == ResponseCode.TOPIC_NOT_EXIST
    assert raw.heartbeat("c", topics={"T": "*"}).code == 0, "retry topics are always made"


def test_old_clients_get_the_route_their_parser_expects(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("T")
    opaque, frame = raw.frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    raw.socket.sendall(frame.replace(b'"version":473', b'"version":317'))
    assert b"{0:" in raw.answer(opaque).body
    assert b'{"0":' in raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).body


def test_deleted_topic_starts_again_at_zero(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("T")
    old = raw.send("T", b"old", properties={"KEYS": "k"}).ext["msgId"]
    raw.commit(1)
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert raw.pull("T").code == ResponseCode.TOPIC_NOT_EXIST
    assert raw.commit(1).code == ResponseCode.TOPIC_NOT_EXIST, "a late commit may not outlive the topic"
    for _ in range(2):
        raw.create("T")
        assert raw.bounds("T") == (0, 0)
        assert raw.committed() is None
        clocked.restart()
        raw = clocked.connect()
    assert raw.send("T", b"new").ext["queueOffset"] == "0"
    assert bodies(raw.read("T")) == [b"new"]
    position = str(decode_offset_id(old).position)
    assert raw.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": position}).code == ResponseCode.SYSTEM_ERROR
    clocked.tick()
    assert query(raw, "k").code == ResponseCode.QUERY_NOT_FOUND


def test_topic_deleted_while_its_messages_are_on_their_way(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("T")
    sends = [raw.post_send("T", b"%d" % n) for n in range(20)]
    deleted = raw.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert raw.answer(deleted).code == 0
    assert {raw.answer(opaque).code for opaque in sends} == {0}
    raw.create("T")
    assert raw.bounds("T") == (0, 0)
    assert raw.send("T", b"new").ext["queueOffset"] == "0"


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "lanemq", "Nowhere"])
def test_topics_of_the_broker_and_unknown_ones_cannot_be_deleted(clocked: RunningBroker, name: str) -> None:
    assert clocked.connect().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code != 0


def test_statistics_show_bounds_and_lag(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.create("T", 1)
    for _ in range(5):
        raw.send("T")
    raw.commit(2)
    assert b'"maxOffset":5' in raw.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
    stats = raw.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body
    assert b'"brokerOffset":5' in stats
    assert b'"consumerOffset":2' in stats
    assert b'"g"' in raw.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body
    assert raw.runtime()['lanemq_messages_in_total{topic="T"}'] == "5"
    assert raw.runtime()['lanemq_lag_messages{group="g",topic="T"}'] == "3"
    assert raw.runtime()["laneReadOnly"] == "false"


def created(raw: RawClient) -> int:
    body = raw.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
    return TopicStatsTable.decode(body).lane_created


def test_the_time_of_creation_tells_a_topic_from_the_one_before(clocked: RunningBroker) -> None:
    """It survives a restart and changes of the topic."""
    raw = clocked.connect()
    raw.create("T", 1)
    first = created(raw)
    raw.create("T", 2)
    clocked.restart()
    raw = clocked.connect()
    assert (created(raw), raw.bounds("T")) == (first, (0, 0))
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    raw.create("T", 2)
    second = created(raw)
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    raw.create("T", 2)
    assert len({0, first, second, created(raw)}) == 4


def test_retention_deletes_old_files_and_moves_the_beginning(start: Start) -> None:
    running = start(clock=ManualClock(), segment_bytes=64 * 1024, retention=3600.0)
    raw = running.connect()
    for _ in range(20):
        raw.send("T", bytes(10_000))
    running.advance(HOUR // 2)
    for _ in range(20):
        raw.send("T", bytes(10_000))
    assert raw.bounds("T") == (0, 40)
    running.advance(HOUR // 2 + 20_000)
    low, high = raw.bounds("T")
    assert 0 < low <= 20
    assert high == 40
    moved = raw.pull("T", 0)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(low))
    assert len(raw.read("T", offset=low)) == 40 - low
    running.restart()
    assert running.connect().bounds("T") == (low, high)


def fill(raw: RawClient, count: int = 40) -> None:
    for _ in range(count):
        assert raw.send("T", bytes(10_000)).code == 0


@pytest.mark.parametrize("ahead", [4 * DAY, -4 * DAY, -4000 * DAY])
def test_a_clock_that_jumps_makes_retention_neither_early_nor_late(start: Start, ahead: int) -> None:
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    raw, clock = running.connect(), running.clock
    assert clock is not None
    fill(raw)
    clock.wall_ahead = ahead
    running.advance(12_000)
    fill(raw, 1)
    clock.wall_ahead = 0
    running.advance(72 * HOUR - 12_000)
    assert raw.bounds("T") == (0, 41)
    running.advance(20_000)
    assert raw.bounds("T")[0] > 30


def test_retention_by_wall_time_would_follow_the_clock(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the age as it was, wall time less store time."""
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    raw, clock, store = running.connect(), running.clock, running.broker.running.context.store
    assert clock is not None
    fill(raw)

    def expired(self: Retention, now: int, share: float = 1.0) -> int:
        return len(store._log.segments) - 1 if clock.wall() - WALL > 72 * HOUR * share else 0

    monkeypatch.setattr(Retention, "expired", expired)
    clock.wall_ahead = 4 * DAY
    running.advance(12_000)
    assert raw.bounds("T")[0] > 30


@pytest.mark.parametrize("ahead", [4000 * DAY, -4000 * DAY, 0])
def test_only_time_in_which_the_broker_runs_counts_for_retention(
    start: Start, ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that is wrong after a boot looks like a long stop, so neither deletes anything. What follows does."""
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    clock = running.clock
    assert clock is not None
    fill(running.connect())
    running.advance(71 * HOUR)
    running.stop()
    clock.wall_ahead = ahead
    running.restart()
    raw = running.connect()
    running.advance(20_000)
    assert raw.bounds("T") == (0, 40)
    assert ("no broker has run on this folder for 40" in caplog.text) is (ahead > 0)
    assert ("clock is behind the last run" in caplog.text) is (ahead < 0)
    fill(raw)  # with the wrong time, which the next start must not believe
    running.stop()
    clock.wall_ahead = 0
    running.restart()
    raw = running.connect()
    running.advance(20_000)
    assert raw.bounds("T") == (0, 80)
    running.advance(HOUR)
    assert 30 < raw.bounds("T")[0] < 80


def test_after_a_crash_a_log_file_is_younger_by_a_minute_at_most(start: Start) -> None:
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    fill(running.connect())
    running.advance(50 * HOUR)
    running.advance(100)
    state = running.broker.running.context.state
    while not running.call(state.ages):
        pass
    assert min(running.call(state.ages).values()) >= 50 * HOUR


def test_groups_that_lose_unread_messages_are_named_before(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    raw = running.connect()
    fill(raw)
    for group, offset in (("behind", 3), ("done", 40)):
        raw.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": str(offset)},
        )
    running.advance(60 * HOUR)
    assert "has not read" not in caplog.text
    running.advance(6 * HOUR)
    running.advance(20_000)
    (warning,) = [each.getMessage() for each in caplog.records if "has not read" in each.getMessage()]
    assert warning.startswith("group behind has not read 3")
    assert "topic T" in warning
    assert "soon" in warning
    assert raw.bounds("T") == (0, 40), "warned before it deletes"
    running.advance(6 * HOUR)
    running.advance(20_000)
    assert raw.bounds("T")[0] > 30
    warnings = [each.getMessage() for each in caplog.records if "has not read" in each.getMessage()]
    assert len(warnings) == 2
    assert warnings[1].endswith("now")


def test_retention_by_size_deletes_the_oldest_files(start: Start) -> None:
    running = start(clock=ManualClock(), segment_bytes=64 * 1024, retention_bytes=128 * 1024)
    raw = running.connect()
    for _ in range(40):
        raw.send("T", bytes(10_000))
    running.advance(20_000)
    low, high = raw.bounds("T")
    assert high == 40
    assert 20 <= low < 40


def test_the_order_configuration_is_the_topics_own(clocked: RunningBroker) -> None:
    """RocketMQ's tools set it after they have created a topic, and LaneMQ's programs before; neither can change it."""
    raw = clocked.connect()
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Kept"}
    assert raw.ask(RequestCode.PUT_KV_CONFIG, item | {"value": "lanemq:4"}).code == 0
    raw.create("Kept", 4, order="true")
    assert raw.ask(RequestCode.PUT_KV_CONFIG, item | {"value": "lanemq:4"}).code == 0
    refused = raw.ask(RequestCode.PUT_KV_CONFIG, item | {"value": "lanemq:8"})
    assert (refused.code, "lanemq:4" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert raw.ask(RequestCode.DELETE_KV_CONFIG, item).code == ResponseCode.SYSTEM_ERROR
    assert raw.ask(RequestCode.GET_KV_CONFIG, item).ext["value"] == "lanemq:4"
    raw.create("Plain", 4)
    plain = item | {"key": "Plain"}
    assert raw.ask(RequestCode.PUT_KV_CONFIG, plain | {"value": "lanemq:4"}).code == ResponseCode.SYSTEM_ERROR
    assert raw.ask(RequestCode.GET_KV_CONFIG, plain).code == ResponseCode.QUERY_NOT_FOUND
    long = raw.ask(RequestCode.PUT_KV_CONFIG, item | {"namespace": "n", "value": "x" * 1025})
    assert "at most 1024 characters" in (long.remark or ""), "they stay in memory"
    listed = msgspec.json.decode(raw.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, item).body)["table"]
    assert listed == {"Kept": "lanemq:4"}
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"})
    assert raw.ask(RequestCode.DELETE_KV_CONFIG, item).code == 0
    assert raw.ask(RequestCode.GET_KV_CONFIG, item).code == ResponseCode.QUERY_NOT_FOUND


def test_config_items_are_bounded(clocked: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.broker.handlers.routes.MAX_KV_ITEMS", 2)
    raw = clocked.connect()
    codes = [raw.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": str(k), "value": "v"}).code for k in range(3)]
    assert codes == [0, 0, ResponseCode.SYSTEM_ERROR]


def test_config_items_are_bounded_together_and_a_deleted_one_makes_room(
    clocked: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of all of them is one answer."""
    monkeypatch.setattr("lanemq.broker.handlers.routes.MAX_ALL_KV_CHARS", 100)
    raw = clocked.connect()

    def put(key: str, chars: int) -> Command:
        return raw.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": "v" * chars})

    assert [put("a", 40).code, put("b", 40).code, put("b", 40).code] == [0, 0, 0]
    assert "more than 100 characters together" in (put("c", 40).remark or "")
    assert raw.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "a"}).code == 0
    assert put("c", 40).code == 0
