"""A `send_many` that ends early freezes the keys of messages that fail later."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.client.fake_broker import FakeBroker, Fault
from tests.client.producer.engine_sim import Call, served, stored
from tests.client.producer.producers import Blocking, OnALoop, Open

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.batches import CHUNK_MESSAGES
from lanemq.model.errors import LaneFrozen


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Refuses bad messages, but only after a first attempt at the run that it does not answer."""
    with FakeBroker() as fake:
        fake.create("orders", queues=1, ordered=True)
        fake.refuses = lambda body: body == b'"bad"'
        fake.faults = lambda header, number: Fault.BUSY if number == 2 else None
        yield fake


def source(end: BaseException) -> Iterator[tuple[str, str]]:
    """Yields one run, then raises."""
    yield "illegal", "bad"
    for number in range(CHUNK_MESSAGES - 1):
        yield f"other-{number}", "fine"
    raise end


def check_frozen(producer: Blocking | OnALoop) -> None:
    producer.flush()
    assert [each.key for each in producer.frozen_keys("orders")] == ["illegal"]
    with pytest.raises(LaneFrozen, match="resume"):
        producer.send("orders", "after", key="illegal")
    producer.send("orders", "after", key="other-1")
    producer.resume("orders", key="illegal")
    producer.send("orders", "after", key="illegal")


def test_a_failure_after_the_source_raised_freezes_its_key(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send("orders", "warm", key="w")
        with pytest.raises(ValueError, match="row 501"):
            producer.send_many("orders", source(ValueError("row 501 is broken")))
        check_frozen(producer)


def test_a_failure_after_an_interruption_freezes_its_key(broker: FakeBroker) -> None:
    with Blocking(broker.address) as producer:
        producer.send("orders", "warm", key="w")
        with pytest.raises(KeyboardInterrupt):
            producer.send_many("orders", source(KeyboardInterrupt()))
        check_frozen(producer)


def test_a_failure_after_a_cancellation_freezes_its_key(broker: FakeBroker) -> None:
    async def main() -> list[str | None]:
        async with AsyncProducer(str(broker.address)) as producer:
            await producer.send("orders", "warm", key="w")
            call = asyncio.ensure_future(producer.send_many("orders", [("illegal", "bad"), ("other", "fine")]))
            await asyncio.sleep(0)  # now its messages are accepted
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await producer.flush()
            return [each.key for each in producer.frozen_keys("orders")]

    assert asyncio.run(main()) == ["illegal"]


def test_a_source_that_raises_after_good_messages_freezes_nothing(broker: FakeBroker, kind: Open) -> None:
    broker.refuses = lambda body: False
    with kind(broker.address) as producer:
        producer.send("orders", "warm", key="w")
        with pytest.raises(ValueError, match="row 501"):
            producer.send_many("orders", source(ValueError("row 501 is broken")))
        producer.flush()
        assert producer.frozen_keys() == []
    assert len(broker.stored("orders", 0)) == 1 + CHUNK_MESSAGES


def test_a_key_that_failed_before_its_call_was_interrupted_stays_frozen() -> None:
    sim, call, other = served(), Call(), Call()
    sim.offer("a", "b", bad=[0, 1], waiter=call)
    while sim.wire or sim.answers:
        sim.take()
        sim.answer()
    with pytest.raises(LaneFrozen):
        sim.offer("a", waiter=other)
    sim.engine.call_ended(call, interrupted=True)
    sim.engine.call_ended(other, interrupted=False)
    assert sim.frozen() == {"a", "b"}
    sim.resume("a")
    sim.offer("a")
    sim.heal()
    assert stored(sim) == [3]
