"""An interrupted call does not learn the outcome of its messages: if one fails later, its key is frozen."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Fault
from tests.client.producer.engine_sim import QUEUE, Call, EngineSim, route_of, served, stored
from tests.client.producer.producers import Blocking, OnALoop, Open, sending

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.batches import Packer
from lanemq.client.producer.engine import Actions
from lanemq.client.producer.inbox import SendInbox
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import notify_all
from lanemq.client.producer.waiters import BatchWaiter, LoopFuture, SingleWaiter, SubmittedFuture, ThreadWaiter
from lanemq.model.errors import LaneError, LaneFrozen, MessageRefused
from lanemq.model.units import Millis
from lanemq.wire.headers import SendHeader


class Interrupted(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Drops the second request, and refuses bad messages when they are sent again."""
    with FakeBroker() as fake:
        fake.create("orders", queues=1, ordered=True)
        fake.refuses = lambda body: body == b'"bad"'
        fake.faults = lambda header, number: Fault.LOSE_REQUEST if number == 2 else None
        yield fake


def interrupt_when(true: Callable[[], bool]) -> None:
    """Interrupts the main thread, which waits in a call, when the condition is true."""
    done = threading.Event()

    def watch() -> None:
        while not true() and not done.wait(0.001):
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handle(*_: object) -> None:
        done.set()
        raise Interrupted

    signal.signal(signal.SIGUSR1, handle)
    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_signals")
@pytest.mark.parametrize(("value", "frozen"), [("bad", ["k"]), ("fine", [])])
def test_an_interrupted_send_freezes_its_key_if_its_message_fails(
    broker: FakeBroker, value: str, frozen: list[str]
) -> None:
    with sending(answer_timeout=200), Blocking(broker.address) as producer:
        producer.send("orders", "warm", key="w")
        interrupt_when(lambda: len(broker.requests) == 2)
        with pytest.raises(Interrupted):
            producer.send("orders", value, key="k")
        producer.flush()
        assert [each.key for each in producer.frozen_keys()] == frozen
        producer.send("orders", "other", key="other")
        if frozen:
            with pytest.raises(LaneFrozen, match=r"resume\('orders', key='k'\)"):
                producer.send("orders", "passing", key="k")
            producer.resume("orders", key="k")
        producer.send("orders", "after", key="k")


