"""Answers in several parts: a receive's messages, and a client's telemetry."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Protocol

from lanemq.clock import Clock
from lanemq.grpc_front.answers import OK, CallFailed, status_of
from lanemq.grpc_front.clients import ClientTable, GrpcClient
from lanemq.grpc_front.consumers import Consumers
from lanemq.grpc_front.delivery import wire_message
from lanemq.grpc_front.handing import Handing, Receive
from lanemq.grpc_front.port import CallHead, CallRefused
from lanemq.model.errors import LaneError, RemoteProtocolError
from lanemq.model.units import Millis
from lanemq.wire.grpc.codec import decode, encode
from lanemq.wire.grpc.messages import (
    Code,
    Instant,
    Nonce,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Settings,
    Status,
    TelemetryCommand,
)

_NOTHING = Status(Code.MESSAGE_NOT_FOUND, "no message at the moment")


class Answering(Protocol):
    """What an answer needs of the front's service."""

    clients: ClientTable
    handing: Handing
    consumers: Consumers
    clock: Clock

    def caller(self, head: CallHead) -> GrpcClient: ...

    async def receive(self, head: CallHead, client: GrpcClient, request: ReceiveMessageRequest) -> Receive: ...

    async def settings_for(self, client: GrpcClient, settings: Settings) -> TelemetryCommand: ...


class ReceiveAnswer:
    """The answer to one ReceiveMessage: its status, its messages, and the time of delivery."""

    def __init__(self, service: Answering, head: CallHead, body: bytes) -> None:
        self._service, self._head, self._body = service, head, body
        self._receive: Receive | None = None
        self._client: GrpcClient | None = None
        self._call = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        service, now = self._service, self._service.clock.now()
        try:
            self._client = client = service.caller(self._head)
            self._call = service.clients.alive.opened(client.id, self._head.connection, now=now)
            request = decode(ReceiveMessageRequest, self._body)
            self._receive = receive = await service.receive(self._head, client, request)
        except RemoteProtocolError as error:
            raise CallRefused("INVALID_ARGUMENT", str(error)) from None
        except (CallFailed, LaneError) as error:
            status = error.status if isinstance(error, CallFailed) else status_of(error)
            yield encode(ReceiveMessageResponse(status=status))
            return
        yield encode(ReceiveMessageResponse(status=OK if receive.hand_outs else _NOTHING))
        for each in receive.hand_outs:
            invisible = Millis(each.until - each.began)
            for at, message in enumerate(each.run.messages):
                yield encode(ReceiveMessageResponse(message=wire_message(message, each, at, invisible)))
        if receive.hand_outs:
            wall = Instant.of_ms(service.clock.wall())
            yield encode(ReceiveMessageResponse(delivery_timestamp=wall))

    def ended(self, *, complete: bool) -> None:
        if self._client is not None:
            now = self._service.clock.now()
            self._service.clients.alive.ended(self._client.id, self._call, broken=not complete, now=now)
        if not complete and self._receive is not None:
            self._service.handing.not_received(self._receive)


class TelemetryAnswer:
    """One telemetry call: settings in, settings out, for as long as the client keeps it open."""

    def __init__(self, service: Answering, head: CallHead, messages: AsyncIterator[bytes]) -> None:
        self._service, self._head, self._messages = service, head, messages
        self._client: GrpcClient | None = None
        self._call = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        service, now = self._service, self._service.clock.now()
        try:
            self._client = client = service.caller(self._head)
        except CallFailed as failed:
            yield encode(TelemetryCommand(failed.status))
            return
        self._call = service.clients.alive.opened(client.id, self._head.connection, now=now)
        messages = aiter(self._messages)
        while (body := await self._next(messages)) is not None:  # read when the client has taken the last answer
            yield encode(await self._answer(client, body))
        if service.consumers.leaving.is_set():
            yield encode(TelemetryCommand(OK, reconnect=Nonce(secrets.token_hex(4))))

    async def _next(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """What the client says next; None if it has ended, or is to go to another front."""
        reading = asyncio.create_task(_first_of(messages))
        leaving = asyncio.create_task(self._service.consumers.leaving.wait())
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            leaving.cancel()
            reading.cancel()

    async def _answer(self, client: GrpcClient, body: bytes) -> TelemetryCommand:
        try:
            command = decode(TelemetryCommand, body)
            if command.settings is None:
                return TelemetryCommand(OK)
            return await self._service.settings_for(client, command.settings)
        except (CallFailed, LaneError) as error:
            return TelemetryCommand(error.status if isinstance(error, CallFailed) else status_of(error))

    def ended(self, *, complete: bool) -> None:
        """A telemetry call is never complete: a client that ends says so, and one whose connection is lost cannot."""
        if self._client is not None:
            now = self._service.clock.now()
            self._service.clients.alive.ended(self._client.id, self._call, broken=True, now=now)


async def _first_of(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)
