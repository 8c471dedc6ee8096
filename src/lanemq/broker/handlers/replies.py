"""Replies to requests: a consumer's answer to a message whose sender waits for it.

The reply goes straight to the connection of the client that asked, named by the property REPLY_TO_CLIENT. It is also
stored in the cluster's reply topic, where it can be looked up later, as in RocketMQ. The sender of the reply learns
whether the client received it.

Invariant: on a broker with users, a client receives only replies to messages that it sent on the same connection. The
property CORRELATION_ID tells which; only those who may read the message know it.
"""

import logging
from collections.abc import Callable
from functools import partial

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer, answer_code
from lanemq.core.brokering.quotas import MAX_CLIENT_ID_CHARS
from lanemq.log.appender import NewRecord
from lanemq.model.errors import BrokerRefused, LaneError, StorageError
from lanemq.model.names import check_topic
from lanemq.net.rate_limited_log import FewLines
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PushReplyHeader, SendHeader
from lanemq.wire.properties import (
    LANE_STAMP,
    MAX_PROPERTIES_BYTES,
    PropertyName,
    append_properties,
    find_property,
    remove_property,
)
from lanemq.wire.record import encode_offset_id, pack_host

log = logging.getLogger(__name__)


class ReplyHandler:
    """Requests 324 and 325."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._lines = FewLines(log, context.clock)

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: partial(self._reply, SendHeader.from_ext_v1),
            RequestCode.SEND_REPLY_MESSAGE_V2: partial(self._reply, SendHeader.from_ext_v2),
        }

    def _reply(self, decode: Callable[[dict[str, str]], SendHeader], peer: Peer, request: Command) -> None:
        header = decode(request.ext)
        self._context.topic_keeper.existing(check_topic(header.topic))
        self._refuse_large(header, request.body)
        client_id = find_property(header.properties, PropertyName.REPLY_TO_CLIENT)
        if client_id is None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null")
        correlation = find_property(header.properties, PropertyName.CORRELATION_ID) or ""
        notices, guarded = self._context.notices, self._context.options.users is not None
        asker = notices.peer_that_asked(client_id, correlation) if guarded else notices.peer_of_client(client_id)
        if asker is None:
            why = ": it has left, or did not send this request" if guarded else "."
            remark = f"push reply message fail, channel of <{client_id[:MAX_CLIENT_ID_CHARS]}> not found{why}"
            self._store(peer, request, header, remark)
            return

        def received(pushed: Command | None) -> None:
            ok = pushed is not None and pushed.code == ResponseCode.SUCCESS
            if ok:
                notices.has_reply(asker, client_id, correlation)
            self._store(peer, request, header, None if ok else f"push reply message to {client_id} fail.")

        ext = self._push_header(peer, header).to_ext()
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        notices.ask(asker, code, ext, request.body, received, now=self._context.clock.now())

    def _refuse_large(self, header: SendHeader, body: bytes) -> None:
        options = self._context.options
        if len(body) > options.max_body_bytes or len(header.properties.encode()) > MAX_PROPERTIES_BYTES:
            raise BrokerRefused(ResponseCode.MESSAGE_ILLEGAL, "the reply is larger than a message may be")

    def _push_header(self, peer: Peer, header: SendHeader) -> PushReplyHeader:
        now = self._context.clock.wall()
        properties = remove_property(header.properties, PropertyName.PUSH_REPLY_TIME)
        return PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=append_properties(properties, {PropertyName.PUSH_REPLY_TIME: str(now)}),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=str(peer.remote),
            store_host=str(self._context.advertised),
            store_timestamp=now,
        )

    def _store(self, peer: Peer, request: Command, header: SendHeader, failure: str | None) -> None:
        """Store the reply, then answer its sender; `failure` is why the client did not get it, if so.

        A reply that cannot be stored is no failure: the client has it, or will ask again.
        """
        ext = {"msgId": "0", "queueId": "0", "queueOffset": "0", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

        def stored(error: StorageError | None) -> None:
            sender = f"replies from {peer.remote.host}"
            if error is not None:
                self._lines.write(logging.WARNING, sender, f"a reply to {header.topic} is not stored: {error}")
            if failure is not None:
                self._lines.write(logging.WARNING, sender, failure)
                answer_code(peer, request, ResponseCode.SYSTEM_ERROR, failure, ext)
            else:
                answer(peer, request, ext)

        text = remove_property(header.properties, LANE_STAMP).encode()
        same = header.flag, header.sys_flag, header.born_timestamp, header.reconsume_times
        record = NewRecord(request.body, text, 0, *same)
        size = len(request.body) + len(text)
        try:
            staged = self._context.group_commit.append(header.topic, 0, [record], pack_host(*peer.remote), size, stored)
        except LaneError as error:
            stored(error if isinstance(error, StorageError) else StorageError(str(error)))
            return
        ext["msgId"] = encode_offset_id(*self._context.advertised, staged.positions[0])
        ext["queueOffset"] = str(staged.first_offset)
