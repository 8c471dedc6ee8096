"""The twins of what `submit` does per message return the same as their references."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.producer.engine_sim import new_engine
from tests.fast.both import needs_twins, outcome, references, same, twins

from lanemq.client.producer.batches import MESSAGE_OVERHEAD, PendingMessage
from lanemq.client.producer.inbox import MAX_MESSAGES, KeySenders
from lanemq.client.producer.waiters import NO_WAITER, SubmittedFuture, ThreadBatchWaiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.client.topic_route import TopicRoute
from lanemq.model.queue import MessageQueue

pytestmark = needs_twins

KEYS = st.sampled_from(["k", "key-2", 42, "ключ", "😀", "", "a\x01b", "\ud800", "x" * 251])
VALUES = st.binary(max_size=60) | st.sampled_from([b"x" * 51, bytearray(b"abc"), "text", None])
MESSAGES = st.tuples(st.sampled_from(["orders", "orders", "unknown", []]), KEYS, VALUES)
QUEUES = tuple(MessageQueue("orders", "b", number) for number in range(4))


def intake(kind: dict[str, Any], make: Any = SubmittedFuture, passes_bytes: bool = True) -> Any:
    numbers = iter(range(10**6))
    made = kind["Intake"](encoded, lambda: f"{next(numbers):032X}", make, 50, passes_bytes)
    made.topics["orders"] = KeySenders(TopicRoute("orders", QUEUES, (), {}), new_engine())
    made.open = True
    return made


def encoded(value: object) -> Any:
    """Refuses values that are not bytes; returns a bytearray unchanged, as a careless codec may."""
    if isinstance(value, bytearray):
        return value
    return bytes(value)  # type: ignore[call-overload]


def shown(message: Any) -> Any:
    fields = message.body, message.properties, message.message_id, message.key, message.sys_flag
    return *fields, message.alone, message.sender_waits, message.index, message.size


def taken(kind: dict[str, Any], messages: list[Any], passes_bytes: bool) -> Any:
    one = intake(kind, passes_bytes=passes_bytes)
    waiters = [outcome(one.take, *message) for message in messages]
    placed = {place.queue: messages for place, messages in one.take_out().items()}
    given_out = [each for each in waiters if isinstance(each, SubmittedFuture)]
    waiters = [message.waiter for messages in placed.values() for message in messages]
    assert set(map(id, given_out)) == set(map(id, waiters))
    kinds = ["taken" if isinstance(each, SubmittedFuture) else each for each in waiters]
    return kinds, {queue: [shown(message) for message in messages] for queue, messages in placed.items()}, len(one)


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGES, max_size=12), st.booleans())
def test_messages_are_taken_alike(messages: list[Any], passes_bytes: bool) -> None:
    assert taken(twins, messages, passes_bytes) == taken(references, messages, passes_bytes)


@pytest.mark.parametrize("kind", [twins, references], ids=["compiled", "reference"])
def test_a_full_line_takes_no_more(kind: dict[str, Any]) -> None:
    one = intake(kind)
    assert all(one.take("orders", "k", b"x") for _ in range(MAX_MESSAGES))
    assert one.take("orders", "k", b"x") is None
    one.take_out()
    assert one.take("orders", "k", b"x") is not None


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["k", "ключ"]), st.binary(max_size=20)), min_size=1), st.integers(0, 10**12))
def test_messages_of_the_inbox_are_written_into_a_batch_alike(messages: list[Any], sequence: int) -> None:
    one = intake(twins)
    for key, value in messages:
        one.take("orders", key, value)
    messages = [message for queue in one.take_out().values() for message in queue]
    mixed = (*messages, PendingMessage(b"body", "a\x01b\x02", "id"), *messages[:1])
    stamp = "LANE_STAMP\x01p.1."
    assert twins["batch_body"](mixed, stamp, sequence) == references["batch_body"](mixed, stamp, sequence)


@pytest.mark.parametrize("first_block", [0, 255, 0xFFFFF])
def test_ids_are_made_alike(first_block: int) -> None:
    compiled, reference = (kind["MessageIds"]("AB" * 12, first_block) for kind in (twins, references))
    ids = [compiled.next() for _ in range(2 * 4096 + 5)]
    assert ids == [reference.next() for _ in ids]
    assert {len(each) for each in ids} == {32}


MESSAGES = st.builds(
    PendingMessage,
    st.just(b""),
    st.just(""),
    st.just("id"),
    alone=st.booleans(),
    size=st.integers(MESSAGE_OVERHEAD, 2**40),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(MESSAGES, max_size=4))
def test_messages_are_weighed_alike(messages: list[PendingMessage]) -> None:
    same("total_size", messages)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["unseen", "watched", "waiter", "none"]), max_size=6), st.integers(-1, 2**60))
def test_futures_and_waiters_are_settled_alike(kinds: list[str], offset: int) -> None:
    ended = [settled(kind["settle"], kinds, offset) for kind in (twins, references)]
    assert ended[0] == ended[1]


def settled(settle: Any, kinds: list[str], offset: int) -> Any:
    """The waiters that are left to notify, and the results of the futures."""
    messages = []
    for index, kind in enumerate(kinds):
        waiter: Any = {"waiter": ThreadBatchWaiter, "none": lambda: NO_WAITER}.get(kind, SubmittedFuture)()
        if kind == "watched":
            waiter.add_done_callback(print)
        messages.append(PendingMessage(b"x", "", f"id-{index}", "k", waiter=waiter, index=index))
    left = settle(messages, Receipt, QUEUES[0], offset, StoredAs.DURABLE, True)
    names = [(index, receipt) for _, index, receipt in left]
    assert all(waiter is messages[index].waiter for waiter, index, _ in left)
    futures = [message.waiter for message in messages if isinstance(message.waiter, SubmittedFuture)]
    return names, [future.result(0) if future.done() else None for future in futures]
