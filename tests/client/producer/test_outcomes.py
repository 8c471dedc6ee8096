"""The offsets in a broker's reply, and the receipts that senders get, compiled and pure."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.client.producer.engine_sim import served
from tests.fast.both import references, twins

from lanemq.client.producer import outcomes
from lanemq.client.producer import waiters as waiters_module
from lanemq.client.producer.batches import PendingMessage
from lanemq.client.producer.outcomes import notify_all, stored_outcomes
from lanemq.client.producer.waiters import SubmittedFuture, ThreadBatchWaiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.model.queue import MessageQueue
from lanemq.wire.command import Command

QUEUE = MessageQueue("orders", "b", 0)
Waiters = Callable[[int], Sequence[Any]]


def futures(count: int) -> list[SubmittedFuture]:
    return [SubmittedFuture() for _ in range(count)]


def waiter(count: int) -> list[ThreadBatchWaiter]:
    return [ThreadBatchWaiter()] * count


def receipts(awaited: Sequence[Any]) -> Sequence[Receipt]:
    if isinstance(awaited[0], ThreadBatchWaiter):
        awaited[0].close(len(awaited))
        return awaited[0].result()
    return [each.result(0) for each in awaited]


@pytest.fixture(params=["current", "reference"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "reference" and twins:
        monkeypatch.setattr(waiters_module, "ReceiptTable", references["ReceiptTable"])
        monkeypatch.setattr(outcomes, "settle", references["settle"])


def notified(awaited: Sequence[Any], **ext: str) -> Sequence[Receipt]:
    messages = [
        PendingMessage(b"", "", f"id{index}", "k", waiter=each, index=index) for index, each in enumerate(awaited)
    ]
    for outcome in stored_outcomes(messages, QUEUE, Command(0, 0, 1, ext)):
        notify_all([outcome])
    return receipts(awaited)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("waiters", [futures, waiter])
def test_a_batch_whose_offset_is_forgotten_has_no_offsets(waiters: Waiters) -> None:
    found = notified(waiters(3), queueOffset="-1", laneDuplicate="true", laneStored="durable")
    assert [(each.offset, each.repeat, each.stored) for each in found] == [(-1, True, StoredAs.DURABLE)] * 3
    assert [each.message_id for each in found] == ["id0", "id1", "id2"]


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("waiters", [futures, waiter])
def test_a_forgotten_first_part_does_not_change_the_offsets_of_the_rest(waiters: Waiters) -> None:
    found = notified(waiters(4), queueOffset="70", laneSkipped="2")
    assert [(each.offset, each.repeat) for each in found] == [(-1, True), (-1, True), (70, False), (71, False)]


@pytest.mark.parametrize("waiters", [futures, waiter])
@pytest.mark.parametrize("skipped", ["3", "99", "-1", "many", ""])
def test_an_invalid_size_of_the_first_part_is_ignored(waiters: Waiters, skipped: str) -> None:
    assert [each.offset for each in notified(waiters(3), queueOffset="7", laneSkipped=skipped)] == [7, 8, 9]


@pytest.mark.parametrize("offset", ["", "first", "-7", "1.5", str(2**70)])
def test_a_reply_without_a_readable_offset_still_means_stored(offset: str) -> None:
    """Otherwise the sender would wait indefinitely."""
    sim = served()
    sim.offer("a", "a")
    sim._do(sim.engine.replied(sim.wire.pop(), Command(0, 0, 1, {"queueOffset": offset}), None))
    assert [sim.results.receipts[number].offset for number in (1, 2)] == [-1, -1]
    assert sim.engine.unsettled.bytes == 0
    assert sim.engine.mark().settled
