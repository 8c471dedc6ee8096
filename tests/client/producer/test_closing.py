"""Closing a producer: it refuses new messages, settles accepted ones, and leaves nothing open."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Blocking, OnALoop, Open

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.producer import Producer
from lanemq.model.errors import Closed, UsageError
from lanemq.wire.headers import SendHeader

broker = serving(queues=1)


class Restless:
    """Submits another message whenever one arrives at the broker, so that the producer is never idle."""

    def __init__(self, producer: Blocking | OnALoop) -> None:
        self._producer = producer
        self.submitted = 0
        self.resting = False
        self.refused: Closed | None = None

    def __call__(self, header: SendHeader, number: int) -> Fault | None:
        if not self.resting and self.refused is None:
            try:
                self._producer.submit("orders", number, key="k")
                self.submitted += 1
            except Closed as error:
                self.refused = error
        return None


def in_time(call: Callable[[], None]) -> bool:
    """Whether the call returned in time, so that a call that never returns fails its test instead of hanging it."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def test_close_returns_while_other_threads_keep_submitting_and_refuses_them(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        broker.faults = restless = Restless(producer)
        first = producer.submit("orders", 0, key="k")
        try:
            assert in_time(producer.close)
        finally:
            restless.resting = True
        assert first.result(30).offset == 0
    assert isinstance(restless.refused, Closed)
    assert len(broker.stored("orders", 0)) == restless.submitted + 1


def test_close_refuses_new_messages_at_once(broker: FakeBroker, kind: Open) -> None:
    answer = threading.Event()
    broker.faults = lambda header, number: None if answer.wait(10) else Fault.REFUSE
    with kind(broker.address) as producer:
        accepted = [producer.submit("orders", 0, key="k")]
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        deadline = time.monotonic() + 30

        def submit_on() -> None:
            while time.monotonic() < deadline:
                accepted.append(producer.submit("orders", len(accepted), key="k"))

        with pytest.raises(Closed):
            submit_on()
        assert closing.is_alive()
        answer.set()
        closing.join(30)
        assert [each.result(30).offset for each in accepted] == list(range(len(accepted)))


