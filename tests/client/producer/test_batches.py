"""From a call to a message: ids that never repeat, keys that keep their queue, receipts that find their caller."""

import threading

import pytest

from lanemq.client.identity import new_message_ids
from lanemq.client.producer.batches import KNOWN_KEYS, RUN_BYTES, RUN_MESSAGES, Packer, QueueChooser
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.replies import Stored
from lanemq.client.producer.waiters import NO_WAITER, ThreadBatchWaiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.client.routing import BrokerRoute, TopicRoute
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import InvalidOption, LaneError, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address


def route(queues: int, *, provisional: bool = False, brokers: int = 1) -> TopicRoute:
    every = tuple(MessageQueue("orders", "a", number) for number in range(queues))
    known = {name: BrokerRoute(name, {0: Address("h", 1)}, True) for name in "abc"[:brokers]}
    return TopicRoute("orders", every, every, known, provisional=provisional)


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


def test_remembered_key_goes_where_the_hash_says() -> None:
    chooser, six = QueueChooser(), route(6)
    keys = [f"key-{number}" for number in range(50)] * 2
    assert [chooser.by_key(six, key) for key in keys] == [pick_queue(key, six.publish) for key in keys]


def test_new_route_forgets_where_keys_went() -> None:
    chooser, small, large = QueueChooser(), route(2), route(7)
    for each in (small, small, large, large, small):
        for key in ("a", "b", "c", "d"):
            assert chooser.by_key(each, key) == pick_queue(key, each.publish)


def test_truth_value_is_no_key_even_behind_the_number_it_equals() -> None:
    chooser, packer = QueueChooser(), Packer(ProducerOptions(codec="bytes"))
    for _ in range(2):
        assert chooser.by_key(route(4), 1) == route(4).publish[1]
    same = route(4)
    run = [(key, packer.plain(b"x", key)) for key in (1, True)]
    with pytest.raises(InvalidOption):
        chooser.sort_out(same, run)


def test_keys_of_a_topic_that_may_move_are_not_remembered() -> None:
    chooser, moving = QueueChooser(), route(4, provisional=True, brokers=2)
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            chooser.by_key(moving, "k")


def test_remembered_keys_are_bounded() -> None:
    chooser, four = QueueChooser(), route(4)
    for number in range(KNOWN_KEYS + 10):
        chooser.by_key(four, f"k{number}")
    assert len(chooser._known[1]) <= KNOWN_KEYS


def test_parcels_of_a_queue_keep_the_order_of_the_call() -> None:
    chooser, packer, four = QueueChooser(), Packer(ProducerOptions(codec="bytes")), route(4)
    run = [(f"k{number % 9}", packer.plain(b"x", f"k{number % 9}", index=number)) for number in range(100)]
    for queue, messages in chooser.sort_out(four, run).items():
        mine = [each.index for key, each in run if pick_queue(key, four.publish) == queue]
        assert [each.index for each in messages] == mine


def test_runs_end_at_either_limit_and_lose_nothing() -> None:
    packer, waiter = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter()
    small = [("k", b"x")] * (RUN_MESSAGES + 1)
    assert [len(run) for run in packer.runs(small, waiter)] == [RUN_MESSAGES, 1]
    large = [("k", b"x" * (RUN_BYTES // 2))] * 5 + [("k", b"y" * (RUN_BYTES + 1))] * 2
    runs = list(packer.runs(large, waiter))
    assert [len(run) for run in runs] == [2, 2, 1, 1, 1]
    assert [message.index for run in runs for _, message in run] == list(range(7))


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.results: list[tuple[int, Receipt]] = []

    def stored(self, index: int, receipt: Receipt) -> None:
        self.results.append((index, receipt))

    def failed(self, index: int, error: LaneError) -> None:
        raise error


def test_batch_of_several_callers_tells_each_its_own() -> None:
    """`send_many` is told in one go only when the batch is all its own."""
    packer, waiter, other = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter(), Listener()
    messages = [packer.plain(b"x", "k", waiter=each, index=at) for each, at in ((waiter, 0), (other, 9), (waiter, 1))]
    queue = MessageQueue("orders", "a", 0)
    Stored(messages, queue, 40, StoredAs.DURABLE, False).notify()
    waiter.close(2)
    waiter.wait()
    assert [each.offset for each in waiter.result()] == [40, 42]
    assert [(index, receipt.offset) for index, receipt in other.results] == [(9, 41)]
    assert packer.plain(b"x", "k").waiter is NO_WAITER


def test_many_receipts_in_one_go_complete_the_call() -> None:
    packer, waiter = Packer(ProducerOptions(codec="bytes")), ThreadBatchWaiter()
    messages = [packer.plain(b"x", "k", waiter=waiter, index=at) for at in (1, 0, 2)]
    waiter.close(3)
    Stored(messages, MessageQueue("orders", "a", 0), 7, StoredAs.RELAXED, False).notify()
    waiter.wait()
    assert [each.offset for each in waiter.result()] == [8, 7, 9]
