"""Reads the offsets at which queues start, and reports how far the handlers have come.

Every second, each assigned queue whose progress the broker has not confirmed is reported: its committable offset, and
the finished ranges above it to brokers that store them (those that grant epochs). What the broker does not confirm is
reported again. A broker without epochs gets an offset only while the queue's lease is valid here. In broadcasting each
member keeps its own offsets, in a file or in memory.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions, StartFrom
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment, ReportedProgress
from lanemq.client.consumer.turns.history import group_in_history
from lanemq.core.finished_ranges import MAX_RANGES, NOTHING_FINISHED
from lanemq.history import Place
from lanemq.model.errors import LaneError, LeaseLost, StorageError
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset, to_millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = ClientLog(__name__)

REPORT_AGAIN_MS = 5_000
"""Interval at which queues without a lease are reported although nothing changed, as RocketMQ's clients do.

A late commit of a former owner may have moved the offset back; without a lease the broker cannot refuse it."""

NO_EPOCH = Epoch(0)
"""Of a queue without a lease, or of a broker without epochs."""


class OffsetKeeper:
    """Where the group's offsets come from and where they are stored."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        assignment: Assignment,
        is_leased: Callable[[AssignedQueue], bool],
    ) -> None:
        """`is_leased`: whether a queue is this member's at this moment; if not, its lease is renewed soon."""
        self._options = options
        self._calls = calls
        self._assignment = assignment
        self._is_leased = is_leased
        self._local = _local_offsets(options) if options.broadcasting else None
        self._rate_limited = RateLimitedLog(log, options.clock)

    # when a queue is assigned

    async def start_of(self, queue: MessageQueue, epoch: Epoch = NO_EPOCH) -> QueueOffset:
        """The group's committed offset, or the start that the options name. Called under the lease.

        Before it, the former owner could still commit, and messages that it finished would run again.

        Raises if the broker cannot answer: a guess would skip messages or repeat all of them.
        """
        if self._local is not None:
            known = self._local.load().get(queue)
        else:
            known = await self._calls.committed(queue)
        if known is not None and known >= 0:
            return known
        if queue.topic.startswith(RETRY_PREFIX) or self._options.start is StartFrom.FIRST:
            # A retry topic is never skipped: its messages were already delivered once.
            return await self._calls.first_offset(queue)
        return await self._begin_later(queue, epoch)

    async def _begin_later(self, queue: MessageQueue, epoch: Epoch) -> QueueOffset:
        """Commits where a new group starts, if that is not the queue's first message, before anything is read.

        Without it, the next owner or the next start of this member would find no offset as long as no message was
        finished. It would begin at the end again, and skip what was sent in between.
        """
        if isinstance(self._options.start, StartFrom):
            start, where = await self._calls.last_offset(queue), "at the end"
        else:
            time = to_millis(self._options.start.timestamp())
            start, where = await self._calls.offset_at(queue, time), "at the time it named"
        self._record_reset(queue, start, f"the group is new in this queue and begins {where}", epoch)
        if self._local is not None:
            self._local.save({queue: start})
        else:
            await self._calls.commit(queue, start, epoch)
        return start

    # while it is assigned

    async def run(self) -> None:
        """Reports offsets until cancelled; what could not be reported is reported next time."""
        reported = self._options.clock.now()
        while True:
            await asyncio.sleep(self._options.commit_every)
            if self._local is None and self._options.clock.now() - reported >= REPORT_AGAIN_MS:
                reported = self._options.clock.now()
                self._doubt(assigned for assigned in self._assignment if not assigned.epoch)
            try:
                await self.commit_all()
            except LaneError as error:
                self._rate_limited.failed("offsets", "offsets could not be saved, trying again", error)

    async def commit_all(self) -> None:
        """Reports all queues that moved; a failure of one does not stop the others."""
        for assigned in self._assignment:
            self._look(assigned)
        if self._local is not None:
            self._save(self._local)
            return
        await asyncio.gather(*(self._try_commit(each) for each in self._assignment if each.must_report))

    async def commit(self, assigned: AssignedQueue) -> None:
        """Reports one queue that is given up, and waits until the broker has it, or raises."""
        if assigned.moving is not None:
            # Its handlers have ended; it leaves from the new position.
            self.record_reset(assigned, assigned.moving, "it is given up on the way to another offset")
            await self.move_to(assigned, assigned.moving)
            return
        self._look(assigned)
        if self._local is not None:
            self._save(self._local)
        elif assigned.must_report or assigned.leaves_messages:
            await self._commit(assigned)

    async def move_to(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Sets the group's offset after a reset, or because the broker has no such offset."""
        if self._local is not None:
            self._local.save({assigned.queue: offset})
        else:
            self._check_leased(assigned)
            await self._calls.commit(assigned.queue, offset, assigned.epoch)
        assigned.start_at(ReportedProgress(offset))
        assigned.moved_at = self._options.clock.now()

    def record_reset(self, assigned: AssignedQueue, offset: QueueOffset, reason: str) -> None:
        """Writes a change of position into the history."""
        self._record_reset(assigned.queue, offset, reason, assigned.epoch)

    def _record_reset(self, queue: MessageQueue, offset: QueueOffset, reason: str, epoch: Epoch) -> None:
        history = self._options.history
        if history.on:
            group = group_in_history(self._options, self._calls.client_id)
            history.reset(Place(group, queue.topic, queue.queue_id, offset, queue.broker), reason, epoch=epoch)

    def record_found(self, queue: MessageQueue, offset: QueueOffset, asked: int) -> None:
        """Writes the offset that an Apache broker gave into the history: it may have forgotten newer commits."""
        if self._options.history.on:
            place = Place(self._options.group, queue.topic, queue.queue_id, offset, queue.broker)
            self._options.history.recovered(place, clean=False, alive=asked)

    def record_filter(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Writes into the history which tags the queue is read with, unless all are read."""
        queue, history, tags = assigned.queue, self._options.history, assigned.subscription.filter.tags
        if history.on and tags:
            group = group_in_history(self._options, self._calls.client_id)
            history.filtered(Place(group, queue.topic, queue.queue_id, offset, queue.broker), tags)

    def report_again(self, broker: str) -> None:
        """Reports all offsets of a broker again after a lost connection.

        The broker may have crashed and lost its last commits; a queue without new messages would never be reported.
        An Apache broker may even have come back with an empty store.
        """
        queues = [each for each in self._assignment if broker in (each.queue.broker, each.coordinator)]
        self._doubt(queues)
        for assigned in queues:
            assigned.check_end = not assigned.is_lanemq

    def _doubt(self, queues: Iterable[AssignedQueue]) -> None:
        for assigned in queues:
            assigned.confirmed = None

    def _look(self, assigned: AssignedQueue) -> None:
        """Takes the newest progress from the scheduler."""
        progress = assigned.scheduler.progress(assigned.queue)
        if progress is not None:
            offset, finished = progress
            finished = finished.lowest(MAX_RANGES) if assigned.epoch else NOTHING_FINISHED
            assigned.advance(ReportedProgress(offset, finished))

    def _save(self, local: "LocalOffsets") -> None:
        reports = {each: each.progress for each in self._assignment if each.must_report}
        if reports:
            local.save({assigned.queue: progress.offset for assigned, progress in reports.items()})
        for assigned, progress in reports.items():
            assigned.confirmed = progress

    async def _try_commit(self, assigned: AssignedQueue) -> None:
        if assigned.released or assigned.moving is not None:
            return
        try:
            await self._commit(assigned)
        except LeaseLost:
            pass  # `_commit` has dropped the queue
        except LaneError as error:
            text = f"offset of {assigned} could not be committed, trying again"
            self._rate_limited.failed(str(assigned), text, error)

    async def _commit(self, assigned: AssignedQueue) -> None:
        if assigned.check_end and not await self._is_in_queue(assigned):
            return
        self._check_leased(assigned)
        queue, progress, epoch = assigned.queue, assigned.progress, assigned.epoch
        history = self._options.history
        asked = history.now() if history.on else 0
        place = Place(self._options.group, queue.topic, queue.queue_id, progress.offset, queue.broker)
        try:
            taken = await self._calls.commit(queue, progress.offset, epoch, progress.finished)
        except LeaseLost as error:
            if history.on:
                history.commit_refused(place, str(error), epoch=epoch, asked=asked)
            self._assignment.lose(assigned, f"the broker refused its offset: {error}")
            raise
        if history.on and taken:
            history.committed(place, epoch=epoch, asked=asked)
        assigned.confirmed = progress

    def _check_leased(self, assigned: AssignedQueue) -> None:
        """Raises if the queue may belong to another member by now, where the broker would not notice.

        A broker with epochs refuses the commit of a former owner. An Apache broker takes any commit: one of a member
        that was frozen would move the group back, to before what the new owner has finished.
        """
        if assigned.lease is not None and not assigned.epoch and not self._is_leased(assigned):
            raise LaneError(f"the lease of {assigned} must be renewed first: another member may own the queue")

    async def _is_in_queue(self, assigned: AssignedQueue) -> bool:
        """Whether the queue still reaches to the offset that is to be committed, at a broker that was away.

        One that comes back with an empty store accepts any offset, and the group would skip new messages up to it.
        """
        end, offset = await self._calls.last_offset(assigned.queue), assigned.progress.offset
        assigned.check_end = offset > end
        if assigned.check_end:
            self._rate_limited.warn(
                str(assigned),
                f"{assigned} ends at offset {end} now, before offset {offset}, up to which this group had read: "
                f"the broker has lost messages. The offset is not committed",
            )
        return not assigned.check_end


# broadcasting: each member keeps its own offsets


class LocalOffsets(Protocol):
    """Offsets that a member stores itself."""

    def load(self) -> dict[MessageQueue, QueueOffset]: ...

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None: ...


def _local_offsets(options: ConsumerOptions) -> LocalOffsets:
    folder = options.offsets_folder
    return MemoryOffsets() if folder is None else FileOffsets(folder, options.group)


class MemoryOffsets:
    """Offsets that end with the process."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, QueueOffset] = {}

    def load(self) -> dict[MessageQueue, QueueOffset]:
        return dict(self._offsets)

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        self._offsets.update(offsets)


class _Entry(msgspec.Struct):
    topic: str
    broker: str
    queue_id: int
    offset: int


class FileOffsets:
    """Offsets in one JSON file per group. Saving replaces the whole file, so a crash leaves the old or the new one."""

    def __init__(self, folder: Path, group: str) -> None:
        self._path = folder / f"{group.replace('%', '_').replace('|', '_')}.offsets.json"

    def load(self) -> dict[MessageQueue, QueueOffset]:
        """The offsets that were saved last. A file that cannot be read is an error, not a new start."""
        try:
            entries = msgspec.json.decode(self._path.read_bytes(), type=list[_Entry])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StorageError(
                f"offsets in {self._path} cannot be read: {error}; move the file away to start anew"
            ) from error
        return {MessageQueue(each.topic, each.broker, each.queue_id): QueueOffset(each.offset) for each in entries}

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        whole = self.load() | dict(offsets)
        entries = [_Entry(*queue, offset) for queue, offset in sorted(whole.items())]
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(entries))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            raise StorageError(f"offsets cannot be saved to {self._path}: {error}") from error
