"""Figures that RocketMQ's dashboard, exporter and command-line tools ask for."""

from collections.abc import Callable

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, send_ext
from tests.broker.running import WALL, Gate, ManualClock, RunningBroker

from lanemq.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, encode_command
from lanemq.wire.stats_bodies import (
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    ProducerConnection,
    ProducerTableInfo,
    TopicStatsTable,
)


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 4)
    return running


def beat(raw: RawClient, client: str, language: str, version: int) -> None:
    body = HeartbeatData(
        client_id=client,
        consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])],
        producer_data_set=[ProducerData(group_name="p")],
    ).encode()
    request = Command(RequestCode.HEART_BEAT, 77, 0, {}, body, None, language, version)
    raw.socket.sendall(encode_command(request))
    assert raw.answer(77).code == 0


# who is connected


def test_connections_show_the_language_and_version_of_each_client(clocked: RunningBroker) -> None:
    go, cpp, strange, asker = (clocked.connect() for _ in range(4))
    beat(go, "a", "GO", 317)
    beat(cpp, "b", "CPP", 63)
    beat(strange, "c", "KLINGON", 1)
    consumers = ConsumerConnection.decode(
        asker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body
    )
    producers = ProducerConnection.decode(
        asker.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}).body
    )
    for found in (consumers, producers):
        shown = {each.client_id: (each.language, each.version) for each in found.connection_set}
        assert shown == {"a": ("GO", 317), "b": ("CPP", 63), "c": ("OTHER", 1)}, "Java knows no other languages"


def test_all_producers_are_listed_until_they_disconnect(clocked: RunningBroker) -> None:
    def table() -> ProducerTableInfo:
        return ProducerTableInfo.decode(asker.ask(RequestCode.GET_ALL_PRODUCER_INFO).body)

    asker, first, second = (clocked.connect() for _ in range(3))
    assert table().data == {}
    beat(first, "a", "JAVA", 401)
    beat(second, "b", "GO", 317)
    shown = [(each.client_id, each.language, each.version, each.remote_ip) for each in table().data["p"]]
    assert shown == [("a", "JAVA", 401, "127.0.0.1"), ("b", "GO", 317, "127.0.0.1")]
    assert table().data["p"][0].last_update_timestamp == WALL
    first.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "a", "producerGroup": "p"})
    assert [each.client_id for each in table().data["p"]] == ["b"]


# runtime info


def whole(text: str) -> bool:
    return text.lstrip("-").isdigit()


def decimal(text: str) -> bool:
    return float(text) >= 0


def three_rates(text: str) -> bool:
    return len([float(part) for part in text.split(" ")]) == 3


def capacity(text: str) -> bool:
    """The exporter reads words 3 and 7 as sizes, and the words after them, without their last letter, as units."""
    words = text.split(" ")
    return float(words[2]) > 0 and float(words[6]) > 0 and words[3][:-1][-2:] == words[7][:-1][-2:] == "iB"


def distribution(text: str) -> bool:
    """The exporter looks up each of RocketMQ's 13 classes."""
    return [whole(part.split(":")[1]) for part in text.split(" ")] == [True] * 13


