"""Resetting a group's offset, and relaying questions to its members.

A reset works whether or not the group has members: the stored offset is replaced, commits from before the reset are
ignored, and pulls of each queue, held ones included, are answered "offset moved" until a member pulls from there.
"""

from collections.abc import Callable, Container, Mapping, Sequence

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer_code, answer_saved
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.queue_progress import OFFSET_BYTES
from lanemq.core.brokering.quotas import Quota
from lanemq.model.errors import BrokerBusy, BrokerRefused, StorageError
from lanemq.model.names import check_group
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.peer import Peer
from lanemq.wire.admin_headers import ConsumeDirectlyHeader, ResetOffsetHeader, RunningInfoHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.record import decode_offset_id
from lanemq.wire.stats_bodies import ResetOffsetBody


class ResetHandler:
    """Requests 222, 307, 309, 4208 and 4209."""

    def __init__(
        self, parts: BrokerContext, moved: Callable[[str, Container[tuple[str, int]]], None], answers: LongAnswers
    ) -> None:
        """`moved` is called with the group and the queues (topic, number) of every reset."""
        self._parts = parts
        self._moved = moved
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.LANE_STATE: self._running_info,
            RequestCode.LANE_HELD: self._running_info,
        }

    def _reset(self, peer: Peer, request: Command) -> None:
        header = ResetOffsetHeader.from_ext(request.ext)
        group, topic = check_group(header.group), self._parts.topic_keeper.existing(header.topic)
        queues = [queue for queue in self._parts.queue_log.queues(topic.name) if _names(header, queue)]
        if not queues:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {header.queue_id} of topic {topic.name} does not exist: it has {topic.queues}",
            )
        self._parts.charges.use_groups(peer, request, (group,))
        self._answers.begin(peer, request, self._reset_steps(peer, request, header, group, queues))

    def _reset_steps(
        self, peer: Peer, request: Command, header: ResetOffsetHeader, group: str, queues: Sequence[MessageQueue]
    ) -> Steps:
        """Find the new offset of each queue, then change all of them in one step."""
        topic = self._parts.topic_keeper.existing(header.topic)
        targets: dict[MessageQueue, int] = {}
        for queue in queues:
            targets[queue] = self._target(header, queue)
            yield
        if self._parts.topics.get(topic.name) != topic:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, f"topic {topic.name} was changed just now; ask again")
        self._change(peer, request, header, group, targets)
        return None

    def _change(
        self, peer: Peer, request: Command, header: ResetOffsetHeader, group: str, targets: Mapping[MessageQueue, int]
    ) -> None:
        found = [(self._parts.progress.at(group, queue), offset) for queue, offset in targets.items()]
        new = sum(progress.offset is None for progress, _ in found)
        if new:
            self._parts.charges.must_grow(Quota.OFFSETS, peer, request, group, new * OFFSET_BYTES)
        self._parts.charges.take(Quota.ROWS, peer, request)
        # Members may be working without being in the list: after a restart of the broker, or while they are cut off.
        # One whose lease has expired continues where it was if no other got the queue, and would undo the reset.
        online = self._parts.locks.has_owner(group) or bool(self._parts.members.members(group))
        # Without force, a reset only goes back.
        moved = [each for each in found if header.is_force or each[1] <= (each[0].offset or 0)]
        for progress, offset in moved:
            progress.move(QueueOffset(offset), pending=online)
        table = {progress.queue: offset for progress, offset in moved}
        if self._parts.recording.on and not online:
            self._parts.recording.moved(group, table)
        reply = ResetOffsetBody(offset_table=table).encode()

        def saved(error: StorageError | None) -> None:
            self._parts.charges.give_back(Quota.ROWS, peer)
            answer_saved(peer, request, error, reply)
            if error is None:
                self._moved(group, {(queue.topic, queue.queue_id) for queue in table})

        # Unlike progress, a reset must not be lost in a crash once it is answered.
        self._parts.progress_keeper.save([SavedOffset.of(progress) for progress, _ in moved], saved)

    def _target(self, header: ResetOffsetHeader, queue: MessageQueue) -> int:
        low, high = self._parts.queue_log.bounds(queue)
        if header.offset is not None and header.offset >= 0:
            return max(low, min(header.offset, high))
        if header.timestamp < 0:
            return high
        return self._parts.queue_log.offset_at(queue, header.timestamp)

    def _running_info(self, peer: Peer, request: Command) -> None:
        header = RunningInfoHeader.from_ext(request.ext)
        self._relay(peer, request, header.consumer_group, header.client_id, request.ext, request.body)

    def _consume_directly(self, peer: Peer, request: Command) -> None:
        """The request names a message; the member gets the message itself."""
        header = ConsumeDirectlyHeader.from_ext(request.ext)
        record = self._parts.store.read_at(decode_offset_id(header.msg_id or "").position)
        ext = {**request.ext, "brokerName": self._parts.options.name}
        self._relay(peer, request, header.consumer_group, header.client_id, ext, record)

    def _relay(
        self, peer: Peer, request: Command, group: str, client_id: str, ext: dict[str, str], body: bytes
    ) -> None:
        """Pass a question on to a member, and its answer back."""
        member = self._parts.notices.peer_of(group, client_id)
        if member is None:
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"the consumer <{group}> <{client_id}> is not online")

        def answered(reply: Command | None) -> None:
            if reply is None:
                remark = f"consumer <{group}> <{client_id}> did not answer in time"
                answer_code(peer, request, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
            else:
                answer_code(peer, request, reply.code, reply.remark or "", reply.ext, reply.body)

        self._parts.notices.ask(member, request.code, ext, body, answered, now=self._parts.clock.now())


def _names(header: ResetOffsetHeader, queue: MessageQueue) -> bool:
    """Whether a reset concerns this queue; one that names none concerns all queues of its topic."""
    number = header.queue_id
    return header.broker_name in (None, "", queue.broker) and (number is None or number < 0 or number == queue.queue_id)
