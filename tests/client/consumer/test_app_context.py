"""`App` as programs use it: typed events, dependencies, middleware, lifespan, and its ways to run. Real broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

import pydantic
import pytest
from tests.client.consumer.fakes import message
from tests.client.consumer.with_broker import WAIT, Inbox
from tests.client.consumer.worker_fixture import handler_call, run_of

from lanemq import App, AsyncAdmin, AsyncParkedAdmin, Depends, InvalidOption, Message, Producer, UsageError
from lanemq.client import codec
from lanemq.client.admin.calls import AdminClient
from lanemq.client.consumer.turns.handler import batch_handler
from lanemq.core.consuming.runs import HOPELESS
from lanemq.testing.embedded import EmbeddedBroker


class Paid(pydantic.BaseModel):
    order: int
    cents: int = pydantic.Field(gt=0)


class Pool:
    def __init__(self) -> None:
        self.open = True


def send(broker: EmbeddedBroker, topic: str, *events: Any) -> None:
    with Producer(broker.address) as producer:
        for event in events:
            producer.send(topic, event, key=f"order-{event.order}")


def test_a_pydantic_model_is_sent_and_handled(broker: EmbeddedBroker, topic: str, group: str) -> None:
    inbox = Inbox()
    app = App(broker.address, group=group)

    @app.ordered(topic)
    def on_paid(event: Paid, message: Message) -> None:
        inbox.add((message.key, event))

    send(broker, topic, Paid(order=1, cents=5), Paid(order=1, cents=7))
    with app:
        assert inbox.wait(2) == [("order-1", Paid(order=1, cents=5)), ("order-1", Paid(order=1, cents=7))]


def test_without_the_check_at_registration_every_message_would_be_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what users met before annotations became decoders at registration."""

    class Unknown:
        pass

    def handle(event: Unknown) -> None: ...

    with pytest.raises(InvalidOption, match="Unknown"):
        handler_call(handle)
    monkeypatch.setattr(codec, "_foreign_types", lambda wanted: ())
    given = message(0, body=b"{}")
    stop = batch_handler(handler_call(handle), batched=False)((given,), run_of(given))
    assert stop is not None
    assert stop.outcome is HOPELESS


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_lifespan_dependencies_and_middleware(broker: EmbeddedBroker, topic: str, group: str, kind: str) -> None:
    inbox, pools = Inbox(), list[Pool]()

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        pools.append(Pool())
        app.provide(pools[0])
        yield
        pools[0].open = False

    app = App(broker.address, group=group, lifespan=lifespan)

    @app.middleware
    def around(messages: Sequence[Message]) -> Iterator[None]:
        inbox.add("before")
        yield
        inbox.add("after")

    def handle(event: Paid, pool: Annotated[Pool, Depends()]) -> None:
        inbox.add((event.cents, pool.open, pool is pools[0]))

    async def handle_async(event: Paid, pool: Annotated[Pool, Depends()]) -> None:
        handle(event, pool)

    app.ordered(topic)(handle if kind == "plain" else handle_async)
    send(broker, topic, Paid(order=1, cents=5))
    with app:
        assert inbox.wait(3) == ["before", (5, True, True), "after"]
    assert not pools[0].open


def test_a_handler_whose_dependency_nothing_provides_does_not_start(broker: EmbeddedBroker, topic: str) -> None:
    app = App(broker.address, group="g")

    @app.ordered(topic)
    def handle(event: Paid, pool: Annotated[Pool, Depends()]) -> None: ...

    with pytest.raises(InvalidOption, match=r"needs pool: Pool.*app\.provide"):
        app.start()


def test_an_app_runs_on_the_loop_of_the_program_while_a_block_lasts(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    inbox = Inbox()
    app = App(broker.address, group=group)

    @app.ordered(topic)
    async def handle(event: Paid) -> None:
        inbox.add(event.cents)

    async def program() -> None:
        async with app:
            await asyncio.to_thread(send, broker, topic, Paid(order=1, cents=5))
            assert await asyncio.to_thread(inbox.wait, 1) == [5]

    asyncio.run(asyncio.wait_for(program(), WAIT))


def test_an_error_at_the_start_leaves_the_block_at_once(broker: EmbeddedBroker) -> None:
    async def program() -> None:
        async with App(broker.address, group="g"):
            raise AssertionError("an app without handlers has started")

    with pytest.raises(InvalidOption, match="nothing is subscribed"):
        asyncio.run(asyncio.wait_for(program(), WAIT))


def test_run_inside_an_event_loop_says_what_to_use() -> None:
    async def notebook() -> None:
        App("localhost:9876", group="g").run()

    with pytest.raises(UsageError, match=r"notebook.*app\.start\(\).*await app\.run_async\(\)"):
        asyncio.run(notebook())


@pytest.mark.parametrize("wrong", [lambda app: None, lambda app: 5])
def test_a_lifespan_that_is_no_context_manager_is_refused(wrong: Any, topic: str, broker: EmbeddedBroker) -> None:
    app = App(broker.address, group="g", lifespan=wrong)
    app.ordered(topic)(lambda event: None)
    with pytest.raises(InvalidOption, match="must return a context manager"):
        app.start()


def test_administration_on_an_event_loop(broker: EmbeddedBroker, topic: str) -> None:
    async def program() -> None:
        async with AsyncAdmin(broker.address) as admin, AsyncParkedAdmin(broker.address) as parked:
            found = await asyncio.gather(admin.describe_topic(topic), admin.topics(), parked.lanes(topic=topic))
            assert found[0].topic == topic
            assert topic in found[1]
            assert found[2] == []

    asyncio.run(program())


@pytest.mark.parametrize("kind", [AsyncAdmin, AsyncParkedAdmin])
def test_every_call_of_administration_has_an_async_twin(kind: Any) -> None:
    blocking = {name for name in dir(kind._kind) if not name.startswith("_")} - {*dir(AdminClient)}
    assert blocking
    assert blocking <= {*dir(kind)}


def test_what_is_registered_after_the_start_is_refused(broker: EmbeddedBroker, topic: str, group: str) -> None:
    app = App(broker.address, group=group)
    app.ordered(topic)(lambda event: None)

    def around(messages: Sequence[Message]) -> Iterator[None]:
        yield

    with app:
        with pytest.raises(UsageError, match="a handler of 'other' came after the start"):
            app.ordered("other")(lambda event: None)
        with pytest.raises(UsageError, match="around came after the start"):
            app.middleware(around)


def test_a_block_on_the_programs_own_loop_may_be_entered_again(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """As tests of a web application do, whose lifespan enters one app of the module."""
    inbox = Inbox()
    app = App(broker.address, group=group)

    @app.ordered(topic)
    async def on_paid(event: Paid) -> None:
        inbox.add(event)

    async def once(paid: Paid) -> None:
        async with app:
            send(broker, topic, paid)
            await asyncio.to_thread(inbox.wait, paid.order)

    for paid in (Paid(order=1, cents=5), Paid(order=2, cents=5)):
        asyncio.run(once(paid))
    assert inbox.wait(2) == [Paid(order=1, cents=5), Paid(order=2, cents=5)]
