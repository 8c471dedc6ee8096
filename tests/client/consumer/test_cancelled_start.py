"""A start that a time-out of the program cancels leaves nothing running that the program could not end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lanemq import App, AsyncConsumer, Message, Producer
from lanemq.testing.embedded import EmbeddedBroker


@pytest.mark.parametrize("kind", ["app", "consumer"])
def test_a_block_that_is_not_entered_consumes_nothing(kind: str) -> None:
    async def main(address: str) -> None:
        before = asyncio.all_tasks()
        got: list[object] = []

        def member() -> App | AsyncConsumer:
            if kind == "consumer":
                return AsyncConsumer(address, group="g", topics="orders")
            app = App(address, group="g")

            @app.ordered("orders")
            async def handler(value: object, message: Message) -> None:
                got.append(value)

            return app

        for steps in range(40):
            entering = asyncio.create_task(member().__aenter__())
            for _ in range(steps):
                await asyncio.sleep(0)
            if entering.done():
                break
            entering.cancel()
            await asyncio.wait([entering])
            assert entering.cancelled()
            assert asyncio.all_tasks() == before
        assert steps > 1
        assert got == []

    with EmbeddedBroker() as broker:
        with Producer(broker.address, create=["orders"]) as producer:
            producer.send("orders", 1, key="k")
        asyncio.run(main(broker.address))


def test_an_app_whose_lifespan_failed_can_be_entered_again() -> None:
    attempts = 0

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ConnectionError("the database is away")
        yield

    async def main(address: str) -> None:
        app, got = App(address, group="g", lifespan=lifespan), asyncio.Event()

        @app.ordered("orders")
        async def handler(value: object, message: Message) -> None:
            got.set()

        with pytest.raises(ConnectionError):
            await app.__aenter__()
        async with app:
            await asyncio.wait_for(got.wait(), 30)

    with EmbeddedBroker() as broker:
        with Producer(broker.address, create=["orders"]) as producer:
            producer.send("orders", 1, key="k")
        asyncio.run(main(broker.address))
