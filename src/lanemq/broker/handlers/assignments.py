"""Assignments: which queues a member pulls, for stock clients that leave the choice to the broker.

RocketMQ 5 clients with `setClientRebalance(false)` ask for their queues instead of for the members of the group. The
answer is what the member would have computed itself, so members of both kinds share a topic without overlap. Queues
are always assigned for pulling: the broker has no POP consumption, in which several members share a queue.
"""

import logging

from lanemq.broker.dispatch import Handler, answer
from lanemq.broker.parts import Parts
from lanemq.core.consuming.allocation import Allocate, averagely, averagely_by_circle, consistent_hash
from lanemq.model.errors import NotAllowed
from lanemq.model.names import RETRY_PREFIX, check_group
from lanemq.model.queue import MessageQueue
from lanemq.net.peer import Peer
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.bodies import (
    MESSAGE_MODELS,
    AssignmentAnswer,
    AssignmentQuery,
    QueueAssignment,
    QueueBody,
    RequestMode,
    enum_text,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

STRATEGIES: dict[str, Allocate] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": averagely_by_circle,
    "CONSISTENT_HASH": consistent_hash(),
}
"""By RocketMQ's names. Other strategies depend on settings of the client, which the request does not carry."""


class AssignmentHandler:
    """Requests 400 and 401."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rate_limited = RateLimitedLog(log, parts.clock)

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self._query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
        }

    def _query(self, peer: Peer, request: Command) -> None:
        query = AssignmentQuery.of_request(request.body)
        check_group(query.consumer_group)
        queues = self._queues_of(query)
        assigned = None if queues is None else [QueueAssignment(message_queue=QueueBody.of(queue)) for queue in queues]
        answer(peer, request, {}, AssignmentAnswer(message_queue_assignments=assigned).encode())

    def _queues_of(self, query: AssignmentQuery) -> list[MessageQueue] | None:
        """The queues of one member; None if they are unknown, whereupon the client keeps what it has."""
        group, topic = query.consumer_group, self._parts.topics.get(query.topic)
        if topic is None:
            return None
        queues = [MessageQueue(topic.name, self._parts.options.name, number) for number in range(topic.read_queues)]
        if enum_text(MESSAGE_MODELS, query.message_model) == "BROADCASTING":
            return queues
        allocate = STRATEGIES.get(query.strategy_name)
        if allocate is None:
            self._rate_limited.warn(
                group,
                f"group {group}: {query.client_id} asks for queues by strategy {query.strategy_name!r}, which the "
                f"broker does not know (it knows {', '.join(STRATEGIES)}): use setClientRebalance(true)",
            )
            return None
        return allocate(queues, self._parts.members.members(group), query.client_id)

    def _set_mode(self, peer: Peer, request: Command) -> None:
        """Accept any mode and keep to pulling: a group that wants POP works, and each queue has one member."""
        wanted = RequestMode.of_request(request.body)
        if wanted.topic.startswith(RETRY_PREFIX):
            raise NotAllowed(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._parts.topic_keeper.existing(wanted.topic)
        group = check_group(wanted.consumer_group)
        if wanted.mode != "PULL":
            log.warning(
                "group %s: %s asks for mode %s in topic %s; its members pull, because the broker has no other mode",
                group, peer, wanted.mode, wanted.topic,
            )  # fmt: skip
        answer(peer, request)
