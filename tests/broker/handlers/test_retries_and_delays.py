"""Delays, retries and dead letters."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import Gate, ManualClock, RunningBroker

from lanemq.broker.storage import group_commit
from lanemq.core.brokering.delay import DueTimes, delay_of
from lanemq.log.reading import ReadResult
from lanemq.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.record import decode_offset_id

SECOND, HOUR = 1_000, 3_600_000


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    return start(clock=ManualClock())


def send_back(raw: RawClient, msg_id: str, level: int = 0, **more: str) -> Command:
    ext = {"offset": str(decode_offset_id(msg_id).position), "group": "g", "delayLevel": str(level), **more}
    return raw.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def concurrent_heartbeat(client: str, topic: str) -> bytes:
    subscriptions = [SubscriptionData(topic=each, sub_string="*", lane_ordered=False) for each in (topic, "%RETRY%g")]
    data = ConsumerData(group_name="g", subscription_data_set=subscriptions)
    return HeartbeatData(client_id=client, consumer_data_set=[data]).encode()


@pytest.mark.parametrize(("level", "delay"), [(1, 1), (3, 10), (5, 60), (18, 7_200), (99, 7_200)])
def test_a_delayed_message_is_delivered_when_it_is_due(clocked: RunningBroker, level: int, delay: int) -> None:
    raw = clocked.connect()
    raw.send("T", b"later", queue=2, properties={"DELAY": str(level), "TAGS": "A"})
    clocked.advance(delay * SECOND - 1)
    assert raw.bounds("T", 2) == (0, 0)
    clocked.advance(200)
    (record,) = raw.read("T", queue=2)
    assert record.body == b"later"
    assert record.properties["REAL_TOPIC"] == "T"
    assert record.properties["REAL_QID"] == "2"
    assert record.properties["DELAY"] == str(level), "kept, and not applied again"
    assert record.born_timestamp == 1_700_000_000_000
    assert record.born_host.startswith("127.0.0.1:")
    assert bodies(raw.read("T", queue=2, tags="A")) == [b"later"]
    clocked.advance(10 * delay * SECOND)
    assert raw.bounds("T", 2) == (0, 1), "once"


def test_delays_continue_after_restart_and_crash_without_repeats(
    clocked: RunningBroker, start: Start, folder: Path
) -> None:
    raw = clocked.connect()
    for n in range(3):
        raw.send("T", b"%d" % n, properties={"DELAY": "1"})
        clocked.advance(SECOND)
    clocked.advance(SECOND)
    raw.send("T", b"3", properties={"DELAY": "3"})
    clocked.restart()
    clocked.advance(10 * SECOND)
    assert bodies(clocked.connect().read("T")) == [b"0", b"1", b"2", b"3"]
    clocked.advance(SECOND)
    crashed = start(clocked.crash_image(folder / "image"), clock=clocked.clock)
    crashed.advance(100 * SECOND)
    assert bodies(crashed.connect().read("T")) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_was_an_hour_ahead_for_one_send_delays_nothing(clocked: RunningBroker, restart: bool) -> None:
    """Store timestamps stay an hour ahead, because they never go back; delays must not follow them."""
    raw, clock = clocked.connect(), clocked.clock
    assert clock is not None
    clock.wall_ahead = HOUR
    msg_id = raw.send("T", b"now").ext["msgId"]
    clock.wall_ahead = 0
    raw.send("T", b"later", queue=1, properties={"DELAY": "3"})
    assert send_back(raw, msg_id, level=3).code == 0
    if restart:
        clocked.restart()
        raw = clocked.connect()
    clocked.advance(10 * SECOND - 1)
    assert raw.bounds("T", 1) == (0, 0), "not early either"
    clocked.advance(200)
    assert bodies(raw.read("T", queue=1)) == [b"later"]
    assert bodies(raw.read("%RETRY%g")) == [b"now"]


def test_a_clock_that_jumps_ahead_delivers_no_delayed_message_early(clocked: RunningBroker) -> None:
    raw, clock = clocked.connect(), clocked.clock
    assert clock is not None
    raw.send("T", b"later", properties={"DELAY": "5"})
    clock.wall_ahead = HOUR
    clocked.advance(59 * SECOND)
    assert raw.bounds("T") == (0, 0)
    clocked.advance(2 * SECOND)
    assert bodies(raw.read("T")) == [b"later"]


def test_a_delayed_message_stored_together_with_a_due_one_of_its_level_waits(clocked: RunningBroker) -> None:
    """The next messages of a level are looked for when a delivery is stored, before the new arrivals are noted."""
    raw, clock = clocked.connect(), clocked.clock
    assert clock is not None
    raw.send("T", b"first", properties={"DELAY": "1"})
    gate = Gate(clocked)
    clock.passed += SECOND
    clocked.call(lambda: clocked.broker.running.housekeeping.tick())
    second = raw.post_send("T", b"second", properties={"DELAY": "1"})
    gate.open()
    assert raw.answer(second).code == 0
    clocked.advance(SECOND - 1)
    assert bodies(raw.read("T")) == [b"first"]
    clocked.advance(200)
    assert bodies(raw.read("T")) == [b"first", b"second"]


def test_delays_by_store_timestamps_would_follow_the_wall_clock(
    clocked: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the due time as it was, computed from the store timestamp and compared with wall time."""
    raw, clock = clocked.connect(), clocked.clock
    assert clock is not None

    def due_at(self: DueTimes, level: int, offset: int, store_timestamp: int) -> int:
        return store_timestamp + delay_of(level) - clock.wall() + clock.now()

    monkeypatch.setattr(DueTimes, "due_at", due_at)
    clock.wall_ahead = HOUR
    raw.send("T", b"now")
    clock.wall_ahead = 0
    raw.send("T", b"later", queue=1, properties={"DELAY": "3"})
    clocked.advance(60 * SECOND)
    assert raw.bounds("T", 1) == (0, 0)


