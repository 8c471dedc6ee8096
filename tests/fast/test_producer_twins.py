"""The twins of what a producer does per message return the same as their references."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import needs_twins, outcome, references, same, twins

from lanemq.client.producer.batches import NOTHING, Outgoing, PackingTools, PendingMessage
from lanemq.client.producer.waiters import NO_WAITER, ThreadBatchWaiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.model.errors import Closed, InvalidOption, MessageTooLarge
from lanemq.model.queue import MessageQueue

pytestmark = needs_twins

KEYS = st.sampled_from(["k", "key-2", "ключ", "", "a\x01b", "\x02", "x" * 7801, 7, None, b"k", "\ud800", 1.5, True])
VALUES = st.binary(max_size=30) | st.sampled_from([b"x" * 101, bytearray(b"abc"), "text", None])
MESSAGES = st.one_of(
    st.tuples(KEYS, VALUES),
    st.builds(Outgoing, VALUES, KEYS),
    st.sampled_from([("three", b"x", 1), ["list", b"x"], None]),
)


def tools(encode: Any = bytes, passes_bytes: bool = True) -> PackingTools:
    numbers = iter(range(10**6))

    def refuse(size: int) -> Any:
        raise MessageTooLarge(f"{size} bytes")

    return encode, lambda: f"{next(numbers):032X}", refuse, PendingMessage, NOTHING, (5, 100, passes_bytes)


def packed(function: Any, messages: list[Any], room: int, **how: Any) -> Any:
    """What a call packs and where it stops, in comparable form."""
    chunk: list[Any] = []
    source, waiter = iter(messages), ThreadBatchWaiter()
    ended = outcome(function, tools(**how), source, waiter, 3, chunk, room)
    if len(ended) == 3:
        ended = "nothing" if ended[0] is NOTHING else ended[0], shown(ended[1]), ended[2]
    assert all(message.waiter is waiter for message in chunk)
    return ended, [shown(message) for message in chunk], list(source)


def shown(message: Any) -> Any:
    if message is None:
        return None
    return (
        message.body,
        message.properties,
        message.message_id,
        message.key,
        message.index,
        message.size,
        message.sender_waits,
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGES, max_size=8), st.sampled_from([20, 50, 1000]), st.booleans())
def test_messages_are_packed_alike(messages: list[Any], room: int, passes_bytes: bool) -> None:
    compiled = packed(twins["pack_pairs"], messages, room, passes_bytes=passes_bytes)
    assert compiled == packed(references["pack_pairs"], messages, room, passes_bytes=passes_bytes)


@pytest.mark.parametrize("function", ["twins", "references"])
def test_nothing_is_read_after_a_failure(function: str) -> None:
    waiter = ThreadBatchWaiter()
    waiter.failed(0, Closed("refused"))
    source = iter([("k", b"v")])
    chosen = {"twins": twins, "references": references}[function]["pack_pairs"]
    assert chosen(tools(), source, waiter, 0, [], 100)[0] is NOTHING
    assert list(source) == [("k", b"v")]


def test_errors_of_a_codec_reach_the_caller() -> None:
    def broken(value: object) -> bytes:
        raise ZeroDivisionError("codec")

    messages = [("k", b"v")]
    assert packed(twins["pack_pairs"], messages, 9, encode=broken, passes_bytes=False)[0] == (
        ZeroDivisionError,
        "codec",
    )


TEXTS = st.text(max_size=20) | st.just("x" * 33000)
MESSAGES = st.builds(PendingMessage, st.binary(max_size=20), TEXTS, st.just("id"), st.sampled_from(["k", None]))


@settings(deadline=None, max_examples=100)
@given(st.lists(MESSAGES, max_size=4), st.sampled_from([0, 9, 2**40, 2**62]))
def test_batches_are_written_alike(messages: list[PendingMessage], sequence: int) -> None:
    same("batch_body", tuple(messages), "LANE_STAMP\x01p.1.", sequence)


Batches = list[tuple[list[Any], int]]


def kept(kind: dict[str, Any], batches: Batches, waiter: Any, single: Receipt | None = None) -> Any:
    """What a table says to each batch, and all of its receipts."""
    table = kind["ReceiptTable"](Receipt)
    facts = MessageQueue("T", "b", 1), StoredAs.DURABLE, True
    added = [table.add(messages, waiter, facts[0], offset, *facts[1:]) for messages, offset in batches]
    if single is not None:
        table.put(2000, single)
    return added, [outcome(table.get, index) for index in (*range(120), 2000, -1, 10**6)]


@settings(deadline=None, max_examples=60)
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.integers(-1, 2**60), st.booleans())
def test_receipts_are_kept_alike(messages: list[PendingMessage], offset: int, shared: bool) -> None:
    waiter = ThreadBatchWaiter()
    for index, message in enumerate(messages):
        message.index = 3 * index
        message.waiter = waiter if shared or index % 2 else ThreadBatchWaiter()
    single = Receipt(MessageQueue("T", "b", 0), 1, "single")
    assert kept(twins, [(messages, offset)], waiter, single) == kept(references, [(messages, offset)], waiter, single)


def quick_messages(count: int, waiter: Any, ids: Any = None, first: int = 0) -> list[Any]:
    """Messages as the compiled packing makes them."""
    chunk: list[Any] = []
    encode, next_id, *rest = tools(passes_bytes=True)
    made = encode, next_id if ids is None else ids.next, *rest
    twins["pack_pairs"](made, iter([("k", b"v"), ("key", b"w")] * count), waiter, first, chunk, 10**6)
    return chunk[:count]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("sources", [0, 1, 2])
def test_receipts_of_quick_messages_are_kept_alike(count: int, others: int, sources: int) -> None:
    """The number of an id is kept in place of its text; messages with other ids, and of another class, may be among
    them."""
    waiter = ThreadBatchWaiter()
    ids = [twins["MessageIds"](prefix * 12, 3) for prefix in ("AB", "CD")][:sources] or [None]
    batches: Batches = []
    for place, source in enumerate(ids):
        messages = quick_messages(count, waiter, source, 10 * place)
        messages += [
            PendingMessage(b"v", "", f"other {index}", None, waiter=waiter, index=90 + 10 * place + index)
            for index in range(others)
        ]
        batches.append((messages, 100 * place))
    assert kept(twins, batches, waiter) == kept(references, batches, waiter)
    batches.append(([PendingMessage(b"v", "", "last", "k", waiter=ThreadBatchWaiter(), index=99)], 7))
    assert kept(twins, batches, waiter) == kept(references, batches, waiter)
    assert kept(twins, batches, waiter)[0][-1] is False


def test_a_message_tells_its_id_before_and_after_it_is_written() -> None:
    ids = twins["MessageIds"]("AB" * 12, 7)
    (message,) = quick_messages(1, waiter := ThreadBatchWaiter(), ids)
    again = references["MessageIds"]("AB" * 12, 7).next()
    assert message.message_id == again
    assert f"UNIQ_KEY\x01{again}\x02" in message.properties
    assert f"UNIQ_KEY\x01{again}\x02".encode() in twins["batch_body"]((message,), "LANE_STAMP\x01p.1.", 0)
    assert message.waiter is waiter


def test_futures_are_settled_alike() -> None:
    """Futures with a waiting thread, and other waiters, are left to the caller."""
    rest = []
    for kind in (twins, references):
        futures = [twins["SubmittedFuture"]() for _ in range(3)]
        assert futures[1]._condition is not None, "a caller waits for it"
        waiters = [*futures, NO_WAITER]
        messages = [
            PendingMessage(b"v", "", f"id {place}", "k", waiter=waiter, index=place)
            for place, waiter in enumerate(waiters)
        ]
        left = kind["settle"](messages, Receipt, MessageQueue("T", "b", 1), 7, StoredAs.RELAXED, True)
        rest.append([(index, receipt) for _, index, receipt in left])
        assert [future.done() for future in futures] == [True, False, True]
        assert [futures[place].result(0).offset for place in (0, 2)] == [7, 9]
    assert rest[0] == rest[1]
    assert [index for index, _ in rest[0]] == [1, 3]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["a", "b", "c", "bad", None])), st.sets(st.sampled_from("abc")))
def test_runs_are_sorted_alike(keys: list[str | None], known: set[str]) -> None:
    chunk = [PendingMessage(b"x", "", "id", key, index=index) for index, key in enumerate(keys)]
    chunk += quick_messages(2, ThreadBatchWaiter())

    def queue_of(key: str | None) -> int:
        if key == "bad":
            raise InvalidOption("bad")
        return 4 if key is None else ord(key) % 2

    queues = {key: queue_of(key) for key in known}
    ended = [outcome(kind["sort_chunk"], queues, queue_of, chunk) for kind in (twins, references)]
    assert ended[0] == ended[1]
    assert list(ended[0]) == list(ended[1])