PARSED: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(
        [
            "msgPutTotalTodayNow",
            "msgGetTotalTodayNow",
            "msgPutTotalTodayMorning",
            "msgGetTotalTodayMorning",
            "msgPutTotalYesterdayMorning",
            "msgGetTotalYesterdayMorning",
            "sendThreadPoolQueueHeadWaitTimeMills",
            "queryThreadPoolQueueHeadWaitTimeMills",
            "pullThreadPoolQueueHeadWaitTimeMills",
            "queryThreadPoolQueueSize",
            "pullThreadPoolQueueSize",
            "sendThreadPoolQueueSize",
            "sendThreadPoolQueueCapacity",
            "pullThreadPoolQueueCapacity",
            "queryThreadPoolQueueCapacity",
            "commitLogMinOffset",
            "commitLogMaxOffset",
            "bootTimestamp",
            "brokerVersion",
            "dispatchMaxBuffer",
            "pageCacheLockTimeMills",
            "getMessageEntireTimeMax",
            "putMessageTimesTotal",
            "startAcceptSendRequestTimeStamp",
            "putMessageEntireTimeMax",
            "earliestMessageTimeStamp",
            "remainTransientStoreBufferNumbs",
            "putMessageSizeTotal",
            "dispatchBehindBytes",
        ],
        whole,
    ),
    **dict.fromkeys(("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize"), decimal),
    **dict.fromkeys(("putTps", "getMissTps", "getTransferredTps", "getTotalTps", "getFoundTps"), three_rates),
    "commitLogDirCapacity": capacity,
    "putMessageDistributeTime": distribution,
    "remainHowManyDataToFlush": lambda text: decimal(text.split(" ")[0]),
    "runtime": bool,
    "brokerVersionDesc": bool,
}
"""Every key that rocketmq-exporter's BrokerRuntimeStats reads, and how. The dashboard reads some of them."""


@pytest.mark.parametrize("with_traffic", [False, True])
def test_the_exporter_can_read_every_runtime_figure(clocked: RunningBroker, with_traffic: bool) -> None:
    raw = clocked.connect()
    if with_traffic:
        raw.send("T")
        raw.send("T", properties={"DELAY": "3"})
        raw.read("T")
    table = raw.runtime()
    unreadable = {key: table.get(key) for key, reads in PARSED.items() if key not in table or not reads(table[key])}
    assert not unreadable
    delayed = {key: text for key, text in table.items() if key.startswith("scheduleMessageOffset")}
    assert delayed == ({"scheduleMessageOffset_3": "0,1"} if with_traffic else {})


