"""What a handler sets in a `ContextVar` ends with its turn; what was set before the start is seen by every turn."""

import asyncio
import decimal
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from tests.client.consumer.fakes import message
from tests.client.consumer.with_broker import Inbox
from tests.client.consumer.worker_fixture import handler_call, run_of

from lanemq import App, Message, Producer
from lanemq.client.consumer.turns import workers
from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.handler import async_batch_handler
from lanemq.clock import SystemClock
from lanemq.core.consuming.busy_workers import Worker
from lanemq.testing.embedded import EmbeddedBroker

TENANT: ContextVar[str] = ContextVar("TENANT", default="none")


def handler_of(kind: str, inbox: Inbox) -> Callable[..., Any]:
    """A handler that reports what it finds in the variable, and sets it."""

    def one(message: Message) -> None:
        inbox.add(TENANT.get())
        TENANT.set(f"offset {message.queue_offset}")

    def batch(messages: list[Message]) -> None:
        one(messages[0])

    async def one_async(message: Message) -> None:
        await asyncio.sleep(0)
        one(message)
        await asyncio.sleep(0.001)
        assert TENANT.get() == f"offset {message.queue_offset}", "the whole turn has one context"

    async def batch_async(messages: list[Message]) -> None:
        await one_async(messages[0])

    kinds: dict[str, Callable[..., Any]] = {
        "one": one,
        "batch": batch,
        "one async": one_async,
        "batch async": batch_async,
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["one", "batch", "one async", "batch async"])
def test_every_turn_has_a_copy_of_the_context_of_the_start(
    broker: EmbeddedBroker, topic: str, group: str, kind: str
) -> None:
    inbox, size = Inbox(), 2 if "batch" in kind else 1
    app = App(broker.address, group=group)
    app.ordered(topic, lanes=1, batch_size=size)(handler_of(kind, inbox))
    with Producer(broker.address) as producer:
        producer.send_many(topic, [("k", number) for number in range(6)])
    context = copy_context()
    context.run(TENANT.set, "started")
    context.run(app.start)
    try:
        assert set(inbox.wait(6 // size)) == {"started"}
    finally:
        app.stop()
    assert (context[TENANT], TENANT.get()) == ("started", "none")


@pytest.mark.parametrize("kind", ["one", "one async"])
def test_a_turn_sees_what_the_lifespan_has_set(broker: EmbeddedBroker, topic: str, group: str, kind: str) -> None:
    inbox = Inbox()

    async def lifespan(_: App) -> AsyncIterator[None]:
        TENANT.set("lifespan")
        yield

    app = App(broker.address, group=group, lifespan=lifespan)
    app.ordered(topic)(handler_of(kind, inbox))
    with Producer(broker.address) as producer:
        producer.send(topic, 1, key="k")
    with app:
        assert inbox.wait(1) == ["lifespan"]


def run_async(*handlers: Callable[..., Any]) -> list[Any]:
    """Runs the handlers as turns of one worker's task, on a loop of their own."""

    async def main() -> list[Any]:
        ends = []
        for handler in handlers:
            worker = Worker[Message]()
            worker.waiting.append(run_of(message(0)))
            called = async_batch_handler(handler_call(handler), batched=False)
            ends.append(await workers.run_worker_async(worker, called, 1, SystemClock(), TurnTimes()))
        return ends

    return asyncio.run(main())


def test_without_a_context_for_each_turn_the_next_one_would_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    inbox = Inbox()
    handler = handler_of("one async", inbox)
    run_async(handler, handler)
    monkeypatch.setattr(workers, "_in_own_context", lambda handler, batch, run: handler(batch, run))
    run_async(handler, handler)
    assert inbox.items == ["none", "none", "none", "offset 0"]


def test_an_async_turn_is_cancelled_fails_and_starts_tasks_as_any_coroutine() -> None:
    seen: list[Any] = []

    async def times_out(message: Message) -> None:
        TENANT.set("of the turn")
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            seen.append(TENANT.get())

    async def inherits(message: Message) -> None:
        TENANT.set("of the turn")

        async def child() -> str:
            return TENANT.get()

        seen.append(await asyncio.create_task(child()))
        seen.append(await asyncio.to_thread(TENANT.get))

    async def fails(message: Message) -> None:
        await asyncio.sleep(0)
        raise KeyError("of the handler")

    *succeeded, failed = run_async(times_out, inherits, fails)
    assert seen == ["of the turn"] * 3
    assert [each.messages for each in succeeded] == [1, 1]
    assert isinstance(failed.end.stop.error, KeyError)


def test_threads_of_a_consumer_do_not_share_the_precision_of_decimals(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """Programs set it in place, in an object that a copied context would share."""
    inbox = Inbox()
    app = App(broker.address, group=group)

    @app.ordered(topic)
    def on_event(message: Message) -> None:
        decimal.getcontext().prec = 7
        inbox.add(1)

    with Producer(broker.address) as producer:
        producer.send(topic, 1, key="k")
    with decimal.localcontext(prec=50), app:
        inbox.wait(1)
        assert decimal.getcontext().prec == 50
