"""The future of `submit` behaves like one of `concurrent.futures`, compiled and pure."""

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Future, as_completed, wait
from typing import Any

import pytest
from tests.client.producer.engine_sim import open_intake
from tests.fast.both import references, twins

from lanemq.client.producer.batches import PendingMessage
from lanemq.client.producer.outcomes import Stored, notify_all
from lanemq.client.producer.waiters import SubmittedFuture
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.model.errors import RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

QUEUE = MessageQueue("orders", "fake", 1)
KINDS = [SubmittedFuture, references["SubmittedFuture"]] if twins else [SubmittedFuture]


@pytest.fixture(params=KINDS, ids=["compiled", "reference"][-len(KINDS) :])
def future(request: pytest.FixtureRequest) -> Any:
    return request.param()


def receipt(offset: int = 7) -> Receipt:
    return Receipt(QUEUE, QueueOffset(offset), "id", "k", StoredAs.DURABLE, False)


def store(*futures: Any) -> None:
    """Settles futures as the engine does."""
    messages = [PendingMessage(b"x", "", "id", "k", waiter=each) for each in futures]
    notify_all([Stored(messages, QUEUE, 7, StoredAs.DURABLE, False)])


def test_it_is_pending_first_and_cannot_be_cancelled(future: Any) -> None:
    assert isinstance(future, Future)
    assert not future.done()
    assert not future.cancel()
    assert not future.cancelled()
    assert not future.running()
    with pytest.raises(TimeoutError):
        future.result(0)


def test_it_ends_with_its_receipt(future: Any) -> None:
    store(future)
    assert future.done()
    assert future.result() == receipt()
    assert future.result(0) is future.result()
    assert future.exception() is None


def test_it_ends_with_its_error(future: Any) -> None:
    future.failed(0, RequestTimedOut("late"))
    assert future.done()
    assert isinstance(future.exception(), RequestTimedOut)
    with pytest.raises(RequestTimedOut, match="late"):
        future.result()


def test_a_waiting_thread_is_woken(future: Any) -> None:
    timer = threading.Timer(0.05, store, [future])
    timer.start()
    assert future.result(10) == receipt()
    timer.join()


def test_a_callback_runs_once_whether_it_is_added_before_or_after(future: Any) -> None:
    calls: list[Any] = []
    future.add_done_callback(calls.append)
    store(future)
    future.add_done_callback(calls.append)
    assert calls == [future, future]


def test_futures_with_and_without_callbacks_in_one_batch_get_their_own_receipts(future: Any) -> None:
    others = [type(future)() for _ in range(3)]
    offsets: list[int] = []
    for each in (others[0], others[2]):
        each.add_done_callback(lambda done: offsets.append(done.result().offset))
    store(others[0], future, others[1], others[2])
    assert [each.result(0).offset for each in (others[0], future, others[1], others[2])] == [7, 8, 9, 10]
    assert offsets == [7, 10]


def test_wait_and_as_completed_accept_it(future: Any) -> None:
    done, other = future, type(future)()
    store(done)
    assert wait([done, other], 0).done == {done}
    timer = threading.Timer(0.05, store, [other])
    timer.start()
    assert set(as_completed([done, other], 10)) == {done, other}
    timer.join()


def test_it_can_be_awaited(future: Any) -> None:
    async def main() -> Receipt:
        asyncio.get_running_loop().call_soon(store, future)
        return await asyncio.wrap_future(future)

    assert asyncio.run(main()) == receipt()


@pytest.mark.parametrize("tie", ["callback", "attribute", "traceback"])
def test_a_future_in_a_reference_cycle_is_collected(tie: str) -> None:
    """The garbage collector does not track the twin until something could refer back to it."""
    intake = open_intake(SubmittedFuture)
    gone = weakref.ref(in_a_cycle(intake.take("orders", "k", b"x"), tie))
    intake.take_out()
    gc.collect()
    assert gone() is None


def in_a_cycle(future: Any, tie: str) -> Any:
    if tie == "attribute":
        future.order = [future]
    elif tie == "callback":
        future.add_done_callback(lambda done, itself=future: itself.done())
    if tie != "traceback":
        store(future)
        return future
    future.failed(0, RequestTimedOut("late"))
    try:
        future.result()
    except RequestTimedOut as error:
        kept = error  # this frame, and with it the future, hang on its traceback
        assert kept.__traceback__ is not None
    return future
