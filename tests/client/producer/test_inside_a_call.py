"""Messages that are sent where the producer is in the middle of its own work, as finalizers and signal handlers do.

`_locked(act)` is that middle: `act` runs on a thread that holds the producer's lock.
"""

from typing import Any

from tests.client.fake_broker import FakeBroker, serving
from tests.client.producer.producers import Blocking
from tests.client.producer.test_inbox import Busy, left, stored, warmed

from lanemq.client.codec import JsonCodec
from lanemq.model.errors import UsageError
from lanemq.net.blocking import ClientThread

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


def test_a_message_whose_inbox_was_closed_in_between_is_accepted(broker: FakeBroker) -> None:
    """The inbox is closed by a message that does not fit it, which is sent while this one is encoded."""
    inner: list[Any] = []

    class Codec(JsonCodec):
        def encode(self, value: object) -> bytes:
            if value == "outer":
                inner.append(producer.submit("orders", "inner", key="k", tag="t"))
            return super().encode(value)

    with Blocking(broker.address, codec=Codec()) as producer:
        warmed(producer)
        busy = Busy(broker)
        producer.submit("orders", "first", key="k")
        try:
            outer = producer.producer._locked(lambda: producer.submit("orders", "outer", key="k"))
            assert left(producer) == 2
        finally:
            busy.answer.set()
        assert [outer.result(60).offset, inner[0].result(60).offset] == [2, 3]


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
        assert left(producer) == 1
        later = producer.submit("orders", "later", key="k")
        busy.answer.set()
        assert [inside.result(60).offset, later.result(60).offset] == [2, 3]
