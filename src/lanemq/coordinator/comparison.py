"""What groups have seen of the queues' logs: told to new owners, and compared with what the brokers have.

A new owner compares the newest marks by itself and starts nothing on a mismatch. Here an operator learns up to where
the log is the same, and drops what lies above.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer
from lanemq.coordinator.background_answers import BackgroundAnswers
from lanemq.coordinator.cluster import ClusterLink
from lanemq.coordinator.queues import ClusterQueues
from lanemq.core.brokering.progress_store import EndedLane, ProgressChange, SavedLane, SavedOffset
from lanemq.core.brokering.queue_progress import LaneName, QueueProgress, ResetState
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.model.errors import BrokerBusy, LaneError
from lanemq.model.keys import shown_key
from lanemq.model.log_marks import LogMark, SeenLog, differs
from lanemq.model.names import check_group
from lanemq.net.address import Address
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import CompareAnswer, CompareBody, LaneBody, OtherLogBody, SeenBody
from lanemq.wire.log_marks import mark_in

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Queues that are compared at once: each costs a request or two to its broker."""


class _Other(NamedTuple):
    progress: QueueProgress
    marks: tuple[LogMark, ...]
    """Those that were compared."""
    end: int
    """Below it, the log is the same."""


class ComparisonHandler:
    """Requests 4211 and 4212."""

    def __init__(
        self, context: GroupContext, link: ClusterLink, queues: ClusterQueues, answers: BackgroundAnswers
    ) -> None:
        self._context = context
        self._link = link
        self._queues = queues
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LANE_SEEN: self._seen, RequestCode.LANE_COMPARE: self._compare}

    def _seen(self, peer: Peer, request: Command) -> None:
        wanted = LaneBody.of_request(request.body)
        queue = self._queues.named(wanted.topic, wanted.broker, wanted.queue_id)
        progress = self._context.progress.at(check_group(wanted.group), queue)
        if self._is_outdated(progress):
            raise BrokerBusy(
                ResponseCode.SYSTEM_BUSY,
                f"group {wanted.group} was set back in {queue} after that queue was granted: take it again",
            )
        seen = progress.seen
        body = SeenBody() if seen is None else SeenBody(seen=SeenLog(seen.last_read, seen.last_done, seen.stamps))
        answer(peer, request, {}, body.encode())

    def _is_outdated(self, progress: QueueProgress) -> bool:
        """Whether the progress that the asking owner got with its lease has changed since, by a reset or a drop.

        It would skip what was finished in the former log, and the comparison would not notice: the marks are gone.
        """
        return progress.reset is not ResetState.NONE

    def _compare(self, peer: Peer, request: Command) -> None:
        body = CompareBody.of_request(request.body)
        self._context.admit(check_group(body.group))
        self._answers.begin(peer, request, self._compared(body))

    async def _compared(self, body: CompareBody) -> CompareAnswer:
        """Compare all queues, and drop what others have if that is wanted."""
        room, result, others = asyncio.Semaphore(AT_ONCE), CompareAnswer(), list[_Other]()

        async def compare(progress: QueueProgress) -> None:
            async with room:
                try:
                    other = await self._other(progress)
                except LaneError as error:
                    result.problems.append(f"{progress.queue}: {error}")
                    return
            result.compared += 1
            if other is not None:
                others.append(other)

        places = [each for each in self._context.progress.of_group(body.group) if each.seen is not None]
        await asyncio.gather(*map(compare, places))
        result.others = [_described(each) for each in sorted(others, key=lambda each: each.progress.queue)]
        if body.apply and others:
            # An owner that reported during the comparison has compared the log itself: it is the same.
            still = [
                each for each in others if each.progress.seen is not None and each.progress.seen.marks == each.marks
            ]
            await self._drop(still)
        return result

    async def _other(self, progress: QueueProgress) -> _Other | None:
        """Up to where a queue's log is the one that the group has read; None if that is all that it is done with."""
        seen, queue = progress.seen, progress.queue
        if seen is None:
            return None
        marks, done = seen.marks, seen.done  # both change while the broker is asked
        master, end = self._master(queue.broker), 0
        for mark in reversed(marks):
            there = mark_in(await self._link.message(master, queue, mark.offset))
            # Asked for after the message, which may be deleted in between.
            if there == mark or differs(mark, there, await self._link.first_offset(master, queue)) is None:
                end = mark.offset + 1
                break
        return _Other(progress, marks, end) if end <= done else None

    def _master(self, broker: str) -> Address:
        master = self._queues.masters.get(broker)
        if master is None:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, f"broker {broker} has no master now")
        return master

    async def _drop(self, others: Sequence[_Other]) -> None:
        """Drop what lies above, and wait until that is on disk."""
        rows: list[ProgressChange] = []
        for progress, _, end in others:
            last = self._context.locks.latest(progress.group, progress.queue)
            for key, offsets in progress.rewind(end, owned=last is not None and bool(last.owner)).items():
                log.warning(
                    "group %s: %d parked messages of key %s of %s are dropped, from offset %d on: they are lost",
                    progress.group, len(offsets), shown_key(key), progress.queue, offsets[0],
                )  # fmt: skip
                lane = progress.lanes.get(key)
                rows.append(EndedLane(LaneName(progress.group, progress.queue, key)))
                rows += () if lane is None else (SavedLane.of(lane, lane.offsets.rows()),)
            log.warning("group %s continues in %s at offset %s", progress.group, progress.queue, progress.offset)
            rows.append(SavedOffset.of(progress))
        await self._context.progress_keeper.saved(rows)


def _described(other: _Other) -> OtherLogBody:
    progress, _, end = other
    topic, broker, queue_id = progress.queue
    offset = progress.offset or 0
    finished = FinishedRanges.decode(progress.finished, offset)
    parked = sum(len(lane.offsets.from_offset(end, len(lane.offsets))) for lane in progress.lanes.values())
    return OtherLogBody(
        topic=topic,
        broker=broker,
        queue_id=queue_id,
        offset=offset,
        same_below=end,
        finished=finished.count - finished.below(end).count,
        parked=parked,
    )
