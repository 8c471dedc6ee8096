"""Compiled twins of what a producer does per message give what their references give."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import needs_twins, outcome, same

from lanemq._fast import references, twins
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.client.send_packing import NOTHING, Outgoing, Tools
from lanemq.client.send_requests import Parcel
from lanemq.client.send_tickets import UNHEARD, WaitingCrowd
from lanemq.model.errors import Closed, InvalidOption, MessageTooLarge
from lanemq.model.queue import MessageQueue

pytestmark = needs_twins

KEYS = st.sampled_from(["k", "key-2", "ключ", "", "a\x01b", "\x02", "x" * 7801, 7, None])
VALUES = st.binary(max_size=30) | st.sampled_from([b"x" * 101, bytearray(b"abc"), "text", None])
MESSAGES = st.one_of(
    st.tuples(KEYS, VALUES),
    st.builds(Outgoing, VALUES, KEYS),
    st.sampled_from([("three", b"x", 1), ["list", b"x"], None]),
)


def tools(encode: Any = bytes, as_it_is: bool = True) -> Tools:
    numbers = iter(range(10**6))

    def refuse(size: int) -> Any:
        raise MessageTooLarge(f"{size} bytes")

    return encode, lambda: f"{next(numbers):032X}", refuse, Parcel, NOTHING, (5, 100, as_it_is)


def packed(function: Any, messages: list[Any], room: int, **how: Any) -> Any:
    """What a call packs and where it stops, in comparable form."""
    run: list[Any] = []
    source, crowd = iter(messages), WaitingCrowd()
    ended = outcome(function, tools(**how), source, crowd, 3, run, room)
    if len(ended) == 3:
        ended = "nothing" if ended[0] is NOTHING else ended[0], shown(ended[1]), ended[2]
    assert all(parcel.ticket is crowd for _, parcel in run)
    return ended, [shown(pair) for pair in run], list(source)


def shown(pair: Any) -> Any:
    if pair is None:
        return None
    key, parcel = pair
    return key, parcel.body, parcel.properties, parcel.message_id, parcel.key, parcel.index, parcel.size, parcel.told


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGES, max_size=8), st.sampled_from([20, 50, 1000]), st.booleans())
def test_messages_are_packed_alike(messages: list[Any], room: int, as_it_is: bool) -> None:
    compiled = packed(twins["pack_pairs"], messages, room, as_it_is=as_it_is)
    assert compiled == packed(references["pack_pairs"], messages, room, as_it_is=as_it_is)


@pytest.mark.parametrize("function", ["twins", "references"])
def test_nothing_is_read_after_a_failure(function: str) -> None:
    crowd = WaitingCrowd()
    crowd.failed(0, Closed("refused"))
    source = iter([("k", b"v")])
    chosen = {"twins": twins, "references": references}[function]["pack_pairs"]
    assert chosen(tools(), source, crowd, 0, [], 100)[0] is NOTHING
    assert list(source) == [("k", b"v")]


def test_what_a_codec_raises_reaches_the_caller() -> None:
    def broken(value: object) -> bytes:
        raise ZeroDivisionError("codec")

    messages = [("k", b"v")]
    assert packed(twins["pack_pairs"], messages, 9, encode=broken, as_it_is=False)[0] == (ZeroDivisionError, "codec")


TEXTS = st.text(max_size=20) | st.just("x" * 33000)
PARCELS = st.builds(Parcel, st.binary(max_size=20), TEXTS, st.just("id"), st.sampled_from(["k", None]))


@settings(deadline=None, max_examples=100)
@given(st.lists(PARCELS, max_size=4), st.sampled_from([0, 9, 2**40, 2**62]))
def test_batches_are_written_alike(parcels: list[Parcel], sequence: int) -> None:
    same("batch_body", tuple(parcels), "LANE_STAMP\x01p.1.", sequence)


@settings(deadline=None, max_examples=60)
@given(st.lists(PARCELS, min_size=1, max_size=4), st.integers(-1, 2**60), st.booleans(), st.booleans())
def test_receipts_are_made_alike(parcels: list[Parcel], offset: int, repeat: bool, shared: bool) -> None:
    for index, parcel in enumerate(parcels):
        parcel.index = index
        parcel.ticket = UNHEARD if shared or index % 2 else WaitingCrowd()
    arguments = parcels, Receipt, MessageQueue("T", "b", 1), offset, StoredAs.DURABLE, repeat
    assert twins["receipts_of"](*arguments) == references["receipts_of"](*arguments)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", 1, True, None]), st.integers())))
def test_runs_are_sorted_alike(run: list[Any]) -> None:
    def queue_of(key: Any) -> int:
        if key is True:
            raise InvalidOption("a truth value")
        return len(str(key)) if key is None else hash(key) % 2

    ended = [outcome(kind["sort_run"], queue_of, run) for kind in (twins, references)]
    assert ended[0] == ended[1]
    assert list(ended[0]) == list(ended[1])
