"""The future of `submit` on an event loop behaves like an `asyncio.Future`, compiled and pure."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.client.producer.engine_sim import open_intake
from tests.fast.both import needs_twins, references, twins

from lanemq.client.producer.batches import PendingMessage
from lanemq.client.producer.outcomes import Stored, notify_all
from lanemq.client.producer.waiters import LoopFuture, SingleWaiter, TaskWaiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.model.errors import RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

QUEUE = MessageQueue("orders", "fake", 1)
KINDS = [LoopFuture, references["LoopFuture"]] if twins else [LoopFuture]
Future = Callable[[], Any]


@pytest.fixture(params=KINDS, ids=["compiled", "reference"][-len(KINDS) :])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Future], None]:
    def run(kind: Future) -> None:
        asyncio.run(test(kind))

    run.__name__ = test.__name__
    return run


def receipt(offset: int = 7) -> Receipt:
    return Receipt(QUEUE, QueueOffset(offset), "id", "k", StoredAs.DURABLE, False)


def store(*futures: Any) -> None:
    """Settles futures as the engine does."""
    messages = [PendingMessage(b"x", "", "id", "k", waiter=each) for each in futures]
    notify_all([Stored(messages, QUEUE, 7, StoredAs.DURABLE, False)])


async def awaited(future: Awaitable[Any]) -> Any:
    return await future


@on_a_loop
async def test_asyncio_takes_it_for_a_future(kind: Future) -> None:
    future = kind()
    assert asyncio.isfuture(future)
    assert isinstance(future, asyncio.Future)
    assert asyncio.ensure_future(future) is future
    assert future.get_loop() is asyncio.get_running_loop()
    assert not future.done()
    assert not future.cancelled()
    for read in (future.result, future.exception):
        with pytest.raises(asyncio.InvalidStateError):
            read()


@on_a_loop
async def test_it_ends_with_its_receipt(kind: Future) -> None:
    future = kind()
    store(future)
    assert future.done()
    assert future.result() == receipt()
    assert future.result() is future.result()
    assert future.exception() is None
    assert await future == receipt()
    assert "result=Receipt" in repr(future)


@on_a_loop
async def test_a_waiting_task_is_woken(kind: Future) -> None:
    future = kind()
    tasks = [asyncio.create_task(awaited(future)) for _ in range(3)]
    await asyncio.sleep(0)
    store(future)
    assert [await task for task in tasks] == [receipt()] * 3


@on_a_loop
async def test_gather_wait_and_as_completed_accept_pending_and_ended_ones(kind: Future) -> None:
    for way in (asyncio.gather, asyncio.wait, asyncio.as_completed):
        ended, pending = [kind() for _ in range(3)], [kind() for _ in range(3)]
        store(*ended)
        asyncio.get_running_loop().call_soon(partial(store, *pending))
        if way is asyncio.gather:
            assert await asyncio.gather(*ended, *pending) == [receipt(7), receipt(8), receipt(9)] * 2
        elif way is asyncio.wait:
            assert await asyncio.wait([*ended, *pending]) == ({*ended, *pending}, set())
        else:
            assert len([await each for each in asyncio.as_completed([*ended, *pending])]) == 6


@on_a_loop
async def test_it_ends_with_its_error(kind: Future) -> None:
    first, second = kind(), kind()
    error = RequestTimedOut("late")
    first.failed(0, error)
    second.failed(1, error)
    for future in (first, second):
        assert future.exception() is error
        for _ in range(2):
            with pytest.raises(RequestTimedOut, match="late"):
                await future
    assert await asyncio.gather(first, second, return_exceptions=True) == [error, error]


@on_a_loop
async def test_only_an_error_that_was_not_read_is_reported(kind: Future) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    read, unread, error = kind(), kind(), RequestTimedOut("late")
    for future in (read, unread):
        future.failed(0, error)
    with pytest.raises(RequestTimedOut):
        read.result()
    del read, future
    assert reported == []
    del unread
    assert reported == [error]


@on_a_loop
async def test_a_cancelled_one_ignores_its_outcome(kind: Future) -> None:
    for end in (store, lambda future: future.failed(0, RequestTimedOut("late"))):
        future = kind()
        task = asyncio.create_task(awaited(future))
        await asyncio.sleep(0)
        assert future.cancel("enough")
        assert not future.cancel()
        end(future)
        assert future.cancelled()
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        with pytest.raises(asyncio.CancelledError):
            future.result()


@on_a_loop
async def test_a_cancelled_task_cancels_it_and_a_shield_does_not(kind: Future) -> None:
    plain, shielded = kind(), kind()
    tasks = [asyncio.create_task(awaited(plain)), asyncio.create_task(awaited(asyncio.shield(shielded)))]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert plain.cancelled()
    assert not shielded.done()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(shielded, 0)


@on_a_loop
async def test_callbacks_run_later_once_each_in_order(kind: Future) -> None:
    future, calls = kind(), list[str]()
    for name in ("first", "second", "third"):
        future.add_done_callback(lambda _, name=name: calls.append(name))
    store(future)
    future.add_done_callback(lambda _: calls.append("afterwards"))
    assert calls == []
    await asyncio.sleep(0)
    assert calls == ["first", "second", "third", "afterwards"]


@on_a_loop
async def test_a_callback_that_was_removed_does_not_run(kind: Future) -> None:
    future, calls = kind(), list[Any]()
    other = calls.clear
    for callback in (calls.append, other, calls.append):
        future.add_done_callback(callback)
    assert future.remove_done_callback(other) == 1
    assert future.remove_done_callback(other) == 0
    store(future)
    await asyncio.sleep(0)
    assert calls == [future, future]
    assert future.remove_done_callback(calls.append) == 0


@on_a_loop
async def test_a_callback_runs_in_the_context_in_which_it_was_added(kind: Future) -> None:
    where, seen = contextvars.ContextVar("where", default="outside"), list[str]()
    own = contextvars.copy_context()
    own.run(where.set, "own")
    futures = [kind(), kind()]
    futures[0].add_done_callback(lambda _: seen.append(where.get()), context=own)
    where.set("here")
    futures[1].add_done_callback(lambda _: seen.append(where.get()))
    where.set("later")
    store(*futures)
    await asyncio.sleep(0)
    assert seen == ["own", "here"]


@on_a_loop
async def test_a_callback_that_raises_is_reported_and_the_others_run(kind: Future) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    futures, calls = [kind() for _ in range(3)], list[Any]()
    futures[0].add_done_callback(calls.append)
    futures[1].add_done_callback(lambda _: calls.missing())  # type: ignore[attr-defined]
    futures[2].add_done_callback(calls.append)
    store(*futures)
    await asyncio.sleep(0)
    assert calls == [futures[0], futures[2]]
    assert [type(each) for each in reported] == [AttributeError]


def test_a_callback_that_ends_the_program_leaves_the_others_to_the_loop(kind: Future) -> None:
    loop = asyncio.new_event_loop()
    calls: list[Any] = []

    async def settle() -> None:
        futures = [kind() for _ in range(3)]
        futures[0].add_done_callback(lambda _: exit_now())
        for future in futures[1:]:
            future.add_done_callback(calls.append)
        store(*futures)
        await asyncio.sleep(0)

    def exit_now() -> None:
        raise SystemExit

    task = loop.create_task(settle())
    with pytest.raises(SystemExit):
        loop.run_until_complete(task)
    loop.run_until_complete(task)
    loop.close()
    assert len(calls) == 2


@on_a_loop
async def test_it_ends_once(kind: Future) -> None:
    future = kind()
    future.set_result(receipt())
    assert await future == receipt()
    for again in (partial(future.set_result, 1), partial(future.set_exception, ValueError())):
        with pytest.raises(asyncio.InvalidStateError):
            again()
    with pytest.raises(TypeError):
        kind().set_exception(StopIteration())


@on_a_loop
async def test_a_failed_one_whose_error_refers_to_it_is_garbage_collected(kind: Future) -> None:
    """The garbage collector does not track what the inbox makes, until it fails."""
    intake = open_intake(kind)

    async def fails() -> weakref.ref[Any]:
        future = intake.take("orders", "k", b"x")
        future.failed(0, RequestTimedOut("late"))
        try:
            await future
        except RequestTimedOut as error:
            cycle = error  # noqa: F841 - the error refers to this frame, and the frame to error and future
        return weakref.ref(future)

    gone = await fails()
    intake.take_out()
    gc.collect()
    assert gone() is None


@on_a_loop
async def test_a_sender_that_waits_has_such_a_future_too(kind: Future) -> None:
    waiter = TaskWaiter(loop=asyncio.get_running_loop())
    assert isinstance(waiter, SingleWaiter)
    task = asyncio.create_task(awaited(waiter))
    await asyncio.sleep(0)
    store(waiter)
    assert await task == receipt()


@needs_twins
def test_callbacks_of_many_take_one_place_in_the_queue_of_their_loop() -> None:
    async def scheduled(kind: Any) -> int:
        loop, futures = asyncio.get_running_loop(), [kind() for _ in range(100)]
        gathered = asyncio.gather(*futures)
        call_soon, count = loop.call_soon, 0

        def counted(*arguments: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            return call_soon(*arguments, **more)

        loop.call_soon = counted  # type: ignore[method-assign]
        store(*futures)
        loop.call_soon = call_soon  # type: ignore[method-assign]
        assert await gathered == [receipt(7 + index) for index in range(100)]
        return count

    assert asyncio.run(scheduled(LoopFuture)) == 1
    assert asyncio.run(scheduled(references["LoopFuture"])) == 100


@needs_twins
def test_the_futures_of_two_loops_do_not_share_their_callbacks() -> None:
    loops = [asyncio.new_event_loop() for _ in range(2)]
    calls: dict[asyncio.AbstractEventLoop, list[int]] = {loop: [] for loop in loops}
    for number in range(3):
        for loop in loops:
            future: Any = LoopFuture(loop=loop)
            future.add_done_callback(lambda _, loop=loop, number=number: calls[loop].append(number))
            store(future)
    for loop in loops:
        loop.run_until_complete(asyncio.sleep(0))
        assert calls.pop(loop) == [0, 1, 2]
        assert all(not others for others in calls.values())
        loop.close()
