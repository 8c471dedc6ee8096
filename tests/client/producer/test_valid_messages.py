"""A message is validated and encoded before it takes its place in line: an invalid one fails its own call only."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.fake_broker import FakeBroker, serving
from tests.client.producer.producers import Blocking, Open

from lanemq.client.producer import batches
from lanemq.client.producer.batches import Outgoing
from lanemq.client.producer.producer import Producer
from lanemq.core.sending.sharding import by_hash, pick_queue
from lanemq.model.errors import CodecError, InvalidOption, LaneError, LocalProtocolError, MessageTooLarge
from lanemq.model.queue import MessageQueue

broker = serving()

HALF = "\ud83d"
"""Half of a surrogate pair, which JSON allows and UTF-8 does not."""


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": HALF},
        {"key": "k", "tag": HALF},
        {"key": "k", "tag": 5},
        {"key": "k", "keys": ["fine", HALF]},
        {"key": "k", "keys": [1]},
        {"key": "k", "properties": {"name": HALF}},
        {"key": "k", "properties": {HALF: "value"}},
        {"key": "k", "properties": {"name": None}},
        {"key": "k", "properties": {"name": "x" * 32_700}},
        {"key": "k", "delay_level": "3"},
        {"key": 1.5},
        {"key": True},
    ],
    ids=repr,
)
def test_what_cannot_be_stored_is_refused_by_its_call_and_freezes_nothing(
    broker: FakeBroker, kind: Open, arguments: dict[str, Any]
) -> None:
    with kind(broker.address) as producer:
        waiting = [producer.submit("orders", number, key=f"k{number}") for number in range(5)]
        with pytest.raises(LaneError):
            producer.submit("orders", 1, **arguments)
        with pytest.raises(LaneError):
            producer.send("orders", 1, **arguments)
        if "delay_level" not in arguments:
            with pytest.raises(LaneError):
                producer.send_many("orders", [Outgoing(1, **arguments)])
        if arguments.keys() == {"key"}:
            with pytest.raises(LaneError):
                producer.send_many("orders", [(arguments["key"], 1)])
        assert producer.send("orders", 6, key="k").key == "k"
        assert [future.result(10).key for future in waiting] == [f"k{number}" for number in range(5)]
        assert producer.frozen_keys() == []


@pytest.mark.parametrize("call", ["send", "submit"])
def test_without_the_check_an_invalid_message_keeps_its_place_in_line(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The negative control: the message has its place in line when its request cannot be built."""
    broker.create("narrow", queues=1)
    monkeypatch.setattr(batches, "check_key_text", lambda text: text)
    producer = Producer(str(broker.address))
    producer.send("narrow", 0, key="k")
    with pytest.raises(LocalProtocolError):
        getattr(producer, call)("narrow", 1, key=HALF)
    assert producer._engine.unsettled.bytes > 0
    producer.close(timeout=0)


def test_properties_leave_room_for_the_stamp_in_a_batch(broker: FakeBroker) -> None:
    with Blocking(broker.address) as producer:
        large = [Outgoing(1, key="k", properties={"name": "x" * size}) for size in range(32_500, 32_560)]
        assert len(producer.send_many("orders", large)) == len(large)
        with pytest.raises(MessageTooLarge):
            producer.send_many("orders", [Outgoing(1, key="k", properties={"name": "x" * 32_600})])


class TextCodec:
    """A codec with a mistake."""

    def encode(self, value: object) -> bytes:
        return str(value)  # type: ignore[return-value]

    def decode(self, body: bytes, wanted: type) -> Any:
        return body


def test_a_codec_that_returns_no_bytes_is_refused(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address, codec=TextCodec()) as producer:
        with pytest.raises(CodecError, match="returned str"):
            producer.submit("orders", 1, key="k")
        with pytest.raises(CodecError, match="returned str"):
            producer.send_many("orders", [("k", 1)])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(), max_size=8) | st.binary(max_size=8) | st.integers() | st.floats() | st.uuids(),
    st.none() | st.text(st.characters(), max_size=4),
    st.dictionaries(st.text(st.characters(), max_size=4), st.text(st.characters(), max_size=4), max_size=2),
)
def test_every_message_is_refused_by_its_call_or_stored(
    broker: FakeBroker, key: Any, tag: str | None, properties: dict[str, str]
) -> None:
    with Blocking(broker.address) as producer:
        try:
            future = producer.submit("orders", 1, key=key, tag=tag, properties=properties)
        except LaneError:
            return
        assert future.result(10).message_id


QUEUES = [MessageQueue("orders", "fake", number) for number in range(4)]
NAME = UUID("12345678-1234-5678-1234-56789abcdef0")


@pytest.mark.parametrize(
    ("one", "other"), [(42, "42"), (-5, "-5"), (2**40, str(2**40)), (b"42", 42), (NAME, str(NAME)), ("é", "é".encode())]
)
def test_keys_of_one_normal_form_are_one_lane_in_one_queue(
    broker: FakeBroker, kind: Open, one: Any, other: Any
) -> None:
    with kind(broker.address) as producer:
        receipts = [
            producer.send("orders", 1, key=one),
            producer.send("orders", 1, key=other),
            producer.submit("orders", 1, key=one).result(10),
            *producer.send_many("orders", [(one, 1), (other, 2), Outgoing(3, key=one)]),
        ]
    assert len({(receipt.queue, receipt.key) for receipt in receipts}) == 1
    assert [receipt.offset for receipt in receipts] == list(range(6))


def test_javas_integer_hash_is_a_selector(broker: FakeBroker, kind: Open) -> None:
    """RocketMQ's `SelectMessageQueueByHash` with an `Integer` picks another queue than the text of the number does."""
    with kind(broker.address) as producer:
        assert producer.send("orders", 1, key=12, selector=by_hash, arg=12).queue == QUEUES[12 % 4]
        assert producer.send("orders", 1, key=12).queue == pick_queue("12", QUEUES) != QUEUES[12 % 4]


def test_a_key_is_dropped_and_resumed_by_any_form_of_it(broker: FakeBroker, kind: Open) -> None:
    broker.refuses = lambda body: True
    with kind(broker.address) as producer:
        with pytest.raises(LaneError):
            producer.submit("orders", 1, key=42).result(10)
        assert producer.drop("orders", key=b"42") == 0
        producer.resume("orders", key="42")
        assert producer.frozen_keys() == []


@pytest.mark.parametrize(
    ("messages", "form"),
    [
        ([{"id": 1, "status": 2}], r"\[\(row\['id'\], row\) for row in rows\]"),
        ([{"id": 1}], r"row\['id'\]"),
        ({"k1": 1, "k2": 2}, r"\(key, value\)"),
        (["ab"], r"\(key, value\)"),
        ([("k", 1, 2)], r"\(key, value\)"),
        ([b"xy"], r"\(key, value\)"),
        ([None], r"\(key, value\)"),
    ],
    ids=repr,
)
def test_send_many_refuses_what_is_no_pair_and_shows_the_right_form(
    broker: FakeBroker, kind: Open, messages: Any, form: str
) -> None:
    with kind(broker.address) as producer:
        with pytest.raises(InvalidOption, match=f"^message 0 of send_many is .*{form}"):
            producer.send_many("orders", messages)
        assert len(producer.send_many("orders", [("k", 1), ["k", 2]])) == 2
    assert broker.stored("orders", pick_queue("k", QUEUES).queue_id) != []
