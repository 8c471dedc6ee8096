"""What a broker's answer says about places, and what senders are told of it, compiled or not."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.client.street import served

from lanemq._fast import references, twins
from lanemq.client.producer import outcomes as send_outcomes
from lanemq.client.producer.outcomes import stored_outcomes
from lanemq.client.producer.requests import Parcel
from lanemq.client.producer.waiters import SubmittedFuture, WaitingCrowd
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.model.queue import MessageQueue
from lanemq.wire.command import Command

QUEUE = MessageQueue("orders", "b", 0)
Tickets = Callable[[int], Sequence[Any]]


def futures(count: int) -> list[SubmittedFuture]:
    return [SubmittedFuture() for _ in range(count)]


def crowd(count: int) -> list[WaitingCrowd]:
    return [WaitingCrowd()] * count


def receipts(tickets: Sequence[Any]) -> list[Receipt]:
    if isinstance(tickets[0], WaitingCrowd):
        tickets[0].close(len(tickets))
        return tickets[0].result()
    return [ticket.result(0) for ticket in tickets]


@pytest.fixture(params=["as it runs", "reference"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "reference" and twins:
        monkeypatch.setattr(send_outcomes, "receipts_of", references["receipts_of"])


def told(tickets: Sequence[Any], **ext: str) -> list[Receipt]:
    parcels = [Parcel(b"", "", f"id{index}", "k", ticket=each, index=index) for index, each in enumerate(tickets)]
    for outcome in stored_outcomes(parcels, QUEUE, Command(0, 0, 1, ext)):
        outcome.tell()
    return receipts(tickets)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("tickets", [futures, crowd])
def test_a_batch_whose_place_is_forgotten_has_no_place_at_all(tickets: Tickets) -> None:
    found = told(tickets(3), queueOffset="-1", laneDuplicate="true", laneStored="durable")
    assert [(each.offset, each.repeat, each.stored) for each in found] == [(-1, True, StoredAs.DURABLE)] * 3
    assert [each.message_id for each in found] == ["id0", "id1", "id2"]


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("tickets", [futures, crowd])
def test_a_forgotten_beginning_does_not_count_on_into_the_rest(tickets: Tickets) -> None:
    found = told(tickets(4), queueOffset="70", laneSkipped="2")
    assert [(each.offset, each.repeat) for each in found] == [(-1, True), (-1, True), (70, False), (71, False)]


@pytest.mark.parametrize("tickets", [futures, crowd])
@pytest.mark.parametrize("skipped", ["3", "99", "-1", "many", ""])
def test_a_beginning_that_makes_no_sense_costs_no_receipt(tickets: Tickets, skipped: str) -> None:
    assert [each.offset for each in told(tickets(3), queueOffset="7", laneSkipped=skipped)] == [7, 8, 9]


@pytest.mark.parametrize("offset", ["", "first", "-7", "1.5", str(2**70)])
def test_an_answer_without_a_readable_place_still_says_stored(offset: str) -> None:
    """Lost, the sender would wait for it for ever."""
    street = served()
    street.offer("a", "a")
    street._do(street.engine.replied(street.wire.pop(), Command(0, 0, 1, {"queueOffset": offset}), None))
    assert [street.told.receipts[number].offset for number in (1, 2)] == [-1, -1]
    assert street.engine.buffered_bytes == 0
    assert street.engine.is_idle
