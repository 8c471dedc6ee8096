"""A range is read completely and in order, or the error says what is missing."""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from lanemq.model.errors import ConnectFailed, LeaseLost, RemoteProtocolError, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address
from lanemq.spark.offsets import NewestMessage
from lanemq.spark.options import CHUNK_BYTES
from lanemq.spark.read import range_reader
from lanemq.spark.read.partition_reader import JOIN_BYTES, ReadSettings, TaskPartition, join_small, read_partition
from lanemq.spark.read.range_reader import (
    ASSUMED_MESSAGE_BYTES,
    PULL_BYTES,
    SAMPLE_PULLS,
    DataLost,
    QueueRange,
    RangeReader,
    Sample,
)
from lanemq.spark.retrying import Retrying
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullResponse

QUEUE = MessageQueue("orders", "a", 0)
Answer = tuple[ResponseCode, int] | Exception


def wanted(first: int, end: int) -> QueueRange:
    return QueueRange(QUEUE, QueueOffset(first), QueueOffset(end), Address("h", 1), "g")


class HandClock:
    """Time passes only in pauses."""

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> Millis:
        return Millis(self.at)

    def wall(self) -> Millis:
        return Millis(self.at)

    def pause(self, seconds: float) -> None:
        self.at += int(seconds * 1000)


class Scripted(RangeReader):
    """Answers from a function of the offset instead of a socket."""

    def __init__(
        self, answer: Callable[[int], Answer], bounds: tuple[int, int] = (0, 100), *, fail: bool = True
    ) -> None:
        clock = HandClock()
        super().__init__(Retrying(Millis(1_000), clock, clock.pause), fail_on_data_loss=fail)
        self.asked: list[int] = []
        self._answer = answer
        self._bounds = bounds

    def _pull(self, wanted: QueueRange, offset: QueueOffset, max_bytes: int = 0) -> tuple[Command, PullResponse]:
        self.asked.append(offset)
        answer = self._answer(offset)
        if isinstance(answer, Exception):
            raise answer
        code, following = answer
        low, high = self._bounds
        body = bytes([offset]) if code is ResponseCode.SUCCESS else b""
        return Command(code, 0, body=body), PullResponse(next_begin_offset=following, min_offset=low, max_offset=high)


def found(step: int) -> Callable[[int], Answer]:
    return lambda offset: (ResponseCode.SUCCESS, offset + step)


def test_pulls_continue_until_the_end_of_the_range() -> None:
    reader = Scripted(found(3))
    assert list(reader.chunks(wanted(2, 10), 2)) == [b"\x02\x05", b"\x08"]
    assert reader.asked == [2, 5, 8]


@pytest.mark.parametrize(("newest", "fails"), [(50, False), (40, True)], ids=["is there", "is another one"])
def test_a_later_message_than_the_newest_is_another_one_unless_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, newest: int, fails: bool
) -> None:
    """The clock was set back if the message that was the newest one is still there."""
    times = {19: 100, 34: newest}
    monkeypatch.setattr(range_reader, "_stored_at", lambda _, offset: times[offset])
    limited = replace(wanted(20, 26), newest_before=NewestMessage(QueueOffset(34), 50))
    with pytest.raises(DataLost, match="message 19 was stored") if fails else nullcontext():
        assert list(Scripted(found(10)).chunks(limited, 1)) == [b"\x13"]


