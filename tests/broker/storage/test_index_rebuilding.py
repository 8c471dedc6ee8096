"""A broker whose indexes were deleted serves at once: pulls of messages that are not indexed yet wait for them."""

import shutil
import time
from pathlib import Path

import pytest
from tests.broker.conftest import Start, StartProcess
from tests.broker.raw_client import RawClient, bodies, records
from tests.broker.running import BrokerProcess, RunningBroker

from lanemq.broker.handlers import pull as pull_handler
from lanemq.broker.monitor import figures
from lanemq.broker.storage.index_rebuilding import IndexRebuilding
from lanemq.client.admin.queue_progress import store_times
from lanemq.core.brokering.disk_space import Space
from lanemq.log.options import StoreOptions
from lanemq.log.store import Store
from lanemq.model.queue import MessageQueue
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.stats_bodies import ConsumeStats, TopicStatsTable

COUNT = 20
TICK = IndexRebuilding.tick


def fill(running: RunningBroker) -> None:
    raw = running.connect()
    raw.create("T", 1)
    for number in range(COUNT):
        raw.send("T", b"%d" % number, stamp=f"p.1.{number}")


@pytest.fixture
def waiting(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunningBroker:
    """A broker that has begun to serve, and whose rebuild has not begun."""
    fill(running := start())
    running.stop()
    shutil.rmtree(folder / "data" / "index")
    monkeypatch.setattr(IndexRebuilding, "tick", lambda _: None)
    return start()


def test_a_pull_waits_for_its_index_and_gets_the_messages(
    waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = waiting.connect()
    assert int(raw.send("T", b"new", stamp=f"p.1.{COUNT}").ext["queueOffset"]) == COUNT
    assert bodies(raw.read("T", offset=COUNT)) == [b"new"]
    assert raw.bounds("T") == (0, COUNT + 1)
    asked = raw.post_pull("T", 5, hold=20_000)
    assert raw.committed("T") is None  # the pull was handled before
    assert asked not in raw.answered()
    monkeypatch.setattr(IndexRebuilding, "tick", TICK)
    assert bodies(records(raw.answer(asked)))[:2] == [b"5", b"6"]
    assert bodies(raw.read("T")) == [*(b"%d" % number for number in range(COUNT)), b"new"]


def test_what_cannot_wait_is_told_to_ask_again(waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_handler, "REBUILD_HOLD_MS", 1)
    raw = waiting.connect()
    for reply in (
        raw.pull("T", 5),
        raw.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": "1"}),
    ):
        assert reply.code == ResponseCode.SYSTEM_BUSY
        assert "ask again" in (reply.remark or "")


def wait_for_rebuild(raw: RawClient) -> None:
    while raw.runtime()["lanemq_index_rebuild_bytes"] != "0":
        time.sleep(0.01)


LAG = 'lanemq_lag_{}{{group="g",topic="T"}}'


def test_the_lag_in_seconds_is_unknown_until_the_index_is_rebuilt(
    waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue 1 is known from the start: it does not stand for queue 0, whose age may be larger."""
    raw = waiting.connect()
    raw.create("T", 2)
    raw.commit(5)
    raw.send("T", queue=1)
    raw.commit(0, queue=1)
    shown = raw.runtime()
    assert shown[LAG.format("messages")] == str(COUNT - 5 + 1)
    assert LAG.format("seconds") not in shown
    assert int(shown["lanemq_index_rebuild_bytes"]) > 0
    assert shown["dispatchBehindBytes"] == shown["lanemq_index_rebuild_bytes"], "the same under RocketMQ's name"
    monkeypatch.setattr(IndexRebuilding, "tick", TICK)
    wait_for_rebuild(raw)
    assert float(raw.runtime()[LAG.format("seconds")]) >= 0


def test_a_disk_that_is_nearly_full_says_that_retention_waits_for_the_rebuild(
    waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = waiting.broker.running
    monkeypatch.setattr(running.context.store, "space", lambda: Space(1, 2**40))
    waiting.call(running.housekeeping.tick)
    refused = waiting.connect().send("T")
    assert refused.code != ResponseCode.SUCCESS
    assert (refused.remark or "").endswith("retention deletes nothing until that is done")


def test_control_unknown_taken_for_none_is_a_lag_of_zero_seconds(
    waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_rule(one: figures.Lag, other: figures.Lag) -> figures.Lag:
        return figures.Lag(one.messages + other.messages, max(one.seconds or 0, other.seconds or 0), 0.0)

    monkeypatch.setattr(figures, "_both", without_the_rule)
    raw = waiting.connect()
    raw.commit(5)
    assert raw.runtime()[LAG.format("seconds")] == "0"


def test_operators_see_the_lag_in_messages_while_the_time_is_unknown(
    waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's answers have 0 for an unknown time, as for a queue of which nothing was consumed."""
    raw = waiting.connect()
    raw.commit(5)
    topic = TopicStatsTable.decode(raw.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body)
    assert [(each.max_offset, each.last_update_timestamp) for each in topic.offset_table.values()] == [(COUNT, 0)]
    group = ConsumeStats.decode(raw.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body)
    (progress,) = group.offset_table.values()
    assert (progress.consumer_offset, progress.broker_offset, progress.last_timestamp) == (5, COUNT, 0)
    monkeypatch.setattr(pull_handler, "REBUILD_HOLD_MS", 1)
    queue = MessageQueue("T", "lanemq", 0)
    (at,) = behind = {(queue, 5): COUNT}
    assert store_times(behind, str(waiting.broker.address)) == {at: None}
    monkeypatch.setattr(IndexRebuilding, "tick", TICK)
    wait_for_rebuild(raw)
    known = store_times(behind, str(waiting.broker.address))[at]
    group = ConsumeStats.decode(raw.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body)
    (progress,) = group.offset_table.values()
    assert known is not None
    assert 0 < progress.last_timestamp <= known, "the last one finished is not newer than the first one not finished"


def test_control_a_broker_that_takes_lost_entries_for_an_empty_queue_answers_with_nothing(
    waiting: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.log.queue_index.QueueTable.readable_end", lambda _table, queue, _offset: queue.end)
    assert records(waiting.connect().pull("T", 5)) == []


def test_a_stop_before_the_rebuild_is_done_lets_the_next_start_begin_again(
    waiting: RunningBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.connect().send("T", b"new", stamp=f"p.1.{COUNT}")
    waiting.stop()
    monkeypatch.setattr(IndexRebuilding, "tick", TICK)
    raw = start().connect()
    assert bodies(raw.read("T")) == [*(b"%d" % number for number in range(COUNT)), b"new"]


LARGE, QUEUES, BODY = 24_000, 4, b"x" * 4_000
"""About 100 MiB: six steps of the rebuild."""
SEGMENT_BYTES = 8 * 1024 * 1024


def fill_without_broker(data: Path) -> None:
    """Messages with their number in front, by turns in each queue, a thousand at once."""
    store = Store(data, StoreOptions(durable=False, segment_bytes=SEGMENT_BYTES))
    store.recover()
    now = int(time.time() * 1000)
    for first in range(0, LARGE, 1_000):
        texts = [b"%d " % number + BODY for number in range(first, first + 1_000)]
        records = [(text, b"", 0, 0, 0, 1, 0) for text in texts]
        store.append("T", first // 1_000 % QUEUES, records, store_time=now)
    store.close()


def stored_numbers(raw: RawClient, queue: int) -> list[bytes]:
    return [body.partition(b" ")[0] for body in bodies(raw.read("T", queue=queue))]


def killed_in_the_middle(process: BrokerProcess, text: bytes) -> bool:
    """Stores a message and kills the broker; whether it had rebuilt a part of the indexes, and not all of them."""
    with RawClient(process.address) as raw:
        assert raw.send("T", text).code == 0
        whole = left = int(raw.runtime()["lanemq_index_rebuild_bytes"])
        while left == whole > 0:
            left = int(raw.runtime()["lanemq_index_rebuild_bytes"])
    process.kill()
    return left > 0


@pytest.mark.slow
def test_a_broker_that_is_killed_in_the_middle_of_a_large_rebuild_loses_nothing(
    start: Start, start_process: StartProcess, folder: Path
) -> None:
    data, sent, in_the_middle = folder / "data", list[bytes](), False
    running = start()
    running.connect().create("T", QUEUES)
    running.stop()
    fill_without_broker(data)
    while not in_the_middle:  # it may be faster than this process
        shutil.rmtree(data / "index")
        sent.append(b"new-%d" % len(sent))
        in_the_middle = killed_in_the_middle(start_process(segment_bytes=SEGMENT_BYTES), sent[-1])
    process = start_process(segment_bytes=SEGMENT_BYTES)
    with RawClient(process.address) as raw:
        assert raw.send("T", b"last").code == 0, "it serves"
        wait_for_rebuild(raw)
        for queue in range(QUEUES):
            wanted = [b"%d" % number for number in range(LARGE) if number // 1_000 % QUEUES == queue]
            assert stored_numbers(raw, queue) == wanted + ([*sent, b"last"] if queue == 0 else [])
    process.stop()
    assert "indexes are missing" in process.log, "the killed rebuild was not done"
    assert start().broker.running.context.store.rebuild is None, "now it is"
