"""The calls of `MessagingService`, each with its checks, its work and its status.

Every error of an application is a status inside a successful answer; gRPC's own codes are for calls that are none.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from lanemq.clock import Clock
from lanemq.core.fronting.hand_outs import Ruling
from lanemq.grpc_front.access import Access
from lanemq.grpc_front.answers import OK, CallFailed, name_of, status_of
from lanemq.grpc_front.clients import LONG_POLL_MS, ClientTable, GrpcClient, answer_to, tags_in
from lanemq.grpc_front.consumers import Consumers
from lanemq.grpc_front.handing import Handing, Receive
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.port import CallHead, CallRefused, Parts
from lanemq.grpc_front.routes import Routes
from lanemq.grpc_front.sending import MessageSender
from lanemq.grpc_front.streams import ReceiveAnswer, TelemetryAnswer
from lanemq.model.errors import LaneError, RemoteProtocolError
from lanemq.model.units import Millis
from lanemq.wire.grpc.codec import decode, encode
from lanemq.wire.grpc.messages import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleRequest,
    ChangeInvisibleResponse,
    Code,
    ForwardRequest,
    HeartbeatRequest,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    ReceiveMessageRequest,
    SendMessageRequest,
    SendMessageResponse,
    Settings,
    Status,
    StatusResponse,
    TelemetryCommand,
    TerminationRequest,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

MIN_INVISIBLE_MS, MAX_INVISIBLE_MS = 1_000, 12 * 3_600_000
MAX_POLL_MS = 20_000
SPARE_SECONDS = 0.5
"""How long before the client's deadline a receive is answered."""
MAX_BATCH = 256
MAX_WAITING = 256
"""Receives that a client may have open: 4 for each topic of a push consumer are usual."""

_STALE = Status(Code.INVALID_RECEIPT_HANDLE, "the handle is not valid any more: the message is or was delivered again")
_NOT_NOW = Status(Code.HA_NOT_AVAILABLE, "the front does not reach the broker at the moment: try again")
_STATUS = {
    Ruling.STALE: _STALE,
    Ruling.NOT_NOW: _NOT_NOW,
    Ruling.COUNTED: OK,
    Ruling.ENDED: OK,
}


