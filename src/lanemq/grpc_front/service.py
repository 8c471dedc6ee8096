"""The calls of `MessagingService`, each with its checks, its work and its status.

Every error of an application is a status inside a successful answer; gRPC's own codes are for calls that are none.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from lanemq.clock import Clock
from lanemq.core.fronting.hand_outs import Ruling
from lanemq.grpc_front.access import Access
from lanemq.grpc_front.answers import OK, CallFailed, name_of, status_of
from lanemq.grpc_front.clients import LONG_POLL_MS, ClientTable, GrpcClient, answer_to, tags_in
from lanemq.grpc_front.delivery import wire_message
from lanemq.grpc_front.groups import STOP_SECONDS, FrontGroup, Wanted
from lanemq.grpc_front.handing import Handing, Receive
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.port import CallHead, CallRefused, Parts
from lanemq.grpc_front.routes import Routes
from lanemq.grpc_front.sending import MessageSender
from lanemq.model.errors import LaneError, RemoteProtocolError
from lanemq.model.names import check_group
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
    Instant,
    Nonce,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    Settings,
    Status,
    StatusResponse,
    TelemetryCommand,
    TerminationRequest,
)
from lanemq.wire.lane_bodies import FrontClientBody, FrontClientsBody

log = logging.getLogger(__name__)
T = TypeVar("T")

MIN_INVISIBLE_MS, MAX_INVISIBLE_MS = 1_000, 12 * 3_600_000
MAX_POLL_MS = 20_000
SPARE_SECONDS = 0.5
"""How long before the client's deadline a receive is answered."""
MAX_BATCH = 256
MAX_WAITING = 256
"""Receives that a client may have open: 4 for each topic of a push consumer are usual."""
TICK_SECONDS = 0.1

_STALE = Status(Code.INVALID_RECEIPT_HANDLE, "the handle is not valid any more: the message is or was delivered again")
_NOT_NOW = Status(Code.HA_NOT_AVAILABLE, "the front does not reach the broker at the moment: try again")
_NOTHING = Status(Code.MESSAGE_NOT_FOUND, "no message at the moment")
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
        self.groups: dict[str, FrontGroup] = {}
        self.handing = Handing(boot, clock, Millis(round(options.longest_handler * 1000)))
        self.sender = sender
        self.draining = False
        self.leaving = asyncio.Event()
        """Clients are to go to another front."""
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
        return _Received(self, head, body)

    def converse(self, head: CallHead, messages: AsyncIterator[bytes]) -> Parts:
        return _Telemetry(self, head, messages)

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
            ordered = bool(tags) and await self._subscribe(client, group, tags, all_of_it=True)
        told = answer_to(
            settings, client.language, ordered=ordered,
            max_body_bytes=self.options.max_body_bytes, retries=self.options.retries,
        )  # fmt: skip
        return TelemetryCommand(OK, told)

    async def _subscribe(self, client: GrpcClient, name: str, tags: dict[str, str], *, all_of_it: bool = False) -> bool:
        """Notes what a consumer subscribes to; returns whether its group consumes in order.

        Nothing is noted of a request that is refused: the member of the group would try it for all clients.
        """
        check_group(name)
        ordered = await self._routes.ordered(tags)
        self._check_tags(client, name, tags)
        if self.clients.known(client.id) is not client:
            raise CallFailed(Code.BAD_REQUEST, f"client {client.id!r} has ended")
        group = self._group(name)
        before = client.tags if client.group == name and not all_of_it else {}
        client.group, client.tags = name, {**before, **tags}
        ordered = ordered or (group.wanted is not None and group.wanted.ordered)
        group.want(Wanted(self.clients.tags_of(name), ordered))
        return ordered

    def _check_tags(self, client: GrpcClient, name: str, tags: dict[str, str]) -> None:
        """Raises `CallFailed` if other clients of the group read a topic with other tags."""
        others = {
            topic: theirs
            for each in self.clients.of_group(name)
            if each is not client
            for topic, theirs in each.tags.items()
        }
        for topic, wanted in tags.items():
            if others.get(topic, wanted) != wanted:
                text = (
                    f"group {name!r} reads topic {topic!r} with tags {others[topic]!r}, and this client asks for "
                    f"{wanted!r}: all members of a group use the same tags"
                )
                raise CallFailed(Code.ILLEGAL_FILTER_EXPRESSION, text)

    def _group(self, name: str) -> FrontGroup:
        group = self.groups.get(name)
        if group is None:
            if self.draining:
                raise CallFailed(Code.HA_NOT_AVAILABLE, "this front is stopping: use another one")
            if len(self.groups) >= self.options.max_groups:
                raise CallFailed(Code.TOO_MANY_REQUESTS, f"this front has {self.options.max_groups} groups already")
            group = self.groups[name] = FrontGroup(name, self.options, self.clock, self.handing.serve)
        return group

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
            await self._subscribe(client, group, {topic: tags})
        kept = self._group(group)
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

    # life

    async def run(self) -> None:
        """Looks after clients and groups until it is cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self._look_after_all()
            except Exception:
                log.exception("the front could not look after its clients and groups; it tries again")

    async def _look_after_all(self) -> None:
        for client in self.clients.gone(now=self.clock.now()):
            log.info("client %s is gone", client.name)
        for lost in self.clients.alive.lost_connections(now=self.clock.now()):
            self.handing.connection_lost(*lost)
        self.handing.tidy(self.clients.alive)
        for name, group in [] if self.draining else list(self.groups.items()):
            tags, wanted = self.clients.tags_of(name), group.wanted
            group.want(Wanted(tags, wanted.ordered) if tags and wanted is not None else None)
            group.check()
            if group.member is not None:
                group.member.now_has(self._clients_of(name))
            if group.idle and not tags:
                del self.groups[name]
                await group.close()

    def _clients_of(self, group: str) -> FrontClientsBody:
        """The clients of a group, as its operators see them."""
        out = self.handing.hand_outs
        return FrontClientsBody(
            clients=[
                FrontClientBody(
                    id=each.id,
                    language=each.language.name.lower(),
                    version=each.version,
                    held=sum(len(hand_out.handles) for hand_out in out.of_client(each.id)),
                )
                for each in self.clients.of_group(group)
            ]
        )

    async def drain(self) -> None:
        """Hands nothing out any more and all queues over, and then sends the clients away.

        Each queue leaves as soon as nothing of it is with a client, so another front continues at once. The calls stay
        open until then, because decisions must come to this front.
        """
        self.draining = self.handing.draining = True
        await asyncio.gather(*(self._hand_over(group) for group in self.groups.values()))
        self.leaving.set()
        self.handing.answer_all()

    async def _hand_over(self, group: FrontGroup) -> None:
        """Queues without order have no lease, and do not wait for decisions by themselves."""
        if group.wanted is not None and not group.wanted.ordered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self.handing.all_decided(group.name)
        await group.close()


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


class _Received:
    """The answer to one ReceiveMessage: its status, its messages, and the time of delivery."""

    def __init__(self, service: FrontService, head: CallHead, body: bytes) -> None:
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


class _Telemetry:
    """One telemetry call: settings in, settings out, for as long as the client keeps it open."""

    def __init__(self, service: FrontService, head: CallHead, messages: AsyncIterator[bytes]) -> None:
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
        if service.leaving.is_set():
            yield encode(TelemetryCommand(OK, reconnect=Nonce(secrets.token_hex(4))))

    async def _next(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """What the client says next; None if it has ended, or is to go to another front."""
        reading = asyncio.create_task(_first_of(messages))
        leaving = asyncio.create_task(self._service.leaving.wait())
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
