"""The driver's part of a stream: chooses the end of each batch, plans it, and reports what is done.

The checkpoint decides: a batch is its start and end, and can be read again after any failure. The group's offset at the
broker follows the checkpoint.

Invariants:

- Spark plans a batch only after the one before is finished, so everything before its start is done and may be reported.
- In a group, a batch contains only queues that this query owns. A part of a batch that another member has taken over is
  not read here, and its position goes back to where the part began, even if the query stops before it can note that.
- A query that stops after its last batch has reported that batch, if Spark's checkpoint says that it is done.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence

from lanemq.clock import SystemClock
from lanemq.files import locate
from lanemq.model.errors import LaneError, LeaseLost, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.group.membership import DriverMembership
from lanemq.spark.group.one_load import OneLoad
from lanemq.spark.offsets import NewestMessage, OffsetJson, Positions, Stored, from_json, to_json
from lanemq.spark.options import ReadOptions
from lanemq.spark.parallelism import least_tasks
from lanemq.spark.read.brokers import BoundsByQueue, Brokers
from lanemq.spark.read.partition_reader import (
    QueueRange,
    RangeReader,
    Sample,
    TaskPartition,
    queue_range,
    report_losses,
    task_partition,
)
from lanemq.spark.read.planning import (
    OffsetRange,
    available,
    lasting_topics,
    limit_bytes,
    limit_rows,
    must_wait,
    other_ends,
    pack,
    plan_batch,
    replaced_loss,
    replaced_queues,
    resume_points,
    split,
)
from lanemq.spark.retrying import Retrying
from lanemq.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    tells_batch_starts,
)
from lanemq.spark.worker_process import driver_process

log = logging.getLogger(__name__)


class StreamDriver:
    """The driver's state of one running query: connections, membership, and what is left out. Not thread-safe."""

    def __init__(self, options: ReadOptions, checkpoint: str | None = None) -> None:
        """`checkpoint`: the query's checkpoint location, if it is known; read only when the query ends."""
        self.brokers = Brokers(options)
        self.ends: Positions = {}
        """The ends of all queues when they were last requested."""
        self.least_tasks = least_tasks(options)
        """Among how many tasks the next batches are divided at least."""
        self._options = options
        self._checkpoint = checkpoint
        self._clock = SystemClock()
        driver = driver_process()
        self._one_load = OneLoad(driver, options.group) if options.is_member and options.group and driver else None
        self._membership = DriverMembership(options) if options.is_member else None
        self._reporter: MemberCalls | None = None
        self._ends_without_starts = not tells_batch_starts()
        self._target: Positions | None = None
        """With available-now: where the query stops."""
        self._running: Positions = {}
        """The end of the batch that was planned last."""
        self._last_batch = self._clock.now()
        self._read_before: dict[tuple[MessageQueue, QueueOffset], NewestMessage] = {}
        """By queue and start of the batch that is planned: the queue's newest message when that start was chosen."""
        self._left_out: Positions = {}
        """Queues whose part of a batch another member reads, and where that part began."""
        self._reported_losses: dict[str, frozenset[str]] = {}
        """The losses seen last, when a batch was chosen and when it was planned."""
        self._logged_skips: Positions = {}
        """The group's offset for which skipped messages were last logged."""

    def close(self) -> None:
        self._report_last()
        if self._membership is not None:
            self._membership.leave()
        if self._one_load is not None:
            self._one_load.close()
        if self._reporter is not None:
            self._reporter.close()
        self.brokers.close()

    def stop_at_current_end(self) -> None:
        """Available-now: the query reads up to the current end of each queue; later messages are for the next run."""
        self._bounds()
        self._target = dict(self.ends)
        if self._membership is not None:
            self._need_whole_share(self._membership)

    def next_end(
        self,
        start: Positions,
        limit: ReadLimit,
        created: Mapping[str, int] | None = None,
        stored: Stored | None = None,
    ) -> Positions:
        """The end of the next batch; `start` if there is nothing to do yet.

        By queue: `first` is where reading continues, `top` how far the batch may go, and `set_back` where a position
        goes back to without being read in this batch. `created` says when the topics of `start` were created, `stored`
        which messages were the newest ones then.
        """
        options = self._options
        self.brokers.expect(start)
        if self._membership is not None:
            self._batch_done(self._membership, start)
        bounds = self._bounds()
        replaced = replaced_queues(start, created or {}, self.brokers.created, bounds)
        lasting = lasting_topics(created or {}, self.brokers.created)
        found = resume_points(*self._readable(start | replaced, bounds), self._options.reads, lasting)
        lost = tuple(replaced_loss(queue, start[queue]) for queue in replaced)
        kept = {queue: at for queue, at in start.items() if queue not in replaced}
        others = tuple(other_ends(kept, stored or {}, self.brokers.stored))
        self._report_losses("chosen", found.losses + lost + others)
        set_back = self._put_back(start) | found.set_back | replaced
        first = {queue: at for queue, at in found.offsets.items() if queue not in set_back}
        top = {queue: max(first[queue], self.ends[queue]) for queue in first}
        if self._target is not None:
            target = self._target
            top = {q: max(first[q], min(end, target.get(q, first[q]))) for q, end in top.items()}
        elif must_wait(available(first, top), options.min_offsets, self._waited(), options.max_delay):
            return {**start, **set_back}
        return {**start, **self._limited(first, top, limit), **set_back}

    def all_available(self) -> OffsetJson:
        """The current end of every queue. What is missing between start and end is found when the batch is planned."""
        self._bounds()
        return to_json(self.ends, self.brokers.created, self.least_tasks, self.brokers.stored)

    def partitions(
        self,
        start: Positions,
        end: Positions,
        created: Mapping[str, int] | None = None,
        created_before: Mapping[str, int] | None = None,
        least: int | None = None,
        stored: Stored | None = None,
    ) -> list[TaskPartition]:
        """The partitions of the batch from `start` to `end`; the same again after a failure.

        `created` says when the topics of `end` were created, `created_before` those of `start`. `least` is the number
        of tasks that was chosen with `end`, and `stored` are the newest messages when `start` was chosen.
        """
        self.brokers.expect(start)
        self._read_before = {(queue, start[queue]): last for queue, last in (stored or {}).items() if queue in start}
        bounds = self._bounds()
        replaced = replaced_queues(end, created or {}, self.brokers.created, bounds)
        self._report_losses("replaced", [replaced_loss(queue, start.get(queue, 0)) for queue in replaced])
        end = {queue: at for queue, at in end.items() if queue not in replaced}
        if self._ends_without_starts:
            start = self._start_of_all(start, created_before or {}, bounds)
        self._last_batch, self._running = self._clock.now(), end
        if self._membership is None:
            ranges = self._planned(start, end, bounds)
            ranges = split(ranges, 0 if self._options.ordered else self._options.min_partitions)
            return self._tasks(ranges, least)
        begin, epochs = self._claimed(self._membership, start, end, bounds)
        ranges = self._planned(begin, {queue: end[queue] for queue in begin}, bounds)
        return self._tasks(ranges, least, self._membership.client_id, epochs)

    def _tasks(
        self,
        ranges: Sequence[OffsetRange],
        least: int | None,
        client: str | None = None,
        epochs: Mapping[MessageQueue, Epoch] | None = None,
    ) -> list[TaskPartition]:
        """The tasks that read these ranges, under the leases of `client` with these epochs, if they are given."""
        epochs = epochs or {}
        return [
            task_partition([self._range(each, client, epochs.get(each.queue) or None) for each in task], self._options)
            for task in pack(ranges, least)
        ]

    def _start_of_all(self, start: Positions, created: Mapping[str, int], bounds: BoundsByQueue) -> Positions:
        """Where a batch begins whose end was chosen without its start; reports what is lost before it."""
        replaced = replaced_queues(start, created, self.brokers.created, bounds)
        lasting = lasting_topics(created, self.brokers.created)
        found = resume_points(start | replaced, bounds, self._options.reads, lasting)
        lost = tuple(replaced_loss(queue, start[queue]) for queue in replaced)
        self._report_losses("chosen", found.losses + lost)
        return start | replaced | found.set_back

    def report_done(self, end: Positions) -> None:
        """Stores the group's offsets at the broker; a member does so under its leases."""
        if self._membership is not None:
            self._batch_done(self._membership, end)
            return
        if self._options.group is None:
            return
        if self._reporter is None:
            options = self._options
            self._reporter = MemberCalls(
                options.servers, options.pull_group, options.tags, self._clock, security=options.security
            )
        for queue, offset in end.items():
            try:
                self._reporter.commit(self.brokers.master(queue), queue, offset, Epoch(0))
            except LaneError as error:
                # The checkpoint has the offset, and the next batch stores it again.
                log.warning("offset %s of %s is not stored at the broker: %s", offset, queue, error)

    def _range(self, each: OffsetRange, client: str | None = None, epoch: int | None = None) -> QueueRange:
        return queue_range(
            each,
            self._options,
            self.brokers.master(each.queue),
            client,
            epoch,
            self._read_before.get((each.queue, each.first)),
        )

    def _report_last(self) -> None:
        """Reports the last batch. Spark confirms a batch only when it plans the next one."""
        if self._options.group is None or not self._running or not is_committed(self._checkpoint, self._running):
            return
        try:
            self.report_done(self._running)
        except LaneError as error:
            log.warning("the group's offsets after the last batch are not stored at the broker: %s", error)

    def _batch_done(self, membership: DriverMembership, end: Positions) -> None:
        """Reports the end of a batch, without the queues that were left out of it."""
        undone = membership.batch_done({queue: at for queue, at in end.items() if queue not in self._left_out})
        self._left_out |= undone

    def _bounds(self) -> BoundsByQueue:
        found = self.brokers.bounds()
        self.ends = {queue: held.end for queue, held in found.items()}
        if self._membership is not None:
            self._membership.join({queue.topic for queue in found})
        return found

    def _report_losses(self, when: str, losses: Sequence[str]) -> None:
        """Reports each loss once, not for every batch."""
        known = frozenset().union(*self._reported_losses.values())
        report_losses([loss for loss in losses if loss not in known], fail=self._options.fail_on_data_loss)
        self._reported_losses[when] = frozenset(losses)

    def _put_back(self, start: Positions) -> Positions:
        """Queues that were left out of a batch and are still past their part, with where the part began."""
        self._left_out = {queue: at for queue, at in self._left_out.items() if start.get(queue, at) != at}
        return dict(self._left_out)

    def _readable(self, start: Positions, bounds: BoundsByQueue) -> tuple[Positions, BoundsByQueue]:
        """This query's positions in the queues that it may read, and their bounds.

        In a group a position is never before the group's offset: what another member has done is not read again.
        Queues of other members are left out, so that their losses are not reported here.
        """
        if self._membership is None:
            return start, bounds
        group_offsets = self._membership.usable()
        bounds = self._refreshed(group_offsets, bounds)
        standing = {queue: at for queue, at in start.items() if queue not in bounds}
        mine = {queue: held for queue, held in bounds.items() if queue in group_offsets}
        for queue, held in mine.items():
            at, group_offset = start.get(queue, held.first), group_offsets[queue]
            # A group's offset past the end belongs to a topic that was deleted and created again.
            standing[queue] = self._skip_to(queue, at, group_offset) if group_offset <= held.end else at
        return standing, mine

    def _skip_to(self, queue: MessageQueue, at: QueueOffset, group_offset: QueueOffset) -> QueueOffset:
        """The later of the query's position and the group's offset; logs skipped messages once."""
        if at >= group_offset:
            return at
        if self._logged_skips.get(queue) != group_offset:
            self._logged_skips[queue] = group_offset
            log.warning(
                "group %s: %s: the query is at offset %d, the group at %d: the query skips the %d messages between, "
                "because another member, or a reset of the group, has stored that offset",
                self._options.group, queue, at, group_offset, group_offset - at,
            )  # fmt: skip
        return group_offset

    def _refreshed(self, group_offsets: Positions, bounds: BoundsByQueue) -> BoundsByQueue:
        """Requests the bounds again if a group's offset is past them: another member has moved on since."""
        outdated = any(queue in bounds and at > bounds[queue].end for queue, at in group_offsets.items())
        return self._bounds() if outdated else bounds

    def _need_whole_share(self, membership: DriverMembership) -> None:
        """A run with available-now must not succeed while queues of its share are unread."""
        missing = membership.wait_for_share(self._options.wait)
        if missing is not None:
            raise LeaseLost(
                f"group {self._options.group}: after {self._options.wait / 1000:.0f} s {missing}, so this run cannot "
                f"read everything; nothing was read or lost. Start it again, or set a longer brokerWait"
            )

    def _waited(self) -> Millis:
        return Millis(self._clock.now() - self._last_batch)

    def _limited(self, first: Positions, top: Positions, limit: ReadLimit) -> Positions:
        """Applies Spark's limit, and `maxBytesPerTrigger` unless Spark asks for everything."""
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if max_bytes is not None and not isinstance(limit, ReadAllAvailable):
            samples = self._samples(first, top)
            full = {q: QueueOffset(at + samples[q].empty) if q in samples else at for q, at in first.items()}
            top = limit_bytes(full, top, {q: each.size for q, each in samples.items()}, max_bytes)
        return limit_rows(first, top, limit.max_rows) if isinstance(limit, ReadMaxRows) else top

    def _samples(self, first: Positions, top: Positions) -> dict[MessageQueue, Sample]:
        """The message size in each queue with a backlog: one small pull each, a few more with a tag filter."""
        samples: dict[MessageQueue, Sample] = {}
        for queue in first:
            if first[queue] < top[queue]:
                reader = RangeReader(
                    Retrying(self._options.wait), fail_on_data_loss=False, security=self._options.security
                )
                try:
                    samples[queue] = reader.sample(self._range(OffsetRange(queue, first[queue], top[queue])))
                finally:
                    reader.close()
        return samples

    def _planned(self, start: Positions, end: Positions, bounds: BoundsByQueue) -> tuple[OffsetRange, ...]:
        plan = plan_batch(start, end, bounds, self._options.reads)
        self._report_losses("planned", plan.losses)
        return plan.ranges

    def _claimed(
        self, membership: DriverMembership, start: Positions, end: Positions, bounds: BoundsByQueue
    ) -> tuple[Positions, dict[MessageQueue, Epoch]]:
        """Where the batch begins in the queues that it may read, and the epochs of their leases."""
        promised = [queue for queue in end if end[queue] > start.get(queue, 0)]
        self._wait_for_leases(membership, promised)
        claims = membership.take(promised)
        # A new queue has no start yet. For a queue that no longer exists there is nothing to note.
        firsts = {queue: held.first for queue, held in bounds.items()} | start
        left = [queue for queue in promised if queue in firsts and queue not in claims]
        membership.leave_to_others({queue: end[queue] for queue in left if queue in bounds})
        self._left_out |= {queue: firsts[queue] for queue in left}
        begin: Positions = {}
        held = self._refreshed({queue: claim.group_offset for queue, claim in claims.items()}, bounds)
        for queue, claim in claims.items():
            at = firsts.get(queue, claim.group_offset)
            inside = queue in held and claim.group_offset <= held[queue].end
            begin[queue] = self._skip_to(queue, at, claim.group_offset) if inside else at
        return begin, {queue: claim.epoch for queue, claim in claims.items()}

    def _wait_for_leases(self, membership: DriverMembership, promised: Collection[MessageQueue]) -> None:
        """After a restart, a repeated batch may have to wait until the leases of the former run end."""
        if not set(promised) <= membership.usable().keys():
            membership.wait_for_share(self._options.wait)


def is_committed(checkpoint: str | None, end: Positions) -> bool:
    """Whether the last batch that Spark's checkpoint records as done has this end. False if it cannot be read."""
    if checkpoint is None:
        return False
    try:
        folder = locate(checkpoint)
        last = max(int(path.name) for path in (folder / "commits").iterdir() if path.name.isdecimal())
        lines = (folder / "offsets" / str(last)).read_bytes().decode("utf-8").splitlines()[2:]
    except (OSError, ValueError, LaneError):
        return False
    topics = {queue.topic for queue in end}
    candidates = [each for each in map(_source_end, lines) if {queue.topic for queue in each} == topics]
    # A line does not name its source. Two sources of the same topics must agree, or one would answer for the other.
    return bool(candidates) and all(each == end for each in candidates)


def _source_end(line: str) -> Positions:
    """The end of one source in a line of Spark's offset log; empty if it is not a lanemq source."""
    try:
        return from_json(json.loads(line))
    except (ValueError, UsageError):
        return {}