class FrontService:
    """One front. Made on its event loop."""

    def __init__(
        self, options: FrontOptions, access: Access, routes: Routes, sender: MessageSender, boot: str, clock: Clock
    ) -> None:
        self.options = options
        self.clients = ClientTable(options.max_clients)
        self.handing = Handing(boot, clock, Millis(round(options.longest_handler * 1000)))
        self.sender = sender
        self.consumers = Consumers(options, self.clients, self.handing, routes, clock)
        self.access, self._routes, self.clock = access, routes, clock
        self._unary: dict[str, tuple[type, Callable[..., Awaitable[object]], type]] = {
            "QueryRoute": (QueryRouteRequest, self._query_route, QueryRouteResponse),
            "Heartbeat": (HeartbeatRequest, self._heartbeat, StatusResponse),
            "SendMessage": (SendMessageRequest, self._send, SendMessageResponse),
            "QueryAssignment": (QueryAssignmentRequest, self._query_assignment, QueryAssignmentResponse),
            "AckMessage": (AckMessageRequest, self._acknowledge, AckMessageResponse),
            "ChangeInvisibleDuration": (ChangeInvisibleRequest, self._change_invisible, ChangeInvisibleResponse),
            "ForwardMessageToDeadLetterQueue": (ForwardRequest, self._forward, StatusResponse),
            "NotifyClientTermination": (TerminationRequest, self._terminate, StatusResponse),
        }

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({*self._unary, "ReceiveMessage", "Telemetry"})

    # the port

    async def answer(self, head: CallHead, body: bytes) -> bytes:
        kind, act, answered = self._unary[head.method]
        try:
            return encode(await act(self.caller(head), decode(kind, body)))
        except CallFailed as failed:
            return encode(answered(failed.status))
        except RemoteProtocolError as error:
            raise CallRefused("INVALID_ARGUMENT", str(error)) from None
        except LaneError as error:
            return encode(answered(status_of(error)))

    def caller(self, head: CallHead) -> GrpcClient:
        """The client of a call, which counts as seen; raises `CallFailed` for one without a valid signature."""
        user = self.access.user_of(head)
        return self.clients.of_call(head, user, now=self.clock.now())

    def stream(self, head: CallHead, body: bytes) -> Parts:
        return ReceiveAnswer(self, head, body)

    def converse(self, head: CallHead, messages: AsyncIterator[bytes]) -> Parts:
        return TelemetryAnswer(self, head, messages)

    # routes

    async def _query_route(self, client: GrpcClient, request: QueryRouteRequest) -> QueryRouteResponse:
        topic = name_of(request.topic, "topic")
        self.access.look(client.user, topic)
        return await self._routes.answer(topic, request.endpoints)

    async def _query_assignment(self, client: GrpcClient, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        topic, group = name_of(request.topic, "topic"), name_of(request.group, "group")
        self.access.consume(client.user, group, topic)
        return await self._routes.assignments(topic, request.endpoints)

    # sending

    async def _send(self, client: GrpcClient, request: SendMessageRequest) -> SendMessageResponse:
        for topic in {name_of(message.topic, "topic") for message in request.messages}:
            self.access.send(client.user, topic)
        return await self.sender.send(client.id, request.messages)

    # clients

    async def _heartbeat(self, client: GrpcClient, request: HeartbeatRequest) -> StatusResponse:
        if request.group is not None:
            group = name_of(request.group, "group")
            self.access.act_for(client.user, group)
        client.type = request.client_type or client.type
        return StatusResponse(OK)

    async def _terminate(self, client: GrpcClient, _: TerminationRequest) -> StatusResponse:
        self.clients.forget(client.id)
        self.handing.client_gone(client.id)
        return StatusResponse(OK)

    async def settings_for(self, client: GrpcClient, settings: Settings) -> TelemetryCommand:
        """Notes what a client says of itself, and answers with what it is told."""
        agent = settings.user_agent
        if agent is not None and agent.language:
            with contextlib.suppress(ValueError):
                client.language = type(client.language)(agent.language)
            client.version = agent.version[:64]
        client.type = settings.client_type or client.type
        ordered, subscription = False, settings.subscription
        if subscription is not None:
            group = name_of(subscription.group, "group")
            tags = {name_of(each.topic, "topic"): tags_in(each.expression) for each in subscription.subscriptions}
            for topic in tags:
                self.access.consume(client.user, group, topic)
            ordered = bool(tags) and await self.consumers.subscribe(client, group, tags, all_of_it=True)
        told = answer_to(
            settings, client.language, ordered=ordered,
            max_body_bytes=self.options.max_body_bytes, retries=self.options.retries,
        )  # fmt: skip
        return TelemetryCommand(OK, told)

    # receiving

    async def receive(self, head: CallHead, client: GrpcClient, request: ReceiveMessageRequest) -> Receive:
        """The call with its messages, without any if none came in time."""
        group = name_of(request.group, "group")
        topic = name_of(request.queue.topic if request.queue is not None else None, "topic")
        self.access.consume(client.user, group, topic)
        tags = tags_in(request.filter)
        if self.handing.waiting_of(client.id) >= MAX_WAITING:
            raise CallFailed(Code.TOO_MANY_REQUESTS, f"this client has {MAX_WAITING} receives open already")
        if client.group != group or client.tags.get(topic) != tags:
            await self.consumers.subscribe(client, group, {topic: tags})
        kept = self.consumers.group(group)
        invisible = None if request.auto_renew else _invisible(request)
        call = Receive(
            client, kept, topic, max(1, min(request.batch_size or 1, MAX_BATCH)), invisible,
            request.attempt_id or "", head.connection,
        )  # fmt: skip
        await self.handing.receive(call, _patience(head, request))
        if not call.hand_outs and kept.failure:
            raise CallFailed(Code.INTERNAL_SERVER_ERROR, f"group {group!r} is not served at the moment: {kept.failure}")
        return call

    # decisions

    async def _acknowledge(self, client: GrpcClient, request: AckMessageRequest) -> AckMessageResponse:
        group, topic = name_of(request.group, "group"), name_of(request.topic, "topic")
        self.access.act_for(client.user, group)
        entries = [
            AckMessageResultEntry(
                each.message_id,
                each.receipt_handle,
                _STATUS[self.handing.acknowledge(client, each.receipt_handle, group, topic)],
            )
            for each in request.entries
        ]
        statuses = [each.status for each in entries if each.status is not None]
        if not statuses:
            raise CallFailed(Code.BAD_REQUEST, "the request acknowledges nothing")
        same = all(status is statuses[0] for status in statuses)
        return AckMessageResponse(statuses[0] if same else Status(Code.MULTIPLE_RESULTS, "see the entries"), entries)

    async def _forward(self, client: GrpcClient, request: ForwardRequest) -> StatusResponse:
        """A handler failed. Answered OK also if the handle is stale: clients repeat anything else for ever.

        Without a lease they are to repeat it, or the message would stay with a client that has given it up.
        """
        group, topic = name_of(request.group, "group"), name_of(request.topic, "topic")
        self.access.act_for(client.user, group)
        ruling = self.handing.fail(client, request.receipt_handle, group, topic, None)
        return StatusResponse(_NOT_NOW if ruling is Ruling.NOT_NOW else OK)

    async def _change_invisible(self, client: GrpcClient, request: ChangeInvisibleRequest) -> ChangeInvisibleResponse:
        """A push consumer says that its handler failed, and when to try again; another one asks for more time.

        Its messages say which it is: after a restart of the front, clients are known by their calls only.
        """
        group, topic = name_of(request.group, "group"), name_of(request.topic, "topic")
        self.access.act_for(client.user, group)
        asked = Millis(request.invisible_duration.ms) if request.invisible_duration is not None else Millis(0)
        if not 0 <= asked <= MAX_INVISIBLE_MS:
            raise CallFailed(Code.ILLEGAL_INVISIBLE_TIME, f"{asked} ms is no invisible duration: use up to 12 hours")
        ruling, handle = self.handing.change(client, request.receipt_handle, group, topic, asked)
        return ChangeInvisibleResponse(_STATUS[ruling], handle)


def _invisible(request: ReceiveMessageRequest) -> Millis:
    asked = request.invisible_duration.ms if request.invisible_duration is not None else 0
    if not MIN_INVISIBLE_MS <= asked <= MAX_INVISIBLE_MS:
        raise CallFailed(
            Code.ILLEGAL_INVISIBLE_TIME, f"an invisible duration of {asked} ms is not allowed: 1 s to 12 hours"
        )
    return Millis(asked)


def _patience(head: CallHead, request: ReceiveMessageRequest) -> float:
    """How long a receive waits, in seconds: as it asks, and no longer than its client waits for the answer."""
    asked = request.long_polling_timeout.ms if request.long_polling_timeout is not None else LONG_POLL_MS
    seconds = min(asked, MAX_POLL_MS) / 1000
    if head.seconds_left is not None:
        seconds = min(seconds, head.seconds_left - SPARE_SECONDS)
    return max(0.0, seconds)
