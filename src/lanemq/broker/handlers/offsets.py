"""Offsets that groups have committed.

A commit that carries an epoch is refused once the queue has another owner. One without (from a stock client) is stored
as RocketMQ does, except that a member that does not own the queue cannot move the offset back. A LaneMQ member that
owns the queue may also report what it finished above the offset.

A program that is no member, such as a Spark query, may report how far it is, to show its lag. Its group is marked as a
reported one before the first report counts: consumers would begin at its offset, and skip what they have not seen.
"""

import logging

from msgspec.structs import replace

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer, answer_code, answer_saved
from lanemq.broker.group_rules import is_consumed, is_reported, ownership, use_groups
from lanemq.core.brokering.lock_table import Stale, Unowned
from lanemq.core.brokering.queue_progress import (
    OFFSET_BYTES,
    Backward,
    Ignored,
    QueueProgress,
    ResetState,
    WhyIgnored,
    kind_of,
)
from lanemq.core.brokering.quotas import Quota
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.model.errors import BrokerRefused, OffsetNotFound, StorageError
from lanemq.model.names import check_group, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.serving.peer import Peer
from lanemq.wire.bodies import LaneProgress
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import QueryOffsetHeader, UpdateOffsetHeader
from lanemq.wire.lane_fields import LANE_CLIENT, LANE_IGNORED, REPORTED
from lanemq.wire.route_bodies import SubscriptionGroupConfig

log = logging.getLogger(__name__)


