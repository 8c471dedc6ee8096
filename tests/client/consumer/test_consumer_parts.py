"""Small parts of a consumer: messages, handler signatures, options, tag filters, offset files, dead letters."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.consumer.fakes import message, queue
from tests.client.consumer.worker_fixture import handler_call
from tests.client.virtual_time import ManualClock
from tests.wire.encoding import encode_record

from lanemq.client.codec import JsonCodec
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.local_offsets import FileOffsets
from lanemq.client.consumer.tag_filter import tag_filter
from lanemq.client.consumer.turns.send_back import DeadLetterSender
from lanemq.client.message import Message, MessageSource, find_key, read_messages
from lanemq.core.consuming.queue_lease import CLUSTER_TIMES, LANE_TIMES, ROCKETMQ_TIMES, LeaseTimes
from lanemq.model.errors import BrokerRefused, ConnectFailed, InvalidOption, StorageError
from lanemq.model.units import Epoch, QueueOffset
from lanemq.net.address import Address
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import decode_properties, encode_properties, find_property
from lanemq.wire.record import TRANSACTION_MASK

# --- messages


def test_a_message_reads_its_fields_from_the_record() -> None:
    found = message(7, key="order-1", tag="paid", body=b'{"n": 1}', KEYS="a b", mine="yes")
    assert (found.topic, found.queue, found.offset, found.key, found.tag) == ("orders", queue(0), 7, "order-1", "paid")
    assert (found.keys, found.message_id, found.attempt) == (("a", "b"), "ID7", 1)
    assert found.value() == {"n": 1}
    assert found.properties["mine"] == "yes"
    with pytest.raises(TypeError):
        found.properties["mine"] = "no"  # type: ignore[index]


def test_a_key_that_only_looks_like_one_inside_the_body_is_not_taken() -> None:
    assert message(0, key="", body=b"__SHARDINGKEY\x01nonsense\x02").key is None


def test_a_message_without_a_unique_id_has_the_offset_id() -> None:
    assert len(message(0, UNIQ_KEY="").message_id) == 32


# --- handlers' signatures


@dataclass
class Order:
    n: int


def test_the_annotation_decides_what_a_handler_is_given() -> None:
    given = message(0, body=b'{"n": 5}')
    seen: list[Any] = []

    def event_only(event: Order) -> None:
        seen.append(event)

    def message_only(it: Message) -> None:
        seen.append(it)

    def both(event: Order, it: Message) -> None:
        seen.append((event, it))

    def swapped(it: Message, event: dict[str, int]) -> None:
        seen.append((it, event))

    def raw(event: bytes) -> None:
        seen.append(event)

    for handler in (event_only, message_only, both, swapped, raw):
        handler_call(handler).call(given)
    assert seen == [Order(5), given, (Order(5), given), (given, {"n": 5}), b'{"n": 5}']


def test_an_object_with_a_coroutine_call_is_a_coroutine_handler() -> None:
    class Handler:
        async def __call__(self, event: dict[str, int]) -> None: ...

    assert handler_call(Handler()).is_async


def test_a_handler_with_required_keywords_is_refused() -> None:
    def handler(event: dict[str, int], *, needed: int) -> None: ...

    with pytest.raises(InvalidOption, match=r"needed of .* is keyword-only"):
        handler_call(handler)


# --- options


@pytest.mark.row("A9")
def test_rocketmqs_times_are_used_in_compat_mode_and_shorter_ones_with_apache_brokers() -> None:
    plain = ConsumerOptions(servers="h:1", group="g")
    assert plain.times(plain.speaks_lane(True)) == LANE_TIMES
    assert plain.times(plain.speaks_lane(False)) == CLUSTER_TIMES
    compat = ConsumerOptions(servers="h:1", group="g", compat="rocketmq")
    assert compat.times(compat.speaks_lane(True)) == ROCKETMQ_TIMES
    assert (plain.batch_from(True), plain.batch_from(False)) == (1_000, 32)


def test_all_problems_of_the_options_are_reported_together() -> None:
    with pytest.raises(InvalidOption) as caught:
        ConsumerOptions(servers="h:1", group="g", compat="kafka", stop_timeout=-1, start="now", allocation="dice")
    for problem in ("compat", "stop_timeout", "start", "allocation"):
        assert problem in str(caught.value)


def test_lease_times_without_a_margin_are_refused() -> None:
    with pytest.raises(InvalidOption, match="lease times"):
        LeaseTimes(1, 5, 5)


# --- tags


@pytest.mark.row("A17")
def test_tags_are_compared_by_text_not_only_by_hash() -> None:
    """ "Aa" and "BB" have the same Java hash."""
    tags = tag_filter("Aa || C")
    assert tags.codes == sorted([2112, 67])
    assert tags.accepts("Aa")
    assert not tags.accepts("BB")
    assert not tags.accepts(None)


@pytest.mark.parametrize("text", ["*", "", "  "])
def test_without_tags_every_message_is_accepted(text: str) -> None:
    assert tag_filter(text).accepts(None)


# --- offsets on disk


def test_offsets_survive_in_their_file_and_are_replaced_as_a_whole(tmp_path: Path) -> None:
    FileOffsets(tmp_path, "g").save({queue(0): QueueOffset(5), queue(1): QueueOffset(1)})
    FileOffsets(tmp_path, "g").save({queue(0): QueueOffset(9)})
    assert FileOffsets(tmp_path, "g").load() == {queue(0): 9, queue(1): 1}
    assert [path.name for path in tmp_path.iterdir()] == ["g.offsets.json"]


def test_a_damaged_offset_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "g.offsets.json").write_text("{half")
    with pytest.raises(StorageError, match="move the file away"):
        FileOffsets(tmp_path, "g").load()


# --- dead letters


class Wire:
    """The part of `ConsumerCalls` that dead letters use, with answers that the test sets."""

    def __init__(self, *, send_back_ok: bool = True, code: int = 0) -> None:
        self.sent: list[Command] = []
        self._send_back_ok = send_back_ok
        self._code = code

    def master(self, topic: str, broker: str) -> Address:
        return Address("h", 1)

    async def ask(self, address: Address, command: Command, timeout: float | None = None) -> Command:
        self.sent.append(command)
        if not self._send_back_ok:
            raise BrokerRefused(1, "look message by offset failed")
        return Command(0, 0)

    async def post(self, address: Address, command: Command, timeout: float) -> Command:
        self.sent.append(command)
        return Command(self._code, 0, remark="no")


def letters(wire: Wire, **options: Any) -> DeadLetterSender:
    return DeadLetterSender(ConsumerOptions(servers="h:1", group="g", clock=ManualClock(), **options), wire)  # type: ignore[arg-type]


def failed(times: int) -> Message:
    found = message(3, key="k", tag="T", body=b"body", LANE_STAMP="p.1.2")
    found.retried_here = times
    return found


@pytest.mark.row("A106")
@pytest.mark.row("A108")
def test_a_dead_letter_is_a_whole_copy_with_its_attempts_used_up() -> None:
    wire = Wire()
    assert asyncio.run(letters(wire).dead_letter(failed(16), "because\x01of\nthat"))
    (command,) = wire.sent
    ext, properties = command.ext, decode_properties(command.ext["i"])
    assert command.code == RequestCode.SEND_MESSAGE_V2
    assert command.body == b"body"
    assert (ext["a"], ext["b"], ext["j"], ext["l"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%g", "17", "16")
    assert int(ext["j"]) > int(ext["l"])
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == "ID3"
    assert (properties["__SHARDINGKEY"], properties["TAGS"]) == ("k", "T")
    assert properties["LANE_WHY"] == "because of that"
    assert "LANE_STAMP" not in properties
    assert "DELAY" not in properties


@pytest.mark.row("A107")
@pytest.mark.parametrize("times", [0, 1, 5, 16])
def test_in_compat_mode_the_delay_level_is_three_plus_the_count(times: int) -> None:
    wire = Wire()
    asyncio.run(letters(wire, compat="rocketmq").dead_letter(failed(times), ""))
    assert decode_properties(wire.sent[0].ext["i"])["DELAY"] == str(3 + times)


@pytest.mark.row("A106")
def test_a_message_is_handed_over_only_if_the_broker_stored_it() -> None:
    assert not asyncio.run(letters(Wire(code=2)).dead_letter(failed(1), ""))
    assert asyncio.run(letters(Wire(code=10)).dead_letter(failed(1), ""))


def test_a_message_is_sent_back_by_its_log_position() -> None:
    wire = Wire()
    assert asyncio.run(letters(wire).send_back(failed(0)))
    (command,) = wire.sent
    assert command.code == RequestCode.CONSUMER_SEND_MSG_BACK
    assert (command.ext["offset"], command.ext["group"], command.ext["delayLevel"]) == ("3000", "g", "0")


@pytest.mark.row("A107")
def test_a_broker_that_cannot_find_the_original_gets_a_copy() -> None:
    wire = Wire(send_back_ok=False)
    assert asyncio.run(letters(wire).send_back(failed(2)))
    copy = wire.sent[1]
    assert (copy.code, copy.ext["j"], copy.ext["l"]) == (RequestCode.SEND_MESSAGE_V2, "3", "16")
    assert decode_properties(copy.ext["i"])["DELAY"] == "5"


def test_a_message_whose_broker_has_no_master_stays_here() -> None:
    """The sender says so instead of raising, which would end the worker whose handler has failed."""

    class NoMaster(Wire):
        def master(self, topic: str, broker: str) -> Address:
            raise ConnectFailed("the broker has no master at the moment")

    wire = NoMaster()
    assert not asyncio.run(letters(wire).send_back(failed(0)))
    assert not asyncio.run(letters(wire).dead_letter(failed(0), ""))
    assert wire.sent == []


@pytest.mark.row("A106")
def test_a_copy_keeps_everything_but_the_stamp_and_delivery_properties() -> None:
    wire = Wire()
    text = encode_properties({"KEYS": "x", "UNIQ_KEY": "U", "LANE_STAMP": "p.1.7", "TRAN_MSG": "true", "DELAY": "9"})
    stored = encode_record(
        topic="orders",
        body=b"body",
        properties_text=text,
        queue_id=0,
        queue_offset=3,
        position=0,
        flag=5,
        sys_flag=0x1 | TRANSACTION_MASK,
    )
    (found,) = read_messages(MessageSource(queue(0), JsonCodec(), Epoch(1)), stored)
    asyncio.run(letters(wire).dead_letter(found, ""))
    header = SendHeader.from_ext_v2(wire.sent[0].ext)
    assert (header.flag, header.sys_flag) == (5, 0x1)
    kept = {"KEYS": "x", "UNIQ_KEY": "U", "ORIGIN_MESSAGE_ID": "U", "RETRY_TOPIC": "orders"}
    assert decode_properties(header.properties) == kept


@pytest.mark.row("A106")
def test_a_second_copy_remembers_the_first_origin() -> None:
    wire = Wire()
    retried = queue(0, topic="%RETRY%g")
    fields = {"ORIGIN_MESSAGE_ID": "FIRST", "RETRY_TOPIC": "orders", "RECONSUME_TIME": "1"}
    asyncio.run(letters(wire).dead_letter(message(3, of=retried, **fields), ""))
    found = decode_properties(wire.sent[0].ext["i"])
    assert (found["ORIGIN_MESSAGE_ID"], found["RETRY_TOPIC"]) == ("FIRST", "orders")
    assert "RECONSUME_TIME" not in found


# --- the key, found the quick way


@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from(["__SHARDINGKEY", "x__SHARDINGKEY", "TAGS", "K"]),
            st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8),
        ),
        max_size=6,
    ),
    body=st.binary(max_size=40),
    sealed=st.booleans(),
)
def test_the_fast_key_lookup_finds_the_same_key_as_the_slow_one(
    entries: list[tuple[str, str]], body: bytes, sealed: bool
) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in entries) + ("\x02" if sealed else "")
    head = encode_record(topic="t", body=b"first", queue_id=0, queue_offset=0, position=0)
    record = encode_record(topic="topic", body=body, properties_text=text, queue_id=0, queue_offset=1, position=0)
    assert find_key(head + record, len(head)) == find_property(text, "__SHARDINGKEY")
