"""From a call to a request: unique ids, queues of keys, chunks, receipts, and the requests field by field."""

import threading
from collections.abc import Iterator

import pytest
from tests.client.virtual_time import ManualClock
from tests.wire.encoding import encode_batch, split_batch

from lanemq.client.identity import new_message_ids
from lanemq.client.producer.batches import (
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    Extras,
    Packer,
    PendingMessage,
    RequestBuilder,
    gathered,
    maybe_compressed,
    properties_text,
)
from lanemq.client.producer.choosing import KNOWN_KEYS, QueueChooser
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import Stored, notify_all
from lanemq.client.producer.waiters import NO_WAITER, ThreadBatchWaiter, Waiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.client.topic_route import BrokerRoute, TopicRoute
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import LaneError, MessageTooLarge, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.wire.codes import RequestCode
from lanemq.wire.compression import decompress
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import find_stamp


def route(queues: int, *, provisional: bool = False, brokers: int = 1) -> TopicRoute:
    every = tuple(MessageQueue("orders", "a", number) for number in range(queues))
    known = {name: BrokerRoute(name, {0: Address("h", 1)}, True) for name in "abc"[:brokers]}
    return TopicRoute("orders", every, every, known, provisional=provisional)


def pending(key: str, *, waiter: Waiter = NO_WAITER, index: int = 0) -> PendingMessage:
    return PendingMessage(b"x", properties_text(key, "A" * 32), "A" * 32, key, waiter=waiter, index=index)


def test_ids_are_32_hex_digits_and_differ_across_blocks() -> None:
    ids = new_message_ids()
    made = [ids.next() for _ in range(10_000)]
    assert len(set(made)) == len(made)
    assert all(len(each) == 32 and int(each, 16) >= 0 and each == each.upper() for each in made)


def test_ids_of_threads_that_share_a_producer_differ() -> None:
    ids = new_message_ids()
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(ids.next() for _ in range(10_000))) for mine in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set().union(*made)) == 40_000


def test_cached_keys_go_to_the_queue_of_their_hash() -> None:
    chooser, six = QueueChooser(lambda topic: None), route(6)
    keys = [f"key-{number}" for number in range(50)] * 2
    assert [chooser.by_key(six, key) for key in keys] == [pick_queue(key, six.publish) for key in keys]


def test_a_new_route_invalidates_cached_keys() -> None:
    chooser, small, large = QueueChooser(lambda topic: None), route(2), route(7)
    for each in (small, small, large, large, small):
        for key in ("a", "b", "c", "d"):
            assert chooser.by_key(each, key) == pick_queue(key, each.publish)


def test_keys_of_a_provisional_topic_on_several_brokers_are_refused_every_time() -> None:
    chooser, moving = QueueChooser(lambda topic: None), route(4, provisional=True, brokers=2)
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            chooser.by_key(moving, "k")


def test_the_number_of_cached_keys_is_bounded() -> None:
    chooser, four = QueueChooser(lambda topic: None), route(4)
    for number in range(KNOWN_KEYS + 10):
        chooser.by_key(four, f"k{number}")
    assert len(chooser._known[1]) <= KNOWN_KEYS


def test_messages_of_a_queue_keep_the_order_of_the_call() -> None:
    chooser, four = QueueChooser(lambda topic: None), route(4)
    chunk = [pending(f"k{number % 9}", index=number) for number in range(100)]
    for queue, messages in chooser.sort_out(four, chunk).items():
        mine = [each.index for each in chunk if pick_queue(each.key or "", four.publish) == queue]
        assert [each.index for each in messages] == mine