class OffsetHandler:
    """Requests 14 and 15."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
        }

    def _query(self, peer: Peer, request: Command) -> None:
        header = QueryOffsetHeader.from_ext(request.ext)
        check_group(header.consumer_group)
        check_topic(header.topic)
        queue = self._context.queues.named(header.topic, header.broker_name, header.queue_id)
        progress = self._context.progress.at(header.consumer_group, queue)
        offset = progress.offset
        if offset is None and self._context.recording.on:
            self._context.recording.nothing_found(progress.group, progress.queue)
        if offset is None and LANE_CLIENT not in request.ext and header.set_zero_if_not_found is not False:
            offset = self._start_of_new_group(queue)
        if offset is None and header.set_zero_if_not_found:
            offset = QueueOffset(0)
        if offset is None:
            group, topic = header.consumer_group, header.topic
            raise OffsetNotFound(
                ResponseCode.QUERY_NOT_FOUND,
                f"group {group} has no offset in queue {header.queue_id} of {topic}",
            )
        finished = progress.finished if header.lane_finished else ""
        body = LaneProgress(lane_finished=finished).encode() if finished else b""
        answer(peer, request, {"offset": str(offset)}, body)

    def _start_of_new_group(self, queue: MessageQueue) -> QueueOffset | None:
        """The start of a new stock group: 0 while the queue is empty or its first message is recent, as in RocketMQ 4.

        Its users rely on it: a consumer that starts "from last" right after the first messages were sent gets them. For
        an empty queue, "not found" would lose messages: the client would then ask for the queue's end, and skip what
        arrived before that. (RocketMQ answers so since 5.1.) LaneMQ's own clients name their start explicitly.
        """
        return QueueOffset(0) if self._context.queue_log.is_young(queue) else None

    def _commit(self, peer: Peer, request: Command) -> None:
        header = UpdateOffsetHeader.from_ext(request.ext)
        check_group(header.consumer_group)
        group, topic = header.consumer_group, check_topic(header.topic)
        # One that does not exist is refused: its offset would outlive a deleted topic.
        queue = self._context.queues.existing(topic, header.broker_name, header.queue_id)
        if header.lane_report and not is_reported(self._context, group):
            self._begin_reports(peer, request, group)
            return
        verdict = ownership(self._context, peer, group, queue, header)
        stock = header.lane_epoch is None
        offset, progress = QueueOffset(header.commit_offset), self._context.progress.at(group, queue)
        use_groups(self._context, peer, request, (group,))
        body = LaneProgress.of_request(request.body) if request.body and not stock else None
        finished = None if body is None else self._finished(body.lane_finished, queue, offset)
        finished = self._charged(peer, request, progress, finished, 0 if body is None else len(body.lane_finished))
        seen = None if body is None or self._context.queue_log.has_records else body.lane_seen
        outcome = progress.commit(offset, kind=kind_of(verdict, stock=stock), finished=finished, seen=seen)
        if finished is not None:
            # The ranges may have become fewer, or the commit was ignored.
            self._context.charges.shrink(Quota.OFFSETS, (group,))
        if self._context.recording.on:
            owned = not isinstance(verdict, Unowned)
            self._context.recording.commit(group, queue, offset, header.lane_epoch, outcome, owned=owned)
        if stock and isinstance(verdict, Stale):
            self._context.counters.stale_commits += 1
            log.warning(
                "group %s queue %s/%s: %s commits offset %s, but %s holds the queue",
                group, header.topic, header.queue_id, peer, offset, verdict.holder,
            )  # fmt: skip
        match outcome:
            case Ignored(WhyIgnored.FENCED):
                self._context.counters.refused_commits += 1
                remark = (
                    f"queue {queue.queue_id} of {queue.topic} was granted to another member; this commit is too late"
                )
                answer_code(peer, request, ResponseCode.LEASE_REFUSED, remark)
            case Ignored(WhyIgnored.RESET_PENDING) if not stock:
                answer(peer, request, {LANE_IGNORED: WhyIgnored.RESET_PENDING.value})
            case Backward(stored) if not stock:
                answer(peer, request, {"offset": str(stored)})
            case _:
                answer(peer, request)

    def _begin_reports(self, peer: Peer, request: Command, group: str) -> None:
        """Note that the group's offsets are reported by a program that is no member, then take its first report."""
        if is_consumed(self._context, group):
            raise BrokerRefused(
                ResponseCode.GROUP_CONFLICT,
                f"group {group} is used by consumers, so a program that is no member cannot store its offsets there: "
                f"they would skip what it has read. Use another group",
            )
        use_groups(self._context, peer, request, (group,))
        before = self._context.groups.get(group, SubscriptionGroupConfig(group_name=group))
        settings = replace(before, attributes={**before.attributes, REPORTED: "true"})
        self._context.charges.take(Quota.ROWS, peer, request)
        self._context.groups[group] = settings  # at once: from now on no consumer joins

        def saved(_: object, error: StorageError | None) -> None:
            self._context.charges.give_back(Quota.ROWS, peer)
            if error is None:
                self._commit(peer, request)
                return
            self._context.groups[group] = before
            answer_saved(peer, request, error)

        state = self._context.state
        self._context.row_thread.submit_rows(state, lambda: state.save_group(group, settings.encode().decode()), saved)

    def _charged(
        self, peer: Peer, request: Command, progress: QueueProgress, finished: FinishedRanges | None, chars: int
    ) -> FinishedRanges | None:
        """Charge what the commit adds; returns the finished ranges, none if there are too many of them.

        A new offset beyond the quota is refused. Progress never is: without its finished ranges, some messages are
        delivered again.
        """
        charges, group = self._context.charges, progress.group
        if progress.offset is None:
            charges.must_grow(Quota.OFFSETS, peer, request, group, OFFSET_BYTES)
        if finished is None or progress.reset is not ResetState.NONE:
            return finished  # while a reset is pending, a commit with finished ranges is ignored
        more = chars - len(progress.finished)
        if more > 0 and charges.grow(Quota.OFFSETS, peer, request, group, more) is not None:
            return FinishedRanges()
        return finished

    def _finished(self, text: str, queue: MessageQueue, offset: QueueOffset) -> FinishedRanges:
        """The finished ranges of a commit, cut at the queue's end: beyond it they would hide future messages."""
        _, end = self._context.queue_log.bounds(queue)
        return FinishedRanges.decode(text, offset).below(end)
