"""Messages collected in a block and sent at its end, for both producers; nothing is sent if it ends with an error."""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from lanemq.client.producer.packing import Many, Outgoing
from lanemq.client.receipt import Receipt


class _SendsMany(Protocol):
    def send_many(self, topic: str, messages: Many) -> list[Receipt]: ...


class _SendsManyAsync(Protocol):
    async def send_many(self, topic: str, messages: Many) -> list[Receipt]: ...


class _Collected:
    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._messages: list[Outgoing] = []
        self.receipts: list[Receipt] = []

    def add(
        self,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._messages.append(Outgoing(value, key, tag, keys, properties))


class Batch(_Collected):
    """`with producer.batch("orders") as batch`; `batch.receipts` afterwards."""

    def __init__(self, producer: _SendsMany, topic: str) -> None:
        super().__init__(topic)
        self._producer = producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.receipts = self._producer.send_many(self._topic, self._messages)


class AsyncBatch(_Collected):
    """`async with producer.batch("orders") as batch`; `batch.receipts` afterwards."""

    def __init__(self, producer: _SendsManyAsync, topic: str) -> None:
        super().__init__(topic)
        self._producer = producer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.receipts = await self._producer.send_many(self._topic, self._messages)
