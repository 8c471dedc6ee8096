"""Messages that are left in the inbox are sent in order, and none is left behind."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.engine_sim import new_engine, served
from tests.client.producer.producers import Blocking, OnALoop, Open

from lanemq.client.producer import inbox as inbox_module
from lanemq.client.producer.batches import COMPRESS_ABOVE, Packer
from lanemq.client.producer.engine import FlushMark, SendEngine
from lanemq.client.producer.inbox import (
    FEW_REQUESTS,
    KNOWN_KEYS,
    MAX_BYTES,
    MAX_HELD_MS,
    MAX_KEY,
    MAX_MESSAGES,
    MESSAGES_PER_QUEUE,
    MIN_BYTES,
    KeySenders,
    SendInbox,
)
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.waiters import SubmittedFuture
from lanemq.client.topic_route import TopicRoute
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import Closed, CodecError, LaneFrozen, MessageRefused, MessageTooLarge
from lanemq.model.queue import MessageQueue


class Busy:
    """Makes a broker reply only when the test allows it. `refuse`: the numbers of requests, from then on, to refuse."""

    def __init__(self, broker: FakeBroker) -> None:
        self.answer = threading.Event()
        self.one = threading.Semaphore(0)
        self.refuse: set[int] = set()
        self.seen = 0
        broker.faults = self._fault

    def _fault(self, header: object, number: int) -> Fault | None:
        deadline = time.monotonic() + 60
        while not self.answer.is_set() and not self.one.acquire(timeout=0.01):
            assert time.monotonic() < deadline
        self.seen += 1
        return Fault.REFUSE if self.seen in self.refuse else None


broker = serving()


def left(producer: Blocking | OnALoop) -> int:
    return len(producer.producer._inbox)


QUEUES = tuple(MessageQueue("orders", "fake", number) for number in range(4))


def stored(broker: FakeBroker) -> list[str]:
    """The stored values of the queue of key k, in order."""
    return broker.stored("orders", pick_queue("k", QUEUES).queue_id)


def same_queue(key: str) -> str:
    """Another key of the same queue."""
    others = (f"{key}-{number}" for number in range(100))
    return next(other for other in others if pick_queue(other, QUEUES) == pick_queue(key, QUEUES))


def warmed(producer: Blocking | OnALoop) -> None:
    """Connects, and stops maintenance, which would empty the inbox five times a second."""
    producer.send("orders", "warm", key="k")
    producer.producer._maintain_once = lambda *_: None  # type: ignore[method-assign]


# order and completeness


def test_messages_in_the_inbox_are_stored_once_and_in_order(
    broker: FakeBroker, kind: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is full, and continues to be filled."""
    full = 500
    monkeypatch.setattr(inbox_module, "MAX_MESSAGES", full)
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        futures = [producer.submit("orders", str(number), key="k") for number in range(2 * full)]
        assert 0 < left(producer) <= full
        busy.answer.set()
        offsets = [future.result(20).offset for future in futures]
    assert offsets == list(range(1, len(futures) + 1))
    assert stored(broker) == ['"warm"', *(f'"{number}"' for number in range(len(futures)))]