def test_chunks_end_at_either_limit_and_lose_nothing() -> None:
    packer, waiter = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter()
    small = [("k", b"x")] * (CHUNK_MESSAGES + 1)
    assert [len(chunk) for chunk in packer.chunks(small, waiter)] == [CHUNK_MESSAGES, 1]
    large = [("k", b"x" * (CHUNK_BYTES // 2))] * 5 + [("k", b"y" * (CHUNK_BYTES + 1))] * 2
    chunks = list(packer.chunks(large, waiter))
    assert [len(chunk) for chunk in chunks] == [2, 2, 1, 1, 1]
    assert [message.index for chunk in chunks for message in chunk] == list(range(7))


class Listener:
    """A waiter that records its receipts."""

    def __init__(self) -> None:
        self.results: list[tuple[int, Receipt]] = []

    def stored(self, index: int, receipt: Receipt) -> None:
        self.results.append((index, receipt))

    def failed(self, index: int, error: LaneError) -> None:
        raise error


def test_a_batch_of_several_callers_notifies_each_of_its_own_messages() -> None:
    """`send_many` gets all receipts at once only if the whole batch is its own."""
    waiter, other = ThreadBatchWaiter(), Listener()
    messages = [pending("k", waiter=each, index=at) for each, at in ((waiter, 0), (other, 9), (waiter, 1))]
    queue = MessageQueue("orders", "a", 0)
    notify_all([Stored(messages, queue, 40, StoredAs.DURABLE, False)])
    waiter.close(2)
    waiter.wait()
    assert [each.offset for each in waiter.result()] == [40, 42]
    assert [(index, receipt.offset) for index, receipt in other.results] == [(9, 41)]


def test_receipts_of_one_batch_complete_the_call_in_order() -> None:
    waiter = ThreadBatchWaiter()
    messages = [pending("k", waiter=waiter, index=at) for at in (1, 0, 2)]
    waiter.close(3)
    notify_all([Stored(messages, MessageQueue("orders", "a", 0), 7, StoredAs.RELAXED, False)])
    waiter.wait()
    assert [each.offset for each in waiter.result()] == [8, 7, 9]


QUEUE = MessageQueue("orders", "broker-a", 3)
BUILDER = RequestBuilder("billing", "client-1", "producer-1")


def message(body: bytes = b"x") -> PendingMessage:
    return PendingMessage(body, properties_text("k", "A" * 32), "A" * 32, "k")


def test_a_single_message_is_a_v2_send_with_its_stamp_in_the_properties() -> None:
    command = BUILDER.send(QUEUE, [message()], epoch=2, sequence=9, born=1700)
    assert command.code == RequestCode.SEND_MESSAGE_V2
    expected = SendHeader(
        producer_group="billing",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1700,
        flag=0,
        properties=properties_text("k", "A" * 32) + "LANE_STAMP\x01producer-1.2.9\x02",
        broker_name="broker-a",
        lane_client="client-1",
    )
    assert SendHeader.from_ext_v2(command.ext) == expected
    assert command.body == b"x"


def test_several_messages_are_a_batch_with_consecutive_stamps() -> None:
    command = BUILDER.send(QUEUE, [message(b"x"), message(b"y"), message(b"z")], epoch=1, sequence=5, born=1)
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    header = SendHeader.from_ext_v2(command.ext)
    assert header.batch
    assert header.properties == "", "a broker would add these to every message"
    items = split_batch(command.body)
    assert [item.body for item in items] == [b"x", b"y", b"z"]
    stamps = [find_stamp(item.properties_text) for item in items]
    assert [stamp and tuple(stamp) for stamp in stamps] == [("producer-1", 1, n) for n in (5, 6, 7)]


def test_a_batch_body_equals_that_of_the_plain_encoder() -> None:
    messages = [
        message(b""),
        message("ä".encode() * 300),
        PendingMessage(b"z", properties_text("schlüssel", "B" * 32), "B" * 32),
    ]
    command = BUILDER.send(QUEUE, messages, epoch=3, sequence=99, born=1)
    stamps = [f"LANE_STAMP\x01producer-1.3.{number}\x02" for number in (99, 100, 101)]
    items = [(0, each.body, each.properties + stamp) for each, stamp in zip(messages, stamps, strict=True)]
    assert command.body == encode_batch(items)


def test_properties_over_the_limit_are_refused_by_the_call() -> None:
    """Later they would hold a sequence number, and their failure would affect the messages behind them."""
    with pytest.raises(MessageTooLarge):
        properties_text("k" * 33_000, "A" * 32)
    with pytest.raises(MessageTooLarge):
        properties_text("k", "A" * 32, Extras(properties={"big": "ä" * 17_000}))


def test_a_body_that_does_not_shrink_is_sent_uncompressed() -> None:
    noise = bytes(range(256))
    assert maybe_compressed(noise) == (noise, 0)
    packed, flag = maybe_compressed(b"a" * 5000)
    assert decompress(flag, packed) == b"a" * 5000


class TestGathered:
    """With many queues, `send_many` joins chunks before it hands them over."""

    def joined(
        self, count: int, *, wanted: int = 2_000, max_bytes: int = 2**30, max_ms: int = 20, step: int = 0
    ) -> list[int]:
        packer, waiter, clock = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter(), ManualClock()

        def chunks() -> Iterator[list[PendingMessage]]:
            for chunk in packer.chunks([("k", b"x")] * count, waiter):
                clock.at += step
                yield chunk

        found = list(gathered(chunks(), waiter, lambda: wanted, max_bytes, lambda: max_ms, clock))
        assert [message.index for each in found for message in each] == list(range(count))
        return [len(each) for each in found]

    def test_few_queues_get_single_chunks(self) -> None:
        assert self.joined(1_200, wanted=128) == [500, 500, 200]

    def test_many_queues_get_all_that_they_need_for_batches(self) -> None:
        assert self.joined(5_100) == [2_000, 2_000, 1_100]

    def test_joining_ends_at_the_time_and_at_the_size(self) -> None:
        assert self.joined(2_000, step=10) == [1_000, 1_000]
        assert self.joined(1_500, max_bytes=1) == [500, 500, 500]

    def test_what_was_read_before_an_error_is_handed_over(self) -> None:
        def failing() -> Iterator[tuple[str, bytes]]:
            yield from [("k", b"x")] * 1_000
            raise KeyError("no more")

        packer, waiter = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter()
        found = gathered(packer.chunks(failing(), waiter), waiter, lambda: 5_000, 2**30, lambda: 20, ManualClock())
        assert len(next(found)) == 1_000
        with pytest.raises(KeyError):
            next(found)

    def test_nothing_is_handed_over_after_a_failed_message(self) -> None:
        packer, waiter = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter()

        def one_fails() -> Iterator[list[PendingMessage]]:
            yield from packer.chunks([("k", b"x")] * 600, waiter)
            waiter.failed(0, LaneError("gone"))

        assert list(gathered(one_fails(), waiter, lambda: 5_000, 2**30, lambda: 20, ManualClock())) == []
