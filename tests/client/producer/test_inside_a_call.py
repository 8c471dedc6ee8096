"""Messages that are sent where the producer is in the middle of its own work, as finalizers and signal handlers do.

`_locked(act)` is that middle: `act` runs on a thread that holds the producer's lock. Other threads do not wait for it.
"""

import threading
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Blocking
from tests.client.producer.test_inbox import Busy, left, stored, warmed

from lanemq.background_log import LINES
from lanemq.model.errors import RequestTimedOut, UsageError
from lanemq.net.calling.blocking import ClientThread

broker = serving()


def test_a_finalizer_on_a_thread_of_the_client_does_not_wait(broker: FakeBroker) -> None:
    """Any of these threads may be the one that it would wait for."""
    outcomes: list[Any] = []

    def finalizer() -> None:
        for call in (producer.send, producer.submit):
            try:
                outcomes.append(call("orders", call.__name__, key="k"))
            except UsageError as error:
                outcomes.append(error)

    with Blocking(broker.address) as producer:
        producer.send("orders", "warm", key="k")
        thread = ClientThread(target=finalizer)
        thread.start()
        thread.join(60)
        refused, submitted = outcomes
        assert "send() would wait" in str(refused)
        assert submitted.result(60).offset == 1
    assert stored(broker) == ['"warm"', '"submit"']


def test_a_message_of_a_call_inside_another_is_moved_although_no_reply_will_come(broker: FakeBroker) -> None:
    with Blocking(broker.address) as producer:
        warmed(producer)
        inside = producer.producer._locked(lambda: producer.submit("orders", "inside", key="k"))
        assert left(producer) == 0
        assert inside.result(60).offset == 1


def test_no_later_message_overtakes_one_that_waits_for_the_lock(broker: FakeBroker) -> None:
    """The call that it interrupted ends by opening the inbox for others."""

    def interrupted() -> Any:
        future = producer.submit("orders", "inside", key="k", tag="t")
        producer.producer._adjust_inbox()
        return future

    with Blocking(broker.address) as producer:
        warmed(producer)
        busy = Busy(broker)
        producer.submit("orders", "first", key="k")
        inside = producer.producer._locked(interrupted)
        later = producer.submit("orders", "later", key="k")
        busy.answer.set()
        assert [inside.result(60).offset, later.result(60).offset] == [2, 3]


def test_a_submit_waits_for_no_other_thread(broker: FakeBroker) -> None:
    """The thread that has the lock moves what was left meanwhile when it releases it, in the order of the calls."""
    futures: list[Any] = []

    def submits() -> None:
        for number in range(3):
            futures.append(producer.submit("orders", number, key="k", tag="t"))
            futures.append(producer.submit("orders", number, key="k"))

    def holds_the_lock() -> int:
        thread = threading.Thread(target=submits)
        thread.start()
        thread.join(30)
        return left(producer)

    with Blocking(broker.address) as producer:
        warmed(producer)
        assert producer.producer._locked(holds_the_lock) == 6
        assert [future.result(60).offset for future in futures] == [1, 2, 3, 4, 5, 6]
        assert stored(broker)[1:] == ["0", "0", "1", "1", "2", "2"]


def test_what_is_left_is_moved_after_a_change_that_fails(broker: FakeBroker) -> None:
    futures: list[Any] = []

    def refused() -> Any:
        thread = threading.Thread(target=lambda: futures.append(producer.submit("orders", 1, key="k", tag="t")))
        thread.start()
        thread.join(30)
        raise UsageError("refused")

    with Blocking(broker.address) as producer:
        warmed(producer)
        for change in (producer.producer._locked, producer.producer._change):
            with pytest.raises(UsageError):
                change(refused)
        assert [future.result(60).offset for future in futures] == [1, 2]


def test_what_is_left_counts_as_in_the_buffer(broker: FakeBroker) -> None:
    """A thread that hangs with the lock held costs no more memory than a broker that does not answer."""
    outcomes: list[Any] = []

    def submits() -> None:
        try:
            for _ in range(100):
                outcomes.append(producer.submit("orders", "x" * 30_000, key="k"))
        except RequestTimedOut as error:
            outcomes.append(error)

    def holds_the_lock() -> None:
        thread = threading.Thread(target=submits)
        thread.start()
        thread.join(30)

    with Blocking(broker.address, buffer_bytes=200_000, max_body_bytes=100_000, timeout=0.5) as producer:
        warmed(producer)
        producer.producer._locked(holds_the_lock)
        *futures, refused = outcomes
        assert "the buffer of 200000 bytes stayed full" in str(refused)
        assert [future.result(60).offset for future in futures] == [1, 2, 3, 4, 5, 6]


def test_a_refusal_after_send_oneway_has_returned_is_in_the_log(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def holds_the_lock() -> None:
        thread = threading.Thread(target=lambda: producer.send_oneway("orders", 1, key="k"))
        thread.start()
        thread.join(30)

    with Blocking(broker.address, max_body_bytes=100) as producer:
        warmed(producer)
        broker.faults = lambda header, number: Fault.REFUSE
        refused: Any = producer.submit("orders", 0, key="k")
        assert refused.exception(60)
        producer.producer._locked(holds_the_lock)
        LINES.drain(30)
    assert "a message of send_oneway was not sent: an earlier message of key 'k'" in caplog.text
