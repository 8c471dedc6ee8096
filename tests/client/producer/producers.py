"""Both producers with one interface, so that every test runs with both."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

import pytest

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.base import ProducerBase
from lanemq.client.producer.engine import SENDING
from lanemq.client.producer.freezes import Frozen
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt

T = TypeVar("T")


@contextlib.contextmanager
def sending(**limits: int) -> Iterator[None]:
    """Producers that are made in the block have other limits than all programs have, such as smaller batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProducerBase, "_sending", replace(SENDING, **limits))
        yield


class Pending(Protocol):
    def result(self, timeout: float | None = None) -> Receipt: ...


class Blocking:
    """The blocking producer as it is."""

    def __init__(self, servers: object, **settings: Any) -> None:
        self.producer = Producer(str(servers), **settings)

    def send(self, topic: str, value: object, **how: Any) -> Receipt:
        return self.producer.send(topic, value, **how)

    def submit(self, topic: str, value: object, **how: Any) -> Pending:
        return self.producer.submit(topic, value, **how)

    def send_many(self, topic: str, messages: Any) -> Sequence[Receipt]:
        return self.producer.send_many(topic, messages)

    def send_oneway(self, topic: str, value: object, **how: Any) -> None:
        self.producer.send_oneway(topic, value, **how)

    def batch(self, topic: str, messages: list[tuple[str, object]]) -> Sequence[Receipt]:
        with self.producer.batch(topic) as batch:
            for key, value in messages:
                batch.add(value, key=key)
        return batch.receipts

    def flush(self) -> None:
        self.producer.flush()

    def resume(self, topic: str, **how: Any) -> None:
        self.producer.resume(topic, **how)

    def drop(self, topic: str, key: Any) -> int:
        return self.producer.drop(topic, key=key)

    def frozen_keys(self, topic: str | None = None) -> list[Frozen]:
        return self.producer.frozen_keys(topic)

    def close(self, timeout: float | None = None) -> None:
        self.producer.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OnALoop:
    """The asyncio producer, on a loop in a thread of its own."""

    def __init__(self, servers: object, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.producer = AsyncProducer(str(servers), **settings)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def send(self, topic: str, value: object, **how: Any) -> Receipt:
        return self.run(self.producer.send(topic, value, **how))

    def submit(self, topic: str, value: object, **how: Any) -> Pending:
        future = self.run(self.producer.submit(topic, value, **how))
        return asyncio.run_coroutine_threadsafe(_wait(future), self._loop)

    def send_many(self, topic: str, messages: Any) -> Sequence[Receipt]:
        return self.run(self.producer.send_many(topic, messages))

    def send_oneway(self, topic: str, value: object, **how: Any) -> None:
        self.run(self.producer.send_oneway(topic, value, **how))

    def batch(self, topic: str, messages: list[tuple[str, object]]) -> Sequence[Receipt]:
        async def main() -> Sequence[Receipt]:
            async with self.producer.batch(topic) as batch:
                for key, value in messages:
                    batch.add(value, key=key)
            return batch.receipts

        return self.run(main())

    def flush(self) -> None:
        self.run(self.producer.flush())

    def resume(self, topic: str, **how: Any) -> None:
        self.run(self.producer.resume(topic, **how))

    def drop(self, topic: str, key: Any) -> int:
        async def on_the_loop() -> int:
            return self.producer.drop(topic, key=key)

        return self.run(on_the_loop())

    def frozen_keys(self, topic: str | None = None) -> list[Frozen]:
        async def on_the_loop() -> list[Frozen]:
            return self.producer.frozen_keys(topic)

        return self.run(on_the_loop())

    def close(self, timeout: float | None = None) -> None:
        self.run(self.producer.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.run(_settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _wait(future: asyncio.Future[Receipt]) -> Receipt:
    return await future


async def _settle() -> None:
    """Runs the loop a few times, so that transports close."""
    for _ in range(5):
        await asyncio.sleep(0)


Open = Callable[..., Blocking | OnALoop]
"""Creates one of the two from a server and settings."""