def test_more_than_one_batch_of_a_level_is_delivered_in_order(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    sent = [raw.post_send("T", b"%d" % n, properties={"DELAY": "1"}) for n in range(700)]
    assert all(raw.answer(opaque).code == 0 for opaque in sent)
    clocked.advance(SECOND)
    clocked.settle()
    assert bodies(raw.read("T")) == [b"%d" % n for n in range(700)]


def test_busy_broker_delivers_a_delayed_message_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages that fitted must not be delivered again with those that did not."""
    monkeypatch.setattr(group_commit, "MAX_PENDING_BYTES", 1024 * 1024)
    running = start(clock=ManualClock())
    raw = running.connect()
    for n in range(8):
        assert raw.send("T", bytes([n]) * 300_000, properties={"DELAY": "1"}).code == 0
    assert running.clock is not None
    gate = Gate(running)
    running.clock.passed += SECOND
    for _ in range(3):
        running.call(lambda: running.broker.running.housekeeping.tick())
        running.clock.passed += 200
    gate.open()
    for _ in range(5):
        running.advance(200)
    assert [body[0] for body in bodies(raw.read("T"))] == list(range(8))


def test_a_damaged_delayed_message_is_reported_and_skipped(
    clocked: RunningBroker, start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = clocked.connect()
    for n in range(3):
        raw.send("T", b"number %d" % n, properties={"DELAY": "1"})
    (segment,) = (folder / "data" / "log").iterdir()
    data = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(data.index(b"number 1"))
        file.write(b"NUMBER")
    with caplog.at_level(logging.ERROR):
        clocked.advance(SECOND)
        clocked.advance(SECOND)
    assert bodies(raw.read("T")) == [b"number 0", b"number 2"]
    assert "damaged" in caplog.text


def test_a_delayed_message_of_a_deleted_topic_is_dropped_and_logged(
    clocked: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    raw = clocked.connect()
    raw.send("T", b"orphan", properties={"DELAY": "1"})
    raw.send("U", b"other", properties={"DELAY": "1"})
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    clocked.advance(SECOND)
    assert "was deleted" in caplog.text
    assert bodies(raw.read("U")) == [b"other"]


@pytest.mark.row("A107")
def test_a_sent_back_message_waits_longer_each_time_and_then_is_dead_lettered(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    msg_id = raw.send("T", b"bad", properties={"KEYS": "k", "TAGS": "A"}).ext["msgId"]
    for times, delay in enumerate((10, 30, 60)):
        assert send_back(raw, msg_id, maxReconsumeTimes="3").code == 0
        clocked.advance(delay * SECOND - 1)
        assert raw.bounds("%RETRY%g") == (0, times)
        clocked.advance(200)
        record = raw.read("%RETRY%g")[-1]
        assert record.reconsume_times == times + 1
        msg_id = f"{msg_id[:16]}{record.position:016X}"
    assert record.properties["RETRY_TOPIC"] == "T"
    assert record.properties["KEYS"] == "k"
    assert record.properties["WAIT"] == "false"
    assert send_back(raw, msg_id, maxReconsumeTimes="3").code == 0
    (dead,) = raw.read("%DLQ%g")
    assert (dead.body, dead.properties["RETRY_TOPIC"], dead.reconsume_times) == (b"bad", "T", 4)
    assert len(dead.properties["ORIGIN_MESSAGE_ID"]) == 32


def test_a_message_that_is_passed_on_goes_to_the_next_queue_and_keeps_its_attempts(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    for name, topic in (("a", "T"), ("b", "U")):
        clocked.connect().ask(RequestCode.HEART_BEAT, {}, concurrent_heartbeat(name, topic))
    msg_id = raw.send("T", b"x").ext["msgId"]
    send_back(raw, msg_id, 1)
    clocked.advance(SECOND)
    for queue, times, delay in ((1, 1, 1), (0, 2, 1), (1, 3, 5)):
        record = raw.read("%RETRY%g", queue=1 - queue)[-1]
        msg_id = f"{msg_id[:16]}{record.position:016X}"
        assert send_back(raw, msg_id, lanePassOn="true").code == 0
        before = raw.bounds("%RETRY%g", queue)[1]
        clocked.advance(delay * SECOND - 1)
        assert raw.bounds("%RETRY%g", queue)[1] == before
        clocked.advance(200)
        record = raw.read("%RETRY%g", queue=queue)[-1]
        assert (record.reconsume_times, record.properties["LANE_PASSED"]) == (1, str(times))
    msg_id = f"{msg_id[:16]}{record.position:016X}"
    send_back(raw, msg_id, 1)
    clocked.advance(SECOND)
    record = raw.read("%RETRY%g")[-1]
    assert (record.reconsume_times, "LANE_PASSED" in record.properties) == (2, False)


def test_a_send_back_may_name_a_level_or_the_dead_letters(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    msg_id = raw.send("T", b"x").ext["msgId"]
    send_back(raw, msg_id, 1)
    clocked.advance(SECOND)
    assert bodies(raw.read("%RETRY%g")) == [b"x"]
    send_back(raw, msg_id, -1)
    assert bodies(raw.read("%DLQ%g")) == [b"x"]


def test_the_groups_limit_applies_if_the_request_names_none(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g","retryMaxTimes":0}')
    send_back(raw, raw.send("T", b"x").ext["msgId"])
    assert bodies(raw.read("%DLQ%g")) == [b"x"]


@pytest.mark.parametrize("position", [-5, 1, 7, 10**12])
def test_send_back_of_nothing_is_refused(clocked: RunningBroker, position: int) -> None:
    raw = clocked.connect()
    raw.send("T", b"x")
    ext = {"offset": str(position), "group": "g", "delayLevel": "0"}
    assert raw.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == ResponseCode.SYSTEM_ERROR
    assert raw.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)}).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.row("A108")
def test_a_retry_send_of_an_ordered_group_is_dead_lettered_at_once(clocked: RunningBroker) -> None:
    """Clients before 5.1.3 send a count equal to the limit, so the group's lock decides."""
    raw = clocked.connect()
    raw.create("T")
    raw.lock("c")
    reply = raw.send("%RETRY%g", b"given up", properties={"DELAY": "6", "RETRY_TOPIC": "T"}, times=3, most=3)
    assert reply.code == 0
    (dead,) = raw.read("%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"given up", 3)
    assert "DELAY" not in dead.properties


@pytest.mark.row("A108")
def test_retry_send_of_another_group_waits_until_its_limit_is_passed(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    raw.send("%RETRY%g", b"again", properties={"DELAY": "1"}, times=3, most=3)
    clocked.advance(SECOND)
    assert bodies(raw.read("%RETRY%g")) == [b"again"]
    raw.send("%RETRY%g", b"dead", properties={"DELAY": "1"}, times=4, most=3)
    assert bodies(raw.read("%DLQ%g")) == [b"dead"]


def test_batches_cannot_be_delayed_or_retried(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    items = [(b"a", {"DELAY": "1"}), (b"b", {})]
    assert raw.send_batch("T", items).code == ResponseCode.MESSAGE_ILLEGAL
    assert raw.send_batch("%RETRY%g", [(b"a", {})]).code == ResponseCode.MESSAGE_ILLEGAL
    assert raw.send_batch("T", [(b"a", {"MYDELAY": "1"})]).code == 0


def test_timer_and_transactional_messages_are_refused_with_a_reason(clocked: RunningBroker) -> None:
    raw = clocked.connect()
    timer = raw.send("T", properties={"TIMER_DELAY_SEC": "5"})
    half = raw.send("T", sys_flag=4)
    assert timer.code == half.code == ResponseCode.MESSAGE_ILLEGAL
    assert "delay level" in (timer.remark or "")


def test_level_that_is_not_due_is_read_once_and_only_its_first_message(clocked: RunningBroker) -> None:
    """Every tick checks every level; reading all of it would cost megabytes each time."""
    raw = clocked.connect()
    store = clocked.broker.running.context.store
    works, asked = store.read, list[tuple[int, int]]()

    def noting(topic: str, queue_id: int, offset: int, most: int, *more: Any) -> ReadResult:
        if topic == "SCHEDULE_TOPIC_XXXX":
            asked.append((offset, most))
        return works(topic, queue_id, offset, most, *more)

    store.read = noting  # type: ignore[method-assign]
    for n in range(5):
        raw.send("T", b"%d" % n, properties={"DELAY": "3"})
    for _ in range(8):
        clocked.advance(SECOND)
    assert asked == [(0, 1)]
    clocked.advance(2 * SECOND)
    assert bodies(raw.read("T")) == [b"0", b"1", b"2", b"3", b"4"]


def test_every_message_of_a_level_is_delivered_when_it_is_due(clocked: RunningBroker) -> None:
    """The cached due time is that of the first message only."""
    raw = clocked.connect()
    raw.send("T", b"0", properties={"DELAY": "3"})
    clocked.advance(4 * SECOND)
    raw.send("T", b"1", properties={"DELAY": "3"})
    clocked.advance(6 * SECOND)
    assert bodies(raw.read("T")) == [b"0"]
    clocked.advance(4 * SECOND - 1)
    assert bodies(raw.read("T")) == [b"0"]
    clocked.advance(200)
    assert bodies(raw.read("T")) == [b"0", b"1"]