def test_flush_does_not_wait_for_later_messages(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        broker.faults = restless = Restless(producer)
        first = producer.submit("orders", 0, key="k")
        try:
            assert in_time(producer.flush)
        finally:
            restless.resting = True
        assert first.result(30).offset == 0


def test_a_connection_made_after_close_is_closed_at_once(broker: FakeBroker) -> None:
    """A slow attempt to connect may outlast the producer, and its connection would stay open."""
    producer = Producer(str(broker.address))
    producer.send("orders", 1, key="k")
    producer.close()
    producer._routes.stale("orders")
    producer._dial("fake", "orders")
    assert [link.is_open for link in producer._links.values()] == [False]
    assert not producer._routes._connections
    assert not [each for each in threading.enumerate() if each.name == f"lanemq-reader-{broker.address}"]


@pytest.mark.parametrize("call", ["send", "send_many", "flush", "close"])
def test_calls_that_wait_are_refused_inside_a_callback(broker: FakeBroker, call: str) -> None:
    """It would wait for a reply that its own thread has to read."""
    calls: dict[str, Callable[[Producer], object]] = {
        "send": lambda producer: producer.send("orders", 2, key="k"),
        "send_many": lambda producer: producer.send_many("orders", [("k", 2)]),
        "flush": Producer.flush,
        "close": Producer.close,
    }
    ready, called = threading.Event(), threading.Event()
    problems: list[Exception] = []
    with Producer(str(broker.address), delivery_timeout=2.0) as producer:
        producer.send("orders", 0, key="k")
        broker.faults = lambda header, number: None if ready.wait(30) else Fault.REFUSE

        def callback(_: object) -> None:
            try:
                calls[call](producer)
            except UsageError as error:
                problems.append(error)
            called.set()

        producer.submit("orders", 1, key="k").add_done_callback(callback)
        ready.set()
        assert called.wait(30)
    assert "use submit() there" in str(problems[0])


def test_submit_works_inside_a_callback(broker: FakeBroker) -> None:
    ready, called = threading.Event(), threading.Event()
    with Producer(str(broker.address)) as producer:
        broker.faults = lambda header, number: None if ready.wait(30) else Fault.REFUSE

        def callback(_: object) -> None:
            producer.submit("orders", 2, key="k").add_done_callback(lambda _: called.set())

        producer.submit("orders", 1, key="k").add_done_callback(callback)
        ready.set()
        assert called.wait(30)
        producer.send("orders", 3, key="k")  # not inside a callback
    assert broker.stored("orders", 0) == ["1", "2", "3"]


def test_close_refuses_a_sender_that_waits_for_room_in_the_buffer(broker: FakeBroker, kind: Open) -> None:
    """Its message was not accepted before `close`, and accepting it now could keep the producer open."""
    broker.faults = lambda header, number: Fault.LOSE_REQUEST
    settings = {"buffer_bytes": 4000, "max_body_bytes": 3000, "delivery_timeout": 1.0}
    with kind(broker.address, **settings) as producer:
        first = producer.submit("orders", b"x" * 3000, key="k")
        refused: list[Exception] = []

        def wait_for_space() -> None:
            try:
                producer.submit("orders", b"x" * 3000, key="k").result(30)
            except Exception as error:  # noqa: BLE001 - looked at below
                refused.append(error)

        waiting = threading.Thread(target=wait_for_space)
        waiting.start()
        producer.close()
        waiting.join(30)
    assert isinstance(refused[0], Closed)
    assert first.exception(0) is not None


def test_a_second_close_waits_for_the_first(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address, delivery_timeout=20.0) as producer:
        producer.send("orders", 0, key="k")
        with broker.asleep():
            pending = producer.submit("orders", 1, key="k")
            closers = [threading.Thread(target=producer.close, daemon=True) for _ in range(3)]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join(0.1)
            assert all(closer.is_alive() for closer in closers), "the message is not settled yet"
        for closer in closers:
            closer.join(30)
        assert not any(closer.is_alive() for closer in closers)
        assert pending.result(0).offset == 1


def test_a_second_close_with_less_time_ends_the_first(broker: FakeBroker, kind: Open) -> None:
    """What is left then fails, instead of being stored after `close` has returned."""
    with kind(broker.address) as producer:
        producer.send("orders", 0, key="k")
        with broker.asleep():
            pending = producer.submit("orders", 1, key="k")
            first = threading.Thread(target=producer.close, daemon=True)
            first.start()
            first.join(0.1)
            assert first.is_alive(), "the message is not settled yet"
            producer.close(timeout=0.1)
            assert isinstance(pending.exception(0), Closed)
            first.join(30)
            assert not first.is_alive()


def test_an_async_producer_refuses_a_second_event_loop(broker: FakeBroker) -> None:
    """Its connections belong to the first one, so a message would wait for ever."""
    producer = AsyncProducer(str(broker.address))

    async def send() -> None:
        await asyncio.wait_for(producer.send("orders", 1, key="k"), 10)

    async def submit() -> None:
        await producer.submit("orders", 1, key="k")

    async def send_many() -> None:
        await producer.send_many("orders", [("k", 1)])

    with asyncio.Runner() as first:
        first.run(send())
        for call in (send, submit, send_many, producer.flush, producer.close):
            with pytest.raises(UsageError, match="another one runs here"):
                asyncio.run(call())
        first.run(send())
        first.run(producer.close())


def test_an_async_producer_can_be_closed_after_its_event_loop(broker: FakeBroker) -> None:
    producer = AsyncProducer(str(broker.address))
    asyncio.run(producer.flush())
    asyncio.run(producer.close())
    with pytest.raises(UsageError):
        asyncio.run(producer.flush())
