"""What brokers ask of a consumer, on the connection that the consumer opened.

A request that cannot be answered gets an error answer; nothing a broker sends may stop the consumer.
"""

import logging
from collections.abc import Callable

from lanemq.client.consumer.consume_directly import consume_directly
from lanemq.client.consumer.lane_state import lane_state
from lanemq.client.consumer.member import Member
from lanemq.client.consumer.running_info import running_info
from lanemq.model.errors import LaneError, ProtocolError
from lanemq.model.units import QueueOffset
from lanemq.net.connection import Connection
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, response_to
from lanemq.wire.stats_bodies import ConsumerStatusBody, ResetOffsetBody

log = logging.getLogger(__name__)


class BrokerRequests:
    """Answers for one consumer."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._handlers: dict[int, Callable[[Command], bytes]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._info,
            RequestCode.LANE_STATE: self._lane_state,
        }

    def received(self, connection: Connection, request: Command) -> None:
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            self._member.spawn(self._consume(connection, request))
            return
        try:
            body = self._answer_to(request)
        except (LaneError, ProtocolError) as error:
            log.warning("request %d from %s refused: %s", request.code, connection.address, error)
            _answer(connection, request, response_to(request, ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return
        if body is None:
            remark = f"request {request.code} is not known to this consumer"
            _answer(connection, request, response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        _answer(connection, request, response_to(request, body=body))

    def _answer_to(self, request: Command) -> bytes | None:
        handler = self._handlers.get(request.code)
        return None if handler is None else handler(request)

    def _members_changed(self, request: Command) -> bytes:
        self._member.rebalance()
        return b""

    def _reset(self, request: Command) -> bytes:
        """A person moved the group: queues held here go on there."""
        for queue, offset in ResetOffsetBody.decode(request.body).offset_table.items():
            holding = self._member.holdings.get(queue)
            if holding is not None:
                self._member.move(holding, QueueOffset(offset))
        return b""

    def _status(self, request: Command) -> bytes:
        topic = request.ext.get("topic", "")
        offsets = {
            holding.queue: holding.station.scheduler.committable(holding.queue) or 0
            for holding in self._member.holdings
            if topic in ("", holding.queue.topic)
        }
        return ConsumerStatusBody(message_queue_table=dict(offsets)).encode()

    def _info(self, request: Command) -> bytes:
        return running_info(self._member).encode()

    def _lane_state(self, request: Command) -> bytes:
        return lane_state(self._member, request.body).encode()

    async def _consume(self, connection: Connection, request: Command) -> None:
        """One message by hand, outside of every lane: a person's tool for a look, no part of the order."""
        try:
            result = await consume_directly(self._member, request.body)
        except (LaneError, ProtocolError) as error:
            _answer(connection, request, response_to(request, ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return
        _answer(connection, request, response_to(request, body=result.encode()))


def _answer(connection: Connection, request: Command, response: Command) -> None:
    if not request.is_oneway:
        connection.reply(response)
