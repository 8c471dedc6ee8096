"""What both producers promise."""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Open, sending

from lanemq.client.producer.batches import Outgoing
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.core.sending.sharding import by_int_modulo, pick_queue
from lanemq.model.errors import (
    Closed,
    InvalidOption,
    LaneFrozen,
    MissingKey,
    NotAllowed,
    RequestTimedOut,
    SequenceGap,
)
from lanemq.model.queue import MessageQueue
from lanemq.net.calling.connection import open_connection
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendHeader

broker = serving()
stock = serving(lane=False)


def once(fault: Fault, *numbers: int) -> Callable[[SendHeader, int], Fault | None]:
    return lambda header, number: fault if number in numbers else None


def texts(broker: FakeBroker, topic: str, receipt: Receipt) -> list[str]:
    return broker.stored(topic, receipt.queue.queue_id)


# where a message goes


@pytest.mark.row("A18")
def test_receipts_of_a_key_name_one_queue_with_growing_offsets(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        receipts = [producer.send("orders", {"n": n}, key="order-1") for n in range(20)]
    assert {receipt.queue for receipt in receipts} == {MessageQueue("orders", "fake", 2)}
    assert [receipt.offset for receipt in receipts] == list(range(20))
    assert {receipt.key for receipt in receipts} == {"order-1"}
    assert receipts[0].stored is StoredAs.RELAXED


@pytest.mark.row("A11")
def test_messages_with_a_key_share_a_queue_and_messages_without_use_all(broker: FakeBroker, kind: Open) -> None:
    """The messages without a key are the negative control: they are spread over all queues."""
    with kind(broker.address) as producer:
        for number in range(40):
            producer.send("metrics", f"keyed-{number % 10}", key=f"key-{number % 10}")
            producer.send("metrics", "loose")
    keyed = [
        {message.text for message in queue if "keyed" in message.text}
        for queue in broker.topics["metrics"].messages.values()
    ]
    assert sum(len(texts) for texts in keyed) == 10
    loose = [sum("loose" in m.text for m in queue) for queue in broker.topics["metrics"].messages.values()]
    assert loose == [10, 10, 10, 10]


@pytest.mark.row("A13")
def test_a_selector_gets_queues_message_and_argument_and_chooses_the_queue(broker: FakeBroker, kind: Open) -> None:
    seen: list[tuple[int, object, object]] = []

    def last(queues: Sequence[MessageQueue], message: object, arg: object) -> MessageQueue:
        seen.append((len(queues), message, arg))
        return queues[-1]

    with kind(broker.address) as producer:
        receipt = producer.send("orders", "hello", selector=last, arg=7)
    assert receipt.queue.queue_id == 3
    assert seen == [(4, "hello", 7)]


def test_a_selector_that_returns_an_unknown_queue_is_refused(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer, pytest.raises(InvalidOption, match="not a queue of topic 'orders'"):
        producer.send("orders", 1, selector=lambda queues, message, arg: MessageQueue("orders", "elsewhere", 0))


@pytest.mark.row("A14")
@pytest.mark.parametrize(("number", "queue"), [(0, 0), (7, 3), (-7, 3), (-1, 1), (2**40 + 1, 1)])
def test_by_int_modulo_does_not_hash(broker: FakeBroker, kind: Open, number: int, queue: int) -> None:
    with kind(broker.address) as producer:
        assert producer.send("orders", 1, selector=by_int_modulo, arg=number).queue.queue_id == queue


@pytest.mark.parametrize("key", [5, -5, 2**31 - 1, 2**40 + 1, "order-1", "你好"])
def test_a_key_goes_to_the_queue_that_javas_hash_selector_picks(broker: FakeBroker, kind: Open, key: Any) -> None:
    queues = [MessageQueue("orders", "fake", number) for number in range(4)]
    with kind(broker.address) as producer:
        receipt = producer.send("orders", 1, key=key)
    assert receipt.queue == pick_queue(str(key), queues)
    assert receipt.key == str(key)


def test_an_explicit_queue_is_used_and_checked(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        assert producer.send("orders", 1, queue=3).queue.queue_id == 3
        assert producer.send("orders", 1, queue=MessageQueue("orders", "fake", 1)).queue.queue_id == 1
        with pytest.raises(InvalidOption, match="none of the 4 queues"):
            producer.send("orders", 1, queue=4)


def test_a_missing_key_for_an_ordered_topic_is_raised_by_the_call(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        with pytest.raises(MissingKey, match="topic 'orders' is ordered"):
            producer.submit("orders", 1)
        with pytest.raises(MissingKey):
            producer.send_many("orders", [("k", 1), (None, 2)])
    assert broker.requests == []


def test_sending_to_a_topic_of_the_broker_is_refused(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer, pytest.raises(NotAllowed, match="belongs to the broker"):
        producer.send("SCHEDULE_TOPIC_XXXX", 1)


# order


def test_all_ways_of_sending_keep_one_order(broker: FakeBroker, kind: Open) -> None:
    """send, submit, send_oneway, send_many and batch: messages are stored in the order of the calls."""
    with kind(broker.address) as producer:
        for base in range(0, 100, 10):
            pending = [producer.submit("orders", base + n, key="k") for n in range(4)]
            producer.send_oneway("orders", base + 4, key="k")
            producer.send("orders", base + 5, key="k")
            producer.send_many("orders", [("k", base + 6), Outgoing(base + 7, "k", tag="t")])
            receipts = producer.batch("orders", [("k", base + 8), ("k", base + 9)])
            assert all(each.result(30).offset == base + n for n, each in enumerate(pending))
    assert texts(broker, "orders", receipts[0]) == [str(n) for n in range(100)]


def test_waiting_messages_share_a_request(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send_many("orders", [("k", n) for n in range(2000)])
    assert len(broker.requests) < 20
    assert any(header.batch for header in broker.requests)


@pytest.mark.row("A10")
@pytest.mark.parametrize("fault", [Fault.LATE, Fault.LOSE_REPLY, Fault.HANG_UP, Fault.HANG_UP_AFTER, Fault.BUSY])
def test_pipelined_messages_are_stored_once_and_in_order_whatever_goes_wrong(
    broker: FakeBroker, kind: Open, fault: Fault
) -> None:
    broker.faults = once(fault, 2, 3, 9)
    with sending(max_count=3, answer_timeout=100), kind(broker.address) as producer:
        pending = [producer.submit("orders", number, key="k") for number in range(60)]
        receipts = [each.result(30) for each in pending]
    assert texts(broker, "orders", receipts[0]) == [str(n) for n in range(60)]
    assert [receipt.offset for receipt in receipts] == list(range(60))


@pytest.mark.row("A10")
def test_naive_pipelining_inverts_the_order() -> None:
    """Negative control: one task per message over several connections, and one message is late."""

    async def naive(broker: FakeBroker) -> None:
        links = [await open_connection(broker.address) for _ in range(3)]
        tasks = []
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                ext = SendHeader(
                    producer_group="naive", topic="orders", default_topic="TBW102", default_topic_queue_nums=4,
                    queue_id=0, sys_flag=0, born_timestamp=1, flag=0,
                ).to_ext_v2()  # fmt: skip
                command = Command(RequestCode.SEND_MESSAGE_V2, 0, ext=ext, body=str(number).encode())
                tasks.append(group.create_task(links[number % 3].request(command, 5)))
        for link in links:
            link.close()
        await asyncio.sleep(0.01)

    with FakeBroker(late_seconds=1.0) as broker:  # or a busy machine may be later with the others
        broker.create("orders")
        broker.faults = once(Fault.LATE, 2)
        asyncio.run(naive(broker))
        stored = broker.stored("orders", 0)
    assert sorted(stored) == [str(n) for n in range(6)]
    assert stored != sorted(stored)


@pytest.mark.parametrize("number", range(2))
def test_many_keys_keep_their_order_through_random_faults(broker: FakeBroker, kind: Open, number: int) -> None:
    chance = random.Random(number)
    kinds = [Fault.HANG_UP, Fault.HANG_UP_AFTER, Fault.BUSY, Fault.LATE, None, None, None]
    broker.faults = lambda header, number: chance.choice(kinds) if number < 12 else None
    keys = itertools.cycle("abcdefg")
    sent: dict[str, list[str]] = {key: [] for key in "abcdefg"}
    with sending(max_count=5), kind(broker.address) as producer:
        pending = []
        for number, key in zip(range(300), keys, strict=False):
            sent[key].append(f"{key}{number}")
            pending.append(producer.submit("orders", f"{key}{number}".encode(), key=key))
        for each in pending:
            each.result(20)
    stored = broker.everything("orders")
    for key, expected in sent.items():
        assert [m.text for m in stored if m.properties["__SHARDINGKEY"] == key] == expected


def test_a_broker_restart_loses_and_repeats_nothing(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send("orders", 0, key="k")
        broker.stop()
        pending = [producer.submit("orders", number, key="k") for number in range(1, 20)]
        broker.start()
        receipts = [each.result(30) for each in pending]
    assert texts(broker, "orders", receipts[0]) == [str(n) for n in range(20)]


def test_a_lost_reply_shows_as_a_repeat(broker: FakeBroker, kind: Open) -> None:
    broker.faults = once(Fault.HANG_UP_AFTER, 1)
    with kind(broker.address) as producer:
        receipt = producer.send("orders", 1, key="k")
        assert not producer.send("orders", 2, key="k").repeat
    assert receipt.repeat
    assert receipt.offset == 0


def test_a_producer_that_the_broker_forgot_continues_in_a_new_epoch(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send("orders", 0, key="k")
        broker.forget_producers()
        pending = [producer.submit("orders", number, key="k") for number in range(1, 30)]
        receipts = [each.result(30) for each in pending]
    assert texts(broker, "orders", receipts[0]) == [str(n) for n in range(30)]
    assert ".2." in broker.everything("orders")[-1].properties["LANE_STAMP"]


def test_a_repetition_to_a_broker_that_forgot_the_producer_is_not_stored_again(broker: FakeBroker, kind: Open) -> None:
    """The lost reply may have been "stored", so it is not sent again, and the caller gets an error."""

    def forgetful(header: SendHeader, number: int) -> Fault | None:
        if number == 3:  # the repetition of the second
            broker.forget_producers()
        return Fault.HANG_UP_AFTER if number == 2 else None

    broker.faults = forgetful
    with kind(broker.address) as producer:
        producer.send("orders", 0, key="k")
        with pytest.raises(SequenceGap, match="may be stored or not"):
            producer.submit("orders", 1, key="k").result(30)
        with pytest.raises(LaneFrozen):
            producer.send("orders", 2, key="k")
        producer.resume("orders", key="k")
        receipt = producer.send("orders", 3, key="k")
    assert texts(broker, "orders", receipt) == ["0", "1", "3"]


# a broker that does not check stamps


def test_a_stock_broker_gets_one_batch_of_a_queue_at_a_time(stock: FakeBroker, kind: Open) -> None:
    """It would store a late batch behind its successor: with a larger window this test fails."""
    stock.faults = once(Fault.LATE, 1, 3, 5)
    with sending(max_count=2), kind(stock.address) as producer:
        pending = [producer.submit("orders", number, key="k") for number in range(30)]
        receipts = [each.result(30) for each in pending]
    assert texts(stock, "orders", receipts[0]) == [str(n) for n in range(30)]
    assert {receipt.stored for receipt in receipts} == {StoredAs.UNKNOWN}


def test_a_receipt_says_that_only_the_master_has_the_message(stock: FakeBroker, kind: Open) -> None:
    stock.faults = once(Fault.UNCONFIRMED, 2)
    with kind(stock.address, on_unconfirmed="accept") as producer:
        stored = [producer.send("orders", number, key="k").stored for number in range(3)]
    assert stored == [StoredAs.UNKNOWN, StoredAs.UNCONFIRMED, StoredAs.UNKNOWN]
    assert len(stock.requests) == 3


def test_what_only_the_master_has_is_sent_again_in_its_place(stock: FakeBroker, kind: Open) -> None:
    """With "accept" (the test above) it is acknowledged, and a fail-over to a replica without it would lose it."""
    stock.faults = once(Fault.UNCONFIRMED, 2, 3)
    with sending(max_count=1), kind(stock.address) as producer:
        pending = [producer.submit("orders", number, key="k") for number in range(3)]
        receipts = [each.result(30) for each in pending]
    assert texts(stock, "orders", receipts[0]) == ["0", "1", "1", "1", "2"]
    assert {receipt.stored for receipt in receipts} == {StoredAs.UNKNOWN}


def test_what_is_never_confirmed_may_be_stored_and_freezes_its_key(stock: FakeBroker, kind: Open) -> None:
    stock.faults = lambda *_: Fault.UNCONFIRMED
    with kind(stock.address, delivery_timeout=0.5) as producer:
        failed = producer.submit("orders", 1, key="k")
        with pytest.raises(RequestTimedOut, match=r"may be stored or not.*its replicas did not confirm it"):
            failed.result(30)
        with pytest.raises(LaneFrozen):
            producer.submit("orders", 2, key="k").result(30)


@pytest.mark.slow
def test_a_slow_stock_broker_gets_no_repetition(stock: FakeBroker, kind: Open) -> None:
    """It would store a repetition twice; only a lost connection makes one necessary."""
    stock.faults = once(Fault.LOSE_REPLY, 1)
    with (
        sending(answer_timeout=100),
        kind(stock.address, delivery_timeout=2.0) as producer,
        pytest.raises(RequestTimedOut),
    ):
        producer.send("orders", 1, key="k")
    assert len(stock.requests) == 1


def test_a_repetition_at_a_stock_broker_has_the_same_stamp(stock: FakeBroker, kind: Open) -> None:
    stock.faults = once(Fault.HANG_UP_AFTER, 1)
    with kind(stock.address) as producer:
        producer.send("orders", 1, key="k")
    first, second = stock.everything("orders")
    assert first.properties["LANE_STAMP"] == second.properties["LANE_STAMP"]


# options and closing


def test_a_closed_producer_refuses_messages_and_may_be_closed_again(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        pending = producer.submit("orders", 1, key="k")
        producer.close()
        assert pending.result(30).offset == 0
        with pytest.raises(Closed):
            producer.send("orders", 2, key="k")


def test_a_producer_sends_heartbeats(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send("orders", 1, key="k")
    assert broker.codes[RequestCode.HEART_BEAT] >= 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"max_body_bytes": 0}, "max_body_bytes=0 must be"),
        ({"delivery_timeout": -1, "timeout": 0}, "delivery_timeout=-1 must be.*timeout=0 must be"),
        ({"buffer_bytes": 100}, "one message may take 4194304"),
        ({"group": "no spaces"}, "group name"),
    ],
)
def test_all_invalid_options_are_reported_at_once(kind: Open, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises((InvalidOption, ValueError), match=problem):
        kind("localhost:9876", **settings)
