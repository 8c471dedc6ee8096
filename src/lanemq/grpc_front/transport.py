"""The port on `grpcio`, the extra `lanemq[grpc]`.

gRPC does not report connections, but an open call ends when its connection is lost, and the peer's name contains its
port, so it names the connection. A client that does not answer pings for some seconds counts as lost.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from lanemq.grpc_front.port import CallHead, CallRefused, Parts, Service
from lanemq.model.errors import InvalidOption
from lanemq.net.address import Address
from lanemq.net.serving.server_tls import ServerTls, TlsMode
from lanemq.wire.grpc.messages import SERVICE

PING_EVERY_MS, PING_ANSWER_MS = 2_000, 3_000
"""A frozen client is noticed after at most their sum."""
MAX_PENDING = 100_000
"""Calls that wait to be begun. gRPC refuses some of more than 1000 by default, and clients send those again, behind
later ones: messages would be stored in another order than they were sent."""
MAX_CALLS = 10_000
"""Calls that one connection may have open. Some clients send more of them again, and so in another order."""
MESSAGE_ROOM = 512 * 1024
"""Bytes that a request may have besides a body."""

_STREAMS = frozenset({"ReceiveMessage"})
_CONVERSATIONS = frozenset({"Telemetry"})


class GrpcTransport:
    """A gRPC server on the running event loop."""

    def __init__(self, service: Service, methods: frozenset[str], *, max_body_bytes: int) -> None:
        self._service = service
        self._methods = methods
        limit = max_body_bytes + MESSAGE_ROOM
        self._server = grpc.aio.server(
            options=[
                ("grpc.keepalive_time_ms", PING_EVERY_MS),
                ("grpc.keepalive_timeout_ms", PING_ANSWER_MS),
                ("grpc.http2.ping_timeout_ms", PING_ANSWER_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 16 * 1024),
                ("grpc.max_concurrent_streams", MAX_CALLS),
                ("grpc.server.max_pending_requests", MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((_Handlers(self),))

    async def start(self, listen: Address, tls: ServerTls | None) -> Address:
        """Listens; returns the address. Raises `OSError` if that is not possible."""
        try:
            if tls is None:
                port = self._server.add_insecure_port(str(listen))
            else:
                port = self._server.add_secure_port(str(listen), _credentials(tls))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {error}") from error
        await self._server.start()
        return Address(listen.host, port)

    async def stop(self, seconds: float) -> None:
        """Tells clients to connect elsewhere, accepts no more calls, and waits so long for those that are under way."""
        await self._server.stop(seconds)

    # calls

    def handler(self, method: str) -> Any:
        """gRPC's handler of a method; None if the service does not have it."""
        if method not in self._methods:
            return None
        if method in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(self._stream(method))
        if method in _CONVERSATIONS:
            return grpc.stream_stream_rpc_method_handler(self._converse(method))
        return grpc.unary_unary_rpc_method_handler(self._unary(method))

    def _unary(self, method: str) -> Any:
        async def answer(body: bytes, context: Any) -> bytes:
            try:
                return await self._service.answer(_head(method, context), body)
            except CallRefused as refused:
                await context.abort(grpc.StatusCode[refused.code], str(refused))
                raise

        return answer

    def _stream(self, method: str) -> Any:
        async def answer(body: bytes, context: Any) -> None:
            await _write_all(self._service.stream(_head(method, context), body), context)

        return answer

    def _converse(self, method: str) -> Any:
        async def converse(messages: AsyncIterator[bytes], context: Any) -> None:
            await _write_all(self._service.converse(_head(method, context), messages), context)

        return converse


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a call by its path."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport = transport

    def service(self, details: Any) -> Any:
        _, service, method = details.method.rsplit("/", 2) if details.method.count("/") == 2 else ("", "", "")
        return self._transport.handler(method) if service == SERVICE else None


async def _write_all(parts: Parts, context: Any) -> None:
    """Writes all parts. The answer is complete when the call is over and was not cancelled: until then a client that
    goes away may not have it."""
    written = False

    def over(context: Any) -> None:
        parts.ended(complete=written and not context.cancelled())

    context.add_done_callback(over)
    try:
        async for part in parts:
            await context.write(part)
        written = True
    except CallRefused as refused:
        await context.abort(grpc.StatusCode[refused.code], str(refused))
    except asyncio.CancelledError:
        raise
    except (grpc.RpcError, asyncio.InvalidStateError):  # the client is gone
        with contextlib.suppress(Exception):
            context.cancel()


def _head(method: str, context: Any) -> CallHead:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return CallHead(method, metadata, context.peer(), context.time_remaining())


def _credentials(tls: ServerTls) -> Any:
    if tls.mode is not TlsMode.ENFORCING:
        raise InvalidOption("lanemq grpc cannot accept clients with and without TLS on one port")
    certificate = tls.cert.read_bytes()
    key = (tls.key or tls.cert).read_bytes()
    roots = tls.client_ca.read_bytes() if tls.client_ca is not None else None
    return grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=roots is not None)
