"""Resetting a group's offset, and relaying questions to its members.

A reset works whether or not the group has members: the stored offset is replaced, commits from before the reset are
ignored, and pulls of each queue, held ones included, are answered "offset moved" until a member pulls from there.
"""

from collections.abc import Callable, Mapping, Sequence, Set

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer_saved
from lanemq.broker.group_queues import no_such_queue
from lanemq.broker.group_rules import relay, use_groups
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.queue_progress import OFFSET_BYTES
from lanemq.core.brokering.quotas import Quota
from lanemq.model.errors import BrokerBusy, StorageError
from lanemq.model.names import check_group
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.serving.peer import Peer
from lanemq.wire.admin_headers import ResetOffsetHeader, RunningInfoHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.stats_bodies import ResetOffsetBody


class ResetHandler:
    """Requests 222, 307, 4208 and 4209."""

    def __init__(
        self, context: GroupContext, moved: Callable[[str, Set[tuple[str, int]]], None], answers: LongAnswers
    ) -> None:
        """`moved` is called with the group and the queues (topic, number) of every reset."""
        self._context = context
        self._moved = moved
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.LANE_STATE: self._running_info,
            RequestCode.LANE_HELD: self._running_info,
        }

    def _reset(self, peer: Peer, request: Command) -> None:
        header = ResetOffsetHeader.from_ext(request.ext)
        group = check_group(header.group)
        queues = self._wanted(header)
        use_groups(self._context, peer, request, (group,))
        self._answers.begin(peer, request, self._reset_steps(peer, request, header, group, queues))

    def _wanted(self, header: ResetOffsetHeader) -> Sequence[MessageQueue]:
        """The queues that a reset concerns: one, or all of a topic."""
        queues = self._context.queues.readable(header.topic)
        wanted = [queue for queue in queues if _names(header, queue)]
        if not wanted:
            named = self._context.queues.named(header.topic, header.broker_name, header.queue_id or 0)
            raise no_such_queue(named, len(queues))
        return wanted

    def _reset_steps(
        self, peer: Peer, request: Command, header: ResetOffsetHeader, group: str, queues: Sequence[MessageQueue]
    ) -> Steps:
        """Find the new offset of each queue, then change all of them in one step."""
        targets: dict[MessageQueue, int] = {}
        for queue in queues:
            targets[queue] = self._target(header, queue)
            yield
        if self._wanted(header) != queues:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, f"topic {header.topic} was changed just now; ask again")
        self._change(peer, request, header, group, targets)
        return None

    def _change(
        self, peer: Peer, request: Command, header: ResetOffsetHeader, group: str, targets: Mapping[MessageQueue, int]
    ) -> None:
        pairs = [(self._context.progress.at(group, queue), offset) for queue, offset in targets.items()]
        new = sum(progress.offset is None for progress, _ in pairs)
        if new:
            self._context.charges.must_grow(Quota.OFFSETS, peer, request, group, new * OFFSET_BYTES)
        self._context.charges.take(Quota.ROWS, peer, request)
        # Members may be working without being in the list: after a restart of the broker, or while they are cut off.
        # One whose lease has expired continues where it was if no other got the queue, and would undo the reset.
        online = self._context.locks.has_owner(group) or bool(self._context.members.members(group))
        # Without force, a reset only goes back.
        moved = [each for each in pairs if header.is_force or each[1] <= (each[0].offset or 0)]
        for progress, offset in moved:
            progress.move(QueueOffset(offset), pending=online)
        table = {progress.queue: offset for progress, offset in moved}
        if self._context.recording.on and not online:
            self._context.recording.moved(group, table)
        reply = ResetOffsetBody(offset_table=table).encode()

        def saved(error: StorageError | None) -> None:
            self._context.charges.give_back(Quota.ROWS, peer)
            answer_saved(peer, request, error, reply)
            if error is None:
                self._moved(group, {(queue.topic, queue.queue_id) for queue in table})

        # Unlike progress, a reset must not be lost in a crash once it is answered.
        self._context.progress_keeper.save([SavedOffset.of(progress) for progress, _ in moved], saved)

    def _target(self, header: ResetOffsetHeader, queue: MessageQueue) -> int:
        if header.offset is not None and header.offset >= 0:
            low, high = self._context.queue_log.bounds(queue)
            return max(low, min(header.offset, high))
        return self._context.queue_log.offset_at(queue, header.timestamp)

    def _running_info(self, peer: Peer, request: Command) -> None:
        header = RunningInfoHeader.from_ext(request.ext)
        relay(self._context, peer, request, (header.consumer_group, header.client_id), request.ext, request.body)


def _names(header: ResetOffsetHeader, queue: MessageQueue) -> bool:
    """Whether a reset concerns this queue; one that names none concerns all queues of its topic."""
    number = header.queue_id
    return header.broker_name in (None, "", queue.broker) and (number is None or number < 0 or number == queue.queue_id)