def test_a_full_response_is_returned_without_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full response is up to one message smaller than the limit."""
    full = bytes(PULL_BYTES * 4 // 5)
    reader = Scripted(found(9))

    def pull(wanted: QueueRange, offset: QueueOffset) -> tuple[Command, PullResponse]:
        answer = PullResponse(next_begin_offset=offset + 9, min_offset=0, max_offset=100)
        return Command(ResponseCode.SUCCESS, 0, body=full), answer

    monkeypatch.setattr(reader, "_pull", pull)
    first, second = reader.chunks(wanted(0, 18), CHUNK_BYTES)
    assert first is full
    assert second is full


def test_an_empty_range_sends_no_request() -> None:
    reader = Scripted(found(1))
    assert list(reader.chunks(wanted(4, 4), 1)) == []
    assert reader.asked == []


def test_messages_with_other_tags_are_skipped() -> None:
    reader = Scripted(lambda offset: (ResponseCode.PULL_RETRY_IMMEDIATELY, offset + 4))
    assert list(reader.chunks(wanted(0, 8), 1)) == []
    assert reader.asked == [0, 4]


def test_deleted_messages_fail_the_range() -> None:
    reader = Scripted(lambda offset: (ResponseCode.PULL_OFFSET_MOVED, 20), (20, 100))
    with pytest.raises(DataLost, match=r"messages 5 to 19 are gone.*failOnDataLoss"):
        list(reader.chunks(wanted(5, 30), 1))


def test_without_fail_on_data_loss_the_rest_is_read_and_the_loss_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def answer(offset: int) -> Answer:
        return (ResponseCode.PULL_OFFSET_MOVED, 20) if offset < 20 else (ResponseCode.SUCCESS, offset + 10)

    reader = Scripted(answer, (20, 100), fail=False)
    with caplog.at_level(logging.WARNING):
        assert list(reader.chunks(wanted(5, 30), 1)) == [b"\x14"]
    assert "messages 5 to 19 are gone" in caplog.text


def test_a_queue_that_ends_before_the_range_is_a_loss() -> None:
    reader = Scripted(lambda offset: (ResponseCode.PULL_NOT_FOUND, offset), (0, 3))
    with pytest.raises(DataLost):
        list(reader.chunks(wanted(5, 9), 1))


def test_a_reset_of_the_group_does_not_move_a_query() -> None:
    """The broker answers one pull with the reset position; the checkpoint decides."""
    answers: list[Answer] = [(ResponseCode.PULL_OFFSET_MOVED, 0), (ResponseCode.SUCCESS, 9)]
    reader = Scripted(lambda offset: answers.pop(0))
    assert list(reader.chunks(wanted(5, 9), 1)) == [b"\x05"]
    assert reader.asked == [5, 5]


def test_a_broker_that_moves_back_is_an_error() -> None:
    for code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
        reader = Scripted(lambda offset, code=code: (code, offset))  # type: ignore[misc]
        with pytest.raises(RemoteProtocolError, match="back"):
            list(reader.chunks(wanted(5, 9), 1))


def test_a_short_outage_loses_no_message() -> None:
    answers: list[Answer] = [ConnectFailed("away"), ConnectFailed("away"), (ResponseCode.SUCCESS, 9)]
    assert list(Scripted(lambda offset: answers.pop(0)).chunks(wanted(5, 9), 1)) == [b"\x05"]


def test_after_the_time_limit_the_brokers_error_is_raised() -> None:
    reader = Scripted(lambda offset: ConnectFailed("still away"))
    with pytest.raises(ConnectFailed, match="still away"):
        list(reader.chunks(wanted(5, 9), 1))
    assert 3 <= len(reader.asked) <= 6


def test_a_lost_lease_is_not_retried() -> None:
    reader = Scripted(lambda offset: LeaseLost("it belongs to another"))
    with pytest.raises(LeaseLost):
        list(reader.chunks(wanted(5, 9), 1))
    assert reader.asked == [5]


def test_a_sample_without_a_message_assumes_a_size() -> None:
    """A size of 0 would disable the byte limit."""
    filtered = Scripted(lambda offset: (ResponseCode.PULL_RETRY_IMMEDIATELY, offset + 10))
    assert filtered.sample(wanted(5, 95)) == Sample(10 * SAMPLE_PULLS, ASSUMED_MESSAGE_BYTES)
    deleted = Scripted(lambda offset: TopicNotFound(17, "no such topic"))
    assert deleted.sample(wanted(5, 95)) == Sample(0, ASSUMED_MESSAGE_BYTES), "the task reports the loss"
    nothing_there = Scripted(lambda offset: (ResponseCode.PULL_NOT_FOUND, offset))
    assert nothing_there.sample(wanted(5, 95)) == Sample(0, ASSUMED_MESSAGE_BYTES)


def test_a_sample_stops_at_the_end_of_its_range() -> None:
    filtered = Scripted(lambda offset: (ResponseCode.PULL_RETRY_IMMEDIATELY, offset + 10))
    assert filtered.sample(wanted(5, 18)) == Sample(13, ASSUMED_MESSAGE_BYTES)
    assert filtered.asked == [5, 15]


def test_a_topic_deleted_while_it_is_read_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    def deleted_at_6(offset: int) -> Answer:
        return (ResponseCode.SUCCESS, offset + 3) if offset < 6 else TopicNotFound(17, "no such topic")

    with pytest.raises(DataLost, match="messages 6 to 9 are gone, their topic was deleted"):
        list(Scripted(deleted_at_6).chunks(wanted(0, 10), 100))
    assert list(Scripted(deleted_at_6, fail=False).chunks(wanted(0, 10), 100)) == [b"\x00\x03"]
    assert "continuing without them" in caplog.text


class Connection:
    """A connection to a broker that returns one message for each pull."""

    opened: ClassVar[list["Connection"]] = []

    def __init__(self, address: Address, security: object) -> None:
        self.address = address
        self.closed = False
        self.opened.append(self)

    def request(self, command: Command, timeout: float) -> Command:
        following = int(command.ext["queueOffset"]) + 1
        answer = PullResponse(next_begin_offset=following, min_offset=0, max_offset=100)
        return Command(ResponseCode.SUCCESS, 0, body=self.address.host.encode(), ext=answer.to_ext())

    def close(self) -> None:
        self.closed = True


def test_ranges_of_one_broker_share_a_connection_and_each_is_pulled_from_its_own_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_reader, "BlockingConnection", Connection)
    monkeypatch.setattr(Connection, "opened", [])
    reader = RangeReader(Retrying(Millis(0)))
    for host in ("a", "a", "b", "b"):
        there = QueueRange(QUEUE, QueueOffset(0), QueueOffset(2), Address(host, 1), "g")
        assert list(reader.chunks(there, 1)) == [host.encode()] * 2
    assert [(each.address.host, each.closed) for each in Connection.opened] == [("a", True), ("b", False)]
    reader.close()
    assert Connection.opened[1].closed


def test_small_arrow_batches_are_joined_and_large_ones_are_not_copied() -> None:
    def batch(number: int, size: int = 10) -> pa.RecordBatch:
        return pa.record_batch({"number": [number], "value": [bytes(size)]})

    large = batch(3, JOIN_BYTES)
    found = list(join_small([batch(1), batch(2), large, batch(4), batch(5), batch(6, JOIN_BYTES // 2), batch(7)]))
    assert [each.column("number").to_pylist() for each in found] == [[1, 2], [3], [4, 5, 6, 7]]
    assert found[1] is large
    assert list(join_small([])) == []
    half = [batch(number, JOIN_BYTES // 2) for number in range(5)]
    assert [each.num_rows for each in join_small(half)] == [2, 2, 1], "a task holds little more than it returns"


def test_an_error_names_the_queue_that_a_task_was_reading() -> None:
    """A task reads several queues, and the broker's error may not name one."""
    nowhere = QueueRange(QUEUE, QueueOffset(3), QueueOffset(9), Address("127.0.0.1", 1), "g")
    partition = TaskPartition([nowhere], ReadSettings(Millis(0), fail_on_data_loss=True, chunk_bytes=1))
    with pytest.raises(ConnectFailed) as caught:
        list(read_partition(partition, pa.schema([])))
    assert caught.value.__notes__ == ["while reading orders/a/0 from offset 3 to 8"]
