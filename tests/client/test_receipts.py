"""The receipts of `send_many` are a sequence like a list that cannot be changed."""

import pytest

from lanemq.client.receipt import MAX_SHOWN, Receipt, Receipts
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

QUEUE = MessageQueue("orders", "b", 0)


def receipt(index: int) -> Receipt:
    return Receipt(QUEUE, QueueOffset(10 + index), f"id-{index}", "k")


def many(count: int) -> Receipts:
    return Receipts(receipt, count)


@pytest.mark.parametrize("index", [0, 2, -1, -3, slice(None), slice(1, None), slice(None, None, -1), slice(7, 9)])
def test_receipts_are_read_like_a_list(index: int | slice) -> None:
    assert many(3)[index] == list(map(receipt, range(3)))[index]  # type: ignore[index]


@pytest.mark.parametrize("index", [3, -4])
def test_a_receipt_beyond_the_messages_of_the_call_is_refused_as_in_a_list(index: int) -> None:
    with pytest.raises(IndexError):
        many(3)[index]


def test_receipts_are_compared_with_lists() -> None:
    receipts, same = many(2), [receipt(0), receipt(1)]
    assert receipts == same
    assert same == receipts
    assert receipts == many(2) == tuple(same)
    assert receipts != same[:1]
    assert receipts != "text"
    assert [*receipts] == same
    assert len(receipts) == 2
    assert receipt(1) in receipts


def test_the_text_of_many_receipts_is_short() -> None:
    assert repr(many(1)) == f"Receipts([{receipt(0)!r}])"
    assert repr(many(MAX_SHOWN + 1)) == f"Receipts(of {MAX_SHOWN + 1} messages)"
