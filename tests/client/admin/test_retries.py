"""Which messages of a concurrent group wait for another attempt, and from when on one counts as finished."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

from lanemq.client.admin import retries
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.retries import DelayedRetries, RetrySearch
from lanemq.client.message import Message
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.errors import BrokerRefused, NotAllowed
from lanemq.model.names import SCHEDULE_TOPIC, retry_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LEVEL_3 = MessageQueue(SCHEDULE_TOPIC, "b", 2)
RETRY = MessageQueue(retry_topic("g"), "b", 0)
SENT = MessageQueue("orders", "b", 0)


def message(queue: MessageQueue, offset: int, id: str, **properties: str) -> Message:
    made = SimpleNamespace(
        queue=queue, queue_offset=offset, key="k", message_id=id, stored_id=f"stored-{id}", stored_at=NOW,
        size=5, properties=properties, reconsume_times=2,
    )  # fmt: skip
    return cast(Message, made)


def copy(queue: MessageQueue, offset: int, id: str, group: str = "g") -> Message:
    names = {"ORIGIN_MESSAGE_ID": id, "REAL_TOPIC": retry_topic(group), "RETRY_TOPIC": "orders"}
    return message(queue, offset, id, **names)


class Brokers:
    """What `RetrySearch` asks an `Admin`."""

    def __init__(self, delivered: int, end: int, copies: Sequence[Message], refuses: bool = False) -> None:
        self._table = {"scheduleMessageOffset_3": f"{delivered},{end}"}
        self._copies = copies
        self._refuses = refuses
        self.closed: set[str] = set()

    def figures(self) -> tuple[SimpleNamespace, ...]:
        if self._refuses:
            raise BrokerRefused(1, "no right")
        return (SimpleNamespace(broker="b", table=self._table),)

    def find_copies(self, topic: str, messages: Sequence[Message]) -> list[Message]:
        if topic in self.closed:
            raise NotAllowed(16, "no right to this group")
        return [each for each in self._copies if each.queue.topic == topic]


def found(
    brokers: Brokers, committed: int = 0, finished: FinishedRanges = NOTHING_FINISHED
) -> dict[int, datetime | None]:
    search = RetrySearch(cast(Admin, brokers), [message(SENT, 7, "a"), message(SENT, 8, "b")])
    return {offset: each.due for offset, each in search.of("g", {RETRY: (committed, finished)})[0].items()}


def test_a_delayed_copy_is_a_retry_until_the_broker_has_delivered_it() -> None:
    copies = [copy(LEVEL_3, 4, "a"), copy(LEVEL_3, 5, "b", group="other")]
    assert found(Brokers(4, 6, copies)) == {7: NOW + timedelta(seconds=10)}, "another group's copy is not this group's"
    assert found(Brokers(5, 6, copies)) == {}


def test_a_copy_in_the_retry_topic_is_a_retry_until_the_group_has_finished_it() -> None:
    copies = [copy(RETRY, 3, "stored-a"), copy(RETRY, 5, "b")]
    assert found(Brokers(0, 0, copies), committed=3) == {7: None, 8: None}
    assert found(Brokers(0, 0, copies), committed=4) == {8: None}
    assert found(Brokers(0, 0, copies), 3, FinishedRanges.decode("2,1", QueueOffset(3))) == {7: None}
    assert found(Brokers(0, 0, copies), committed=6) == {}


def test_a_user_who_may_not_read_delayed_messages_is_not_said_that_there_are_none() -> None:
    search = RetrySearch(cast(Admin, Brokers(0, 0, [], refuses=True)), [message(SENT, 7, "a")])
    assert "no right" in search.unknown


def test_a_group_that_the_user_has_no_right_to_does_not_hide_the_others() -> None:
    brokers = Brokers(4, 5, [copy(LEVEL_3, 4, "a")])
    brokers.closed.add(RETRY.topic)
    found, unknown = RetrySearch(cast(Admin, brokers), [message(SENT, 7, "a")]).of("g", {RETRY: (0, NOTHING_FINISHED)})
    assert list(found) == [7]
    assert "no right to this group" in unknown


class Reader:
    """A `TopicReader` of the delay queues."""

    reads: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, server: str, topic: str) -> None:
        assert topic == SCHEDULE_TOPIC

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, queue: MessageQueue, start: int, end: int) -> list[Message]:
        self.reads.append((start, end))
        return [copy(queue, offset, f"id-{offset}") for offset in range(start, end)]


def test_each_delayed_message_is_read_once_and_those_beyond_the_limit_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "TopicReader", Reader)
    monkeypatch.setattr(retries, "MAX_READ", 3)
    monkeypatch.setattr(Reader, "reads", [])
    delayed = DelayedRetries("b:1")

    def read(delivered: int, end: int) -> tuple[int, int]:
        now = delayed.read([("b", {"scheduleMessageOffset_3": f"{delivered},{end}", "putTps": "1"})])
        return len(now.retries), now.left_out

    assert read(0, 2) == (2, 0)
    assert read(1, 4) == (3, 0)
    assert read(1, 9) == (3, 5)
    assert read(9, 9) == (0, 0)
    assert Reader.reads == [(0, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize(
    ("version", "reported", "expected"),
    [("V4_9_7", {}, 2), ("V4_9_7", {"scheduleMessageOffset_3": "1,2"}, 1), ("V5_3_3", {}, 0)],
    ids=["RocketMQ 4, nothing delivered", "RocketMQ 4, one delivered", "RocketMQ 5, nothing delayed"],
)
def test_a_level_of_which_rocketmq_4_reports_nothing_has_delivered_nothing(
    monkeypatch: pytest.MonkeyPatch, version: str, reported: dict[str, str], expected: int
) -> None:
    """RocketMQ 4 reports a delay level only after the first message of that level has come due."""
    stored = [copy(LEVEL_3, offset, f"id-{offset}") for offset in range(2)]

    def read(_: Reader, queue: MessageQueue, start: int, end: int) -> list[Message]:
        return [each for each in stored if each.queue == queue and start <= each.queue_offset < end]

    monkeypatch.setattr(retries, "TopicReader", Reader)
    monkeypatch.setattr(Reader, "read", read)
    now = DelayedRetries("b:1").read([("b", {"brokerVersionDesc": version, **reported})])
    assert (len(now.retries), now.left_out) == (expected, 0)