def test_runtime_figures_are_those_of_this_broker(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    clocked.run_for(100_000)
    for number in range(60):
        raw.send("T", b"x" * 100, queue=number % 4)
        clocked.run_for(1_000)
    raw.read("T", queue=0)
    raw.pull("T", 99_999)
    table = raw.runtime()
    rates = [float(rate) for rate in table["putTps"].split(" ")]
    assert rates == pytest.approx([1.0, 1.0, 60 / 160], rel=0.15), "it runs for 160 s, not for ten minutes"
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "60"
    assert table["msgGetTotalTodayNow"] == "15"
    assert int(table["putMessageSizeTotal"]) == int(table["commitLogMaxOffset"])
    assert float(table["putMessageAverageSize"]) == int(table["commitLogMaxOffset"]) / 60
    assert sum(int(part.split(":")[1]) for part in table["putMessageDistributeTime"].split(" ")) == 60
    found, missed, total, transferred = (
        float(table[f"get{name}Tps"].split(" ")[0]) for name in ("Found", "Miss", "Total", "Transferred")
    )
    assert transferred > found > 0
    assert missed > 0
    assert total == pytest.approx(found + missed, abs=0.002)
    assert table["bootTimestamp"] == str(WALL)
    assert table["runtime"] == "[ 0 days, 0 hours, 2 minutes, 40 seconds ]"
    assert 0 < float(table["commitLogDiskRatio"]) < 1


def test_sends_that_wait_for_the_disk_are_shown(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    gate = Gate(clocked)
    opaque = raw.post_send("T", b"x" * 5_000)
    assert clocked.clock is not None
    raw.bounds("T")
    clocked.clock.passed += 700
    waiting = raw.runtime()
    gate.open()
    assert raw.answer(opaque).code == 0
    done = raw.runtime()
    assert int(waiting["sendThreadPoolQueueSize"]) >= 5_000
    assert waiting["sendThreadPoolQueueHeadWaitTimeMills"] == "700"
    assert int(waiting["remainHowManyDataToFlush"].removesuffix(" B")) >= 5_000
    assert (done["sendThreadPoolQueueSize"], done["sendThreadPoolQueueHeadWaitTimeMills"]) == ("0", "0")
    assert done["remainHowManyDataToFlush"] == "0 B"
    assert "[500ms~1s]:1" in done["putMessageDistributeTime"]


def test_today_is_the_last_day_and_not_all_days_since_the_start(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for _ in range(3):
        raw.send("T")
    raw.read("T")
    clocked.advance(30 * 24 * 3_600_000)
    raw = clocked.connect()
    for _ in range(2):
        raw.send("T")
    table = raw.runtime()
    put, got = (
        [int(table[f"msg{name}Total{when}"]) for when in ("YesterdayMorning", "TodayMorning", "TodayNow")]
        for name in ("Put", "Get")
    )
    assert put == [3, 3, 5]
    assert got == [3, 3, 3]


# figures by topic and group


def figure(raw: RawClient, name: str, key: str) -> BrokerStatsData | None:
    reply = raw.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    assert reply.code in (0, ResponseCode.SYSTEM_ERROR)
    return BrokerStatsData.decode(reply.body) if reply.code == 0 else None


def test_figures_of_a_topic_a_group_and_the_broker(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for _ in range(6):
        raw.send("T", b"x" * 100)
    assert len(raw.read("T")) == 6
    record = raw.pull("T").body
    raw.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "g", "delayLevel": "0"})

    def last_minute(name: str, key: str) -> int:
        found = figure(raw, name, key)
        assert found is not None
        assert found.stats_minute.sum == found.stats_hour.sum == found.stats_day.sum
        assert found.stats_minute.tps == pytest.approx(found.stats_minute.sum / 60)
        return found.stats_minute.sum

    assert last_minute("TOPIC_PUT_NUMS", "T") == 6
    assert last_minute("TOPIC_PUT_SIZE", "T") == len(record)
    assert last_minute("GROUP_GET_NUMS", "T@g") == 12
    assert last_minute("GROUP_GET_SIZE", "T@g") == 2 * len(record)
    assert last_minute("SNDBCK_PUT_NUMS", "T@g") == 1
    assert last_minute("BROKER_PUT_NUMS", "LaneMQ") == 6
    assert last_minute("BROKER_GET_NUMS", "LaneMQ") == 12
    assert last_minute("TOPIC_PUT_NUMS", "TBW102") == 0, "a topic without traffic is no error"
    assert figure(raw, "TOPIC_PUT_NUMS", "Missing") is None
    assert figure(raw, "UNHEARD_OF", "T") is None


def test_sends_that_arrive_together_are_all_counted(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    frames = [raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x") for _ in range(50)]
    raw.socket.sendall(b"".join(frame for _, frame in frames))
    for opaque, _ in frames:
        assert raw.answer(opaque).code == 0
    found = figure(raw, "TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.stats_minute.sum == 50


def test_rates_in_the_statistics_of_topics_and_groups(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for _ in range(6):
        raw.send("T")
    raw.read("T")
    topic = TopicStatsTable.decode(raw.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body)
    group = ConsumeStats.decode(raw.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).body)
    assert topic.topic_put_tps == group.consume_tps == pytest.approx(0.1)


def test_every_request_of_dashboard_and_exporter_has_a_handler(clocked: RunningBroker) -> None:
    """The codes of what both call on MQAdminExt; control: one that no tool needs is refused."""
    asked = (
        11,
        12,
        14,
        17,
        21,
        26,
        28,
        29,
        30,
        31,
        33,
        105,
        106,
        200,
        201,
        202,
        203,
        204,
        206,
        207,
        208,
        215,
        216,
        222,
    )
    raw = clocked.connect()
    for code in (*asked, 300, 307, 309, 315, 328, 351, 352):
        assert raw.ask(code).code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
    assert raw.ask(RequestCode.POP_MESSAGE).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
