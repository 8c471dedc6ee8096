"""Offset queries of groups that have not committed yet, and which queue a request names."""

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import BROKER, RawClient
from tests.broker.running import ManualClock, RunningBroker

from lanemq.broker.handlers import offsets
from lanemq.broker.storage import progress_keeper
from lanemq.wire.codes import RequestCode, ResponseCode


@pytest.fixture
def raw(start: Start) -> RawClient:
    connected = start().connect()
    connected.create("T", 4)
    return connected


def stored_offset(raw: RawClient, **more: str) -> int | None:
    """The answer to a stock client of a new group; None: not found."""
    reply = raw.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", "topic": "T", "queueId": "0", **more})
    assert reply.code in (0, ResponseCode.QUERY_NOT_FOUND)
    return int(reply.ext["offset"]) if reply.code == 0 else None


def start_of_stock_client(raw: RawClient, sent_before_second_question: int) -> int:
    """Where a stock client that starts "from last" begins: at the stored offset, else at the queue's end."""
    found = stored_offset(raw)
    for _ in range(sent_before_second_question):
        raw.send("T")
    return raw.bounds("T")[1] if found is None else found


def test_a_new_stock_group_gets_what_arrives_while_it_starts(raw: RawClient) -> None:
    assert start_of_stock_client(raw, sent_before_second_question=3) == 0


def test_not_found_for_an_empty_queue_would_skip_messages(raw: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control for the test above."""
    monkeypatch.setattr(offsets.OffsetHandler, "_start_of_new_group", lambda *_: None)
    assert start_of_stock_client(raw, sent_before_second_question=3) == 3


def test_a_new_stock_group_starts_at_the_first_message_of_a_young_queue(raw: RawClient) -> None:
    raw.send("T")
    assert stored_offset(raw) == 0


def test_a_new_stock_group_does_not_start_at_a_message_of_long_ago(
    raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.send("T", b"x" * 1000)
    monkeypatch.setattr(progress_keeper, "NEAR_BYTES", 2000)
    assert stored_offset(raw) == 0
    raw.send("T", b"x" * 3000)
    assert stored_offset(raw) is None
    assert stored_offset(raw, queueId="1") == 0, "the size of the log does not matter to an empty queue"


def test_a_new_stock_group_does_not_start_before_what_retention_deleted(start: Start) -> None:
    running: RunningBroker = start(clock=ManualClock(), segment_bytes=64 * 1024, retention=3600.0)
    raw = running.connect()
    raw.create("T", 1)
    raw.send("T", b"x" * 40_000)
    raw.send("T", b"x" * 40_000)
    running.advance(3_600_000 * 2)
    assert raw.bounds("T")[0] > 0
    assert stored_offset(raw) is None


def test_a_client_may_ask_not_to_be_answered_zero(raw: RawClient) -> None:
    assert stored_offset(raw, setZeroIfNotFound="false") is None
    assert stored_offset(raw, setZeroIfNotFound="true") == 0


def test_a_new_group_of_lanemq_clients_names_its_start_itself(raw: RawClient) -> None:
    raw.send("T")
    assert stored_offset(raw, laneClient="c") is None
    assert stored_offset(raw, laneClient="c", setZeroIfNotFound="true") == 0


def test_a_queue_that_is_named_without_its_broker_is_that_of_the_broker_that_is_asked(raw: RawClient) -> None:
    """RocketMQ 4 clients name no broker, RocketMQ 5 clients do."""
    assert raw.commit(3).code == 0
    assert raw.commit(4, bname=BROKER).code == 0
    assert stored_offset(raw, consumerGroup="g", bname=BROKER) == 4


def test_the_queue_of_another_broker_is_another_queue(raw: RawClient) -> None:
    assert raw.commit(3, bname="other").code == ResponseCode.INVALID_PARAMETER
    ext = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true", "bname": "other"}
    assert raw.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == ResponseCode.INVALID_PARAMETER
    assert raw.committed() is None
    raw.commit(3)
    assert stored_offset(raw, consumerGroup="g", bname="other", setZeroIfNotFound="false") is None