def on_a_loop(broker: FakeBroker, work: Callable[[AsyncProducer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with AsyncProducer(str(broker.address)) as producer:
            await producer.send("orders", "warm", key="w")
            await work(producer)

    with sending(answer_timeout=200):
        asyncio.run(main())


@pytest.mark.parametrize(("value", "frozen"), [("bad", ["k"]), ("fine", [])])
def test_a_cancelled_send_freezes_its_key_if_its_message_fails(
    broker: FakeBroker, value: str, frozen: list[str]
) -> None:
    read_second = threading.Event()

    def swallow_second(header: SendHeader, number: int) -> Fault | None:
        if number != 2:
            return None
        read_second.set()
        return Fault.LOSE_REQUEST

    broker.faults = swallow_second

    async def work(producer: AsyncProducer) -> None:
        call = asyncio.ensure_future(producer.send("orders", value, key="k"))
        await asyncio.to_thread(read_second.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await producer.flush()
        assert [each.key for each in producer.frozen_keys()] == frozen

    on_a_loop(broker, work)


def test_a_send_whose_caller_has_timed_out_freezes_its_key(broker: FakeBroker) -> None:
    async def work(producer: AsyncProducer) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send("orders", "bad", key="k"), 0.05)
        await producer.flush()
        with pytest.raises(LaneFrozen):
            await producer.send("orders", "passing", key="k")

    on_a_loop(broker, work)


def test_a_send_cancelled_after_its_message_failed_freezes_its_key(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The future has failed, but its task has not run since: the task gets the cancellation, not the failure."""
    broker.faults = lambda header, number: None

    async def work(producer: AsyncProducer) -> None:
        finish = producer._finish

        def cancelling(found: Actions) -> None:
            finish(found)
            if found.outcomes:
                call.cancel()

        producer._finish = cancelling  # type: ignore[method-assign]
        call = asyncio.ensure_future(producer.send("orders", "bad", key="k"))
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [each.key for each in producer.frozen_keys()] == ["k"]

    on_a_loop(broker, work)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_producer_whose_call_was_interrupted_while_it_waited_for_room_stays_open(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was changed yet."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Blocking(broker.address) as producer:
        calls: list[Callable[[], object]] = [
            lambda: producer.submit("orders", "late", key="k"),
            lambda: producer.send("orders", "late", key="k"),
            lambda: producer.send_many("orders", [("k", "late")]),
        ]
        for call in calls:
            monkeypatch.setattr(producer.producer._changed, "wait_until", interrupted)
            monkeypatch.setattr(producer.producer._engine.unsettled, "bytes", 2**40)
            with pytest.raises(KeyboardInterrupt):
                call()
        monkeypatch.undo()
        assert producer.send("orders", "after", key="k").offset == 0


def test_a_send_that_raises_its_failure_freezes_nothing(broker: FakeBroker) -> None:
    broker.faults = lambda header, number: None
    with Blocking(broker.address) as producer:
        with pytest.raises(MessageRefused):
            producer.send("orders", "bad", key="k")
        assert producer.frozen_keys() == []
        producer.send("orders", "after", key="k")


# the engine


def settle_all(sim: EngineSim) -> None:
    while sim.wire or sim.answers:
        sim.take()
        sim.answer()


@pytest.mark.parametrize("interrupted_first", [True, False])
def test_a_key_is_frozen_whether_its_message_fails_before_or_after_the_interruption(interrupted_first: bool) -> None:
    sim, waiter = served(), ThreadWaiter()
    sim.offer("a", bad=[0], sender_waits=True, waiter=waiter)
    if interrupted_first:
        sim.engine.send_interrupted(waiter)
    settle_all(sim)
    if not interrupted_first:
        assert sim.frozen() == set()
        sim.engine.send_interrupted(waiter)
    assert sim.frozen() == {"a"}
    sim.resume("a")
    sim.offer("a")
    settle_all(sim)
    assert stored(sim) == [2]


def test_an_interrupted_call_that_was_refused_keeps_its_key_frozen() -> None:
    """Its caller does not know of the freeze, which would otherwise end with the call that caused it."""
    sim, call, waiter = served(), Call(), ThreadWaiter()
    sim.offer("a", bad=[0], waiter=call)
    settle_all(sim)
    with pytest.raises(LaneFrozen):
        sim.offer("a", sender_waits=True, waiter=waiter)
    sim.engine.send_interrupted(waiter)
    sim.engine.call_ended(call, interrupted=False)
    assert sim.frozen() == {"a"}


def test_a_message_stored_after_the_interruption_freezes_nothing() -> None:
    sim, waiter = served(), ThreadWaiter()
    sim.offer("a", sender_waits=True, waiter=waiter)
    sim.engine.send_interrupted(waiter)
    settle_all(sim)
    assert sim.frozen() == set()
    assert stored(sim) == [1]


# memory


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Leaves what exists by now out of `alive`: in a process with many tests, a look at all of it takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


def alive() -> int:
    """The number of waiters in memory, of those that the test made."""
    gc.collect()
    kinds = SingleWaiter, BatchWaiter, LoopFuture, SubmittedFuture
    return sum(isinstance(each, kinds) for each in gc.get_objects())


def fail(producer: Blocking | OnALoop, call: str) -> None:
    if call == "send_many":
        producer.send_many("orders", [("k", "bad"), ("other", "fine")])
    elif call == "send":
        producer.send("orders", "bad", key="k")
    else:
        producer.submit("orders", "bad", key="k").result(30)


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("call", ["send", "submit", "send_many", "refused"])
def test_failed_calls_are_garbage_collected(broker: FakeBroker, kind: Open, call: str) -> None:
    """The garbage collector does not track messages: an error that refers back to one would keep it in memory."""
    broker.faults = lambda header, number: None
    with kind(broker.address) as producer:
        producer.send("orders", "warm", key="w")
        before = alive()
        for _ in range(10):
            with pytest.raises(LaneError):
                fail(producer, call)
            if call == "submit":
                producer.resume("orders", key="k")
        assert alive() <= before + 2


@pytest.mark.usefixtures("only_new_objects")
def test_messages_refused_from_the_inbox_are_garbage_collected() -> None:
    engine = served().engine
    route, options = route_of(QUEUE, checks_stamps=True), ProducerOptions(codec="bytes")
    engine.sender_for(QUEUE, route).frozen_keys.freeze("a", MessageRefused(13, "bad"), None, wall=Millis(1))
    inbox = SendInbox(options, engine, Packer(options), SubmittedFuture)
    inbox.learn(route)
    inbox.adjust(True, 0)
    before = alive()
    for _ in range(10):
        assert inbox.take("orders", "a", b"value") is not None
        work = inbox.move({}, 0)
        for outcome in work.outcomes:
            notify_all([outcome])
    del work, outcome
    assert alive() <= before + 2