def test_calls_that_bypass_the_inbox_do_not_overtake_it(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        producer.submit("orders", 1, key="k")
        producer.submit("orders", 2, key="k")
        assert left(producer) == 1
        producer.submit("orders", 3, key="k", tag="other")
        assert left(producer) == 0
        producer.submit("orders", 4, key="k")
        assert left(producer) == 1
        producer.send_oneway("orders", 5, key="k")
        producer.submit("orders", 6, key="k")
        busy.answer.set()
        producer.send_many("orders", [("k", 7)])
    assert stored(broker) == ['"warm"', *"1234567"]


def test_flush_waits_for_messages_in_the_inbox(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        futures = [producer.submit("orders", number, key="k") for number in range(10)]
        assert left(producer) == 9
        busy.answer.set()
        producer.flush()
        assert all(future.result(30).offset == number + 1 for number, future in enumerate(futures))


def test_flush_does_not_end_with_the_reply_that_empties_the_inbox(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        first = producer.submit("orders", 1, key="k")
        producer.submit("orders", 2, key="k")
        assert left(producer) == 1
        flushing = threading.Thread(target=producer.flush)
        flushing.start()
        deadline = time.monotonic() + 60
        while left(producer):
            assert time.monotonic() < deadline
        busy.one.release()
        first.result(30)
        flushing.join(0.3)
        assert flushing.is_alive()
        busy.answer.set()
        flushing.join(10)


def test_a_reply_empties_the_inbox_without_the_maintenance_thread(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        futures = [producer.submit("orders", number, key=f"key-{number}") for number in range(20)]
        assert left(producer) > 0
        busy.answer.set()
        assert all(future.result(30) for future in futures)


def test_the_inbox_is_closed_before_close_waits(broker: FakeBroker) -> None:
    with Blocking(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        producer.submit("orders", 1, key="k")
        producer.submit("orders", 2, key="k")
        inner = producer.producer
        mark, taken = inner._mark, []

        def watched() -> FlushMark:
            taken.append(inner._put_in_inbox("orders", "k", 3))
            busy.answer.set()
            return mark()

        inner._mark = watched  # type: ignore[method-assign]
        inner.close()
    assert taken == [None]
    assert stored(broker) == ['"warm"', "1", "2"]


def test_submit_does_not_overtake_a_call_that_waits_for_its_route(broker: FakeBroker) -> None:
    with OnALoop(broker.address) as producer:
        warmed(producer)
        busy, inner = Busy(broker), producer.producer

        async def main() -> None:
            await inner.submit("orders", 1, key="k")
            inner._routes.stale("orders")
            waiting = asyncio.create_task(inner.send("orders", 2, key="k"))
            await asyncio.sleep(0)
            behind = asyncio.create_task(inner.submit("orders", 3, key="k"))
            await asyncio.sleep(0)
            busy.answer.set()
            await waiting
            await (await behind)

        producer.run(main())
    assert stored(broker) == ['"warm"', "1", "2", "3"]


def test_close_settles_messages_in_the_inbox_and_refuses_new_ones(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        futures = [producer.submit("orders", number, key="k") for number in range(10)]
        closing = threading.Thread(target=producer.close)
        closing.start()
        with pytest.raises(Closed):
            futures.extend(iter(lambda: producer.submit("orders", 10, key="k"), None))
        busy.answer.set()
        closing.join(20)
        assert [future.result(30).offset for future in futures] == list(range(1, len(futures) + 1))


@pytest.mark.slow
def test_messages_in_the_inbox_time_out_if_the_broker_never_replies(broker: FakeBroker, kind: Open) -> None:
    """Maintenance moves them to their lane, where their deadline starts."""
    with kind(broker.address, delivery_timeout=2.0) as producer:
        warmed(producer)
        work = type(producer.producer)._maintain_once.__get__(producer.producer)
        broker.faults = lambda header, number: Fault.LOSE_REQUEST
        futures = [producer.submit("orders", number, key="k") for number in range(3)]
        assert left(producer) == 2
        producer.producer._maintain_once = work
        assert all(_error_of(future) is not None for future in futures)


def _error_of(future: Any) -> BaseException | None:
    error: BaseException | None = future.exception(10)
    return error


# tasks that wait for their receipt


def unanswered(producer: OnALoop, broker: FakeBroker, key: str = "k") -> None:
    """Makes the broker lose a message of this key, and answer all others."""
    lost = threading.Event()

    def loses(header: object, number: int) -> Fault | None:
        if lost.is_set():
            return None
        lost.set()
        return Fault.LOSE_REQUEST

    broker.faults = loses
    producer.submit("orders", "lost", key=key)
    assert lost.wait(30)


def other_queue(key: str) -> str:
    """A key of another queue."""
    others = (f"{key}-{number}" for number in range(100))
    return next(other for other in others if pick_queue(other, QUEUES) != pick_queue(key, QUEUES))


def test_a_send_does_not_wait_for_the_reply_of_another_queue(broker: FakeBroker) -> None:
    """The broker never replies for one queue, and maintenance is stopped: only the next turn of the loop is left."""
    with OnALoop(broker.address) as producer:
        warmed(producer)
        unanswered(producer, broker)
        assert producer.send("orders", 1, key=other_queue("k")).offset == 0
        producer.run(producer.producer.close(timeout=0))


def test_without_its_own_turn_of_the_loop_a_send_would_wait_in_the_inbox(broker: FakeBroker) -> None:
    """The control of the test above."""
    with OnALoop(broker.address) as producer:
        warmed(producer)
        producer.producer._empty_soon = lambda: None  # type: ignore[method-assign]
        unanswered(producer, broker)

        async def waits() -> int:
            sending = asyncio.create_task(producer.producer.send("orders", 1, key=other_queue("k")))
            for _ in range(10):
                await asyncio.sleep(0)
            found = left(producer)
            sending.cancel()
            return found

        assert producer.run(waits()) == 1
        producer.run(producer.producer.close(timeout=0))


def test_tasks_that_send_in_one_turn_of_the_loop_share_requests(broker: FakeBroker) -> None:
    with OnALoop(broker.address) as producer:
        warmed(producer)
        busy, inner = Busy(broker), producer.producer

        async def main() -> list[int]:
            sends = [inner.send("orders", number, key="k") for number in range(100)]
            first = asyncio.create_task(inner.send("orders", "first", key="k"))
            await asyncio.sleep(0)
            rest = asyncio.gather(*sends)
            await asyncio.sleep(0)
            busy.answer.set()
            await first
            return [receipt.offset for receipt in await rest]

        assert producer.run(main()) == list(range(2, 102))
        assert busy.seen == 2


@pytest.mark.parametrize("cancelled", [False, True], ids=["waits", "was cancelled"])
def test_a_send_that_was_in_the_inbox_freezes_its_key_only_if_its_sender_is_gone(
    broker: FakeBroker, cancelled: bool
) -> None:
    with OnALoop(broker.address) as producer:
        warmed(producer)
        busy, inner = Busy(broker), producer.producer
        busy.refuse = {2}

        async def main() -> BaseException | None:
            first = await inner.submit("orders", "first", key="k")
            sending = asyncio.create_task(inner.send("orders", "refused", key="k"))
            await asyncio.sleep(0)
            assert left(producer) == 1
            if cancelled:
                sending.cancel()
            busy.answer.set()
            await first
            (error,) = await asyncio.gather(sending, return_exceptions=True)
            await inner.flush()
            return error

        error = producer.run(main())
        assert isinstance(error, asyncio.CancelledError if cancelled else MessageRefused)
        assert [each.key for each in producer.frozen_keys()] == (["k"] if cancelled else [])


# errors raised by the call


@pytest.mark.parametrize(
    ("value", "error"), [(object(), CodecError), (b"x" * 5001, MessageTooLarge)], ids=["not encodable", "too large"]
)
def test_mistakes_are_raised_by_the_call_while_the_inbox_is_open(
    broker: FakeBroker, kind: Open, value: object, error: type[Exception]
) -> None:
    with kind(broker.address, max_body_bytes=5000) as producer:
        warmed(producer)
        busy = Busy(broker)
        producer.submit("orders", 1, key="k")
        producer.submit("orders", 2, key="k")
        assert left(producer) == 1
        with pytest.raises(error):
            producer.submit("orders", value, key="k")
        busy.answer.set()
    assert stored(broker) == ['"warm"', "1", "2"]


def test_a_value_that_changes_after_the_call_is_sent_as_it_was_at_the_call(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        value = {"step": 0}
        for step in range(3):
            value["step"] = step
            producer.submit("orders", value, key="k")
        busy.answer.set()
    assert stored(broker)[1:] == [f'{{"step":{step}}}' for step in range(3)]


@pytest.mark.parametrize("key", ["", "a\x01b", "a\x02b", "\ud800", "x" * (MAX_KEY + 1)])
def test_unusual_keys_bypass_the_inbox(key: str) -> None:
    places = KeySenders(route(1), new_engine())
    assert places.find(key) is None
    assert places.find("ключ😀") is not None


# freezing


def test_messages_in_the_inbox_behind_a_failure_of_their_key_fail_and_other_keys_continue(
    broker: FakeBroker, kind: Open
) -> None:
    other = same_queue("k")
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        busy.refuse = {1}
        first = producer.submit("orders", "refused", key="k")
        behind = producer.submit("orders", "behind", key="k")
        beside = producer.submit("orders", "beside", key=other)
        assert left(producer) == 2
        busy.answer.set()
        assert _error_of(first) is not None
        assert isinstance(_error_of(behind), LaneFrozen)
        assert beside.result(30).offset == 1
        after = [producer.submit("orders", "later", key=key) for key in ("k", other)]
        assert isinstance(_error_of(after[0]), LaneFrozen)
        assert after[1].result(30).offset == 2


def test_a_frozen_key_does_not_refuse_others_of_its_queue(broker: FakeBroker, kind: Open) -> None:
    other = same_queue("k")
    with kind(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        busy.refuse = {1}
        refused = producer.submit("orders", 1, key="k")
        busy.answer.set()
        assert _error_of(refused) is not None
        busy = Busy(broker)
        futures = [producer.submit("orders", number, key=key) for number, key in enumerate([other, "k", other, "k"])]
        assert left(producer) == 3
        busy.answer.set()
        assert [futures[number].result(30).offset for number in (0, 2)] == [1, 2]
        assert all(isinstance(_error_of(futures[number]), LaneFrozen) for number in (1, 3))


def test_drop_gives_up_messages_of_the_key_in_the_inbox(broker: FakeBroker) -> None:
    with Blocking(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        futures = [producer.submit("orders", number, key="k") for number in range(4)]
        assert left(producer) == 3
        assert producer.producer.drop("orders", key="k") == 3
        busy.answer.set()
        assert futures[0].result(30).offset == 1
        assert all(_error_of(future) is not None for future in futures[1:])


# when the inbox is open


def inbox_of(engine: SendEngine | None = None, **settings: Any) -> SendInbox:
    options = ProducerOptions(codec="bytes", **settings)
    inbox = SendInbox(options, engine or new_engine(), Packer(options), SubmittedFuture)
    inbox.learn(route(4))
    return inbox


def route(queues: int, **more: Any) -> TopicRoute:
    return TopicRoute("orders", tuple(MessageQueue("orders", "fake", n) for n in range(queues)), (), {}, **more)


def test_the_inbox_is_open_only_while_its_producer_says_so() -> None:
    inbox = inbox_of()
    assert inbox.take("orders", "k", b"x") is None
    inbox.adjust(True, 0)
    assert inbox.take("orders", "k", b"x") is not None
    inbox.adjust(False, 0)
    assert inbox.take("orders", "k", b"x") is None


def test_the_inbox_is_open_only_while_a_full_inbox_fits_into_the_buffer() -> None:
    inbox = inbox_of(buffer_bytes=MIN_BYTES + 1000)
    inbox.adjust(True, 1001)
    assert inbox.take("orders", "k", b"x") is None
    inbox.adjust(True, 1000)
    longest = "ü" * MAX_KEY
    while inbox.take("orders", longest, b"x" * 4000) is not None:
        pass
    (left_over,) = inbox.left_over()
    assert MIN_BYTES * 0.99 < sum(message.size for message in left_over.messages) <= MIN_BYTES


def test_a_full_inbox_has_a_limited_number_of_small_messages() -> None:
    inbox = inbox_of()
    inbox.adjust(True, 0)
    while inbox.take("orders", "k", b"x") is not None:
        pass
    assert len(inbox) == MAX_MESSAGES


@pytest.mark.parametrize(("size", "full"), [(1, MESSAGES_PER_QUEUE * 100), (4000, None)])
def test_the_inbox_has_room_for_more_messages_of_a_topic_with_many_queues(size: int, full: int | None) -> None:
    """Until it has a quarter of the buffer, or `MAX_BYTES`."""
    inbox = inbox_of()
    inbox.learn(route(100))
    inbox.adjust(True, 0)
    for _ in range(2):
        while inbox.take("orders", "k", b"x" * size) is not None:
            pass
        sizes = [message.size for outcome in inbox.left_over() for message in outcome.messages]
        assert full is None or len(sizes) == full
        assert full is not None or MAX_BYTES - 10_000 < sum(sizes) <= MAX_BYTES


def test_a_reply_leaves_messages_in_the_inbox_while_the_broker_has_enough_to_do() -> None:
    """With many queues, each reply would otherwise send a request with a message or two to each of them."""
    inbox = inbox_of(served().engine)
    inbox.learn(TopicRoute("orders", tuple(MessageQueue("orders", "b", number) for number in range(200)), (), {}))
    inbox.adjust(True, 0)
    assert not inbox.is_due(0, lambda: 0), "it is empty"
    for number in range(1000):
        assert inbox.take("orders", f"key-{number}", b"x") is not None
    assert inbox.is_due(FEW_REQUESTS, lambda: 0)
    assert not inbox.is_due(FEW_REQUESTS + 1, lambda: MAX_HELD_MS - 1)
    assert inbox.is_due(10_000, lambda: MAX_HELD_MS)
    requests = len(inbox.move({}, 50).requests)
    assert requests > 4 * FEW_REQUESTS
    inbox.take("orders", "k", b"x")
    assert inbox.is_due(requests // 4, lambda: 50)
    assert not inbox.is_due(requests // 4 + 1, lambda: MAX_HELD_MS + 49)
    assert inbox.is_due(requests, lambda: MAX_HELD_MS + 50)


def test_bodies_to_be_compressed_bypass_the_inbox() -> None:
    inbox = inbox_of()
    inbox.adjust(True, 0)
    assert inbox.take("orders", "k", b"x" * COMPRESS_ABOVE) is None
    assert inbox.take("orders", "k", b"x" * (COMPRESS_ABOVE - 1)) is not None


def test_topics_with_an_old_changed_or_provisional_route_bypass_the_inbox() -> None:
    inbox = inbox_of()
    inbox.adjust(True, 0)
    inbox.forget_old(lambda topic: None)
    assert inbox.take("orders", "k", b"x") is None
    inbox.learn(route(4, provisional=True))
    assert inbox.take("orders", "k", b"x") is None
    inbox.learn(route(4))
    assert inbox.take("orders", "k", b"x") is not None
    inbox.learn(new := route(8))
    inbox.forget_old(lambda topic: new)
    inbox.take("orders", "order-1", b"x")
    assert {place.queue for place in inbox._intake.take_out()} >= {pick_queue("order-1", new.publish)}


def test_known_keys_are_bounded() -> None:
    places = KeySenders(route(4), new_engine())
    for number in range(KNOWN_KEYS + 10):
        places.find(f"key-{number}")
    assert len(places) <= KNOWN_KEYS


def test_a_message_does_not_wait_in_the_inbox_for_a_reply_that_no_request_will_get(
    broker: FakeBroker, kind: Open
) -> None:
    with kind(broker.address) as producer:
        warmed(producer)
        future = producer.submit("orders", 1, key="k")
        assert left(producer) == 0
        assert future.result(20).offset == 1


def test_a_message_is_sent_if_the_last_reply_comes_while_it_is_encoded(broker: FakeBroker) -> None:
    """The inbox was open when the call began, and that reply has found it empty."""
    answered: list[Any] = []

    class Slow:
        def encode(self, value: Any) -> bytes:
            if value == b"late":
                busy.answer.set()
                answered.append(first.result(20))
            return bytes(value)

        def decode(self, body: bytes, kind: object = None) -> bytes:
            return body

    with Blocking(broker.address, codec=Slow()) as producer:
        producer.send("orders", b"warm", key="k")
        producer.producer._maintain_once = lambda *_: None  # type: ignore[method-assign]
        busy = Busy(broker)
        first = producer.submit("orders", b"first", key="k")
        late = producer.submit("orders", b"late", key="k")
        assert late.result(20).offset == answered[0].offset + 1 == 2
