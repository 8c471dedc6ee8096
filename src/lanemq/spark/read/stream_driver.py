"""The driver's part of a stream: chooses the end of each batch, plans it, and reports what is done.

The checkpoint decides: a batch is its start and end, and can be read again after any failure. With a group, its offsets
at the broker follow the checkpoint; they show how far the query is, and nothing reads them.

Invariants:

- Spark plans a batch only after the one before is finished, so everything before its start is done and may be reported.
- A query that stops after its last batch has reported that batch, if Spark's checkpoint says that it is done.
- A query whose group consumers use ends before it reads anything.
"""

import json
import logging
from collections.abc import Mapping, Sequence

from lanemq.clock import SystemClock
from lanemq.files import locate
from lanemq.model.errors import LaneError, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.spark.offsets import NewestMessage, OffsetJson, Positions, Stored, from_json, to_json
from lanemq.spark.options import ReadOptions
from lanemq.spark.parallelism import least_tasks
from lanemq.spark.read.brokers import BoundsByQueue, Brokers
from lanemq.spark.read.partition_reader import TaskPartition, task_partition
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
    queues_left_out,
    replaced_loss,
    replaced_queues,
    resume_points,
    split,
)
from lanemq.spark.read.range_reader import QueueRange, RangeReader, Sample, queue_range, report_losses
from lanemq.spark.retrying import Retrying
from lanemq.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    tells_batch_starts,
)

log = logging.getLogger(__name__)


class StreamDriver:
    """The driver's state of one running query. Not thread-safe."""

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
        self._ends_without_starts = not tells_batch_starts()
        self._target: Positions | None = None
        """With available-now: where the query stops."""
        self._chosen: tuple[Positions, BoundsByQueue] | None = None
        """The end of the next batch, with what the brokers reported when it was chosen; None once it is planned."""
        self._running: Positions = {}
        """The end of the batch that was planned last."""
        self._last_batch = self._clock.now()
        self._read_before: dict[tuple[MessageQueue, QueueOffset], NewestMessage] = {}
        """By queue and start of the batch that is planned: the queue's newest message when that start was chosen."""
        self._reported_losses: dict[str, frozenset[str]] = {}
        """The losses seen last, when a batch was chosen and when it was planned."""

    def close(self) -> None:
        self._report_last()
        self.brokers.close()

    def stop_at_current_end(self) -> None:
        """Available-now: the query reads up to the current end of each queue; later messages are for the next run."""
        self._bounds()
        self._target = dict(self.ends)

    def next_end(
        self,
        start: Positions,
        limit: ReadLimit,
        created: Mapping[str, int] | None = None,
        stored: Stored | None = None,
    ) -> Positions:
        """The end of the next batch; `start` if there is nothing to do yet.

        `created` says when the topics of `start` were created, `stored` which messages were the newest ones then.
        Queues that end before the position get their first message, or their end, as their position in this batch,
        which reads nothing from them. Queues that a topic lost when it was created again have none.
        """
        self.brokers.expect(start)
        bounds = self._bounds()
        end = self._next_end(start, limit, created or {}, stored or {}, bounds)
        self._chosen = end, bounds
        return end

    def _next_end(
        self, start: Positions, limit: ReadLimit, created: Mapping[str, int], stored: Stored, bounds: BoundsByQueue
    ) -> Positions:
        options = self._options
        replaced = replaced_queues(start, created, self.brokers.created, bounds)
        lasting = lasting_topics(created, self.brokers.created)
        found = resume_points(start | replaced, bounds, self._options.reads, lasting)
        lost = tuple(replaced_loss(queue, start[queue]) for queue in replaced)
        kept = {queue: at for queue, at in start.items() if queue not in replaced}
        others = tuple(other_ends(kept, stored, self.brokers.stored))
        self._report_losses("chosen", found.losses + lost + others)
        left_out = queues_left_out(start, created, self.brokers.created, bounds)
        start = {queue: at for queue, at in start.items() if queue not in left_out}
        set_back = found.set_back | replaced
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
        bounds = self._bounds()
        self._chosen = self.ends, bounds
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
        options = self._options
        self.brokers.expect(start)
        self._read_before = {(queue, start[queue]): last for queue, last in (stored or {}).items() if queue in start}
        bounds = self._bounds_for(end)
        replaced = replaced_queues(end, created or {}, self.brokers.created, bounds)
        self._report_losses("replaced", [replaced_loss(queue, start.get(queue, 0)) for queue in replaced])
        end = {queue: at for queue, at in end.items() if queue not in replaced}
        if self._ends_without_starts:
            start = self._start_of_all(start, created_before or {}, bounds)
        if not self._running:
            self.report_done(start)
        self._last_batch, self._running = self._clock.now(), end
        ranges = plan_batch(start, end, bounds, options.reads)
        self._report_losses("planned", ranges.losses)
        parts = split(ranges.ranges, 0 if options.ordered else options.min_partitions)
        return [task_partition([self._range(part) for part in task], options) for task in pack(parts, least)]

    def _start_of_all(self, start: Positions, created: Mapping[str, int], bounds: BoundsByQueue) -> Positions:
        """Where a batch begins whose end was chosen without its start; reports what is lost before it."""
        replaced = replaced_queues(start, created, self.brokers.created, bounds)
        lasting = lasting_topics(created, self.brokers.created)
        found = resume_points(start | replaced, bounds, self._options.reads, lasting)
        lost = tuple(replaced_loss(queue, start[queue]) for queue in replaced)
        self._report_losses("chosen", found.losses + lost)
        return start | replaced | found.set_back

    def report_done(self, end: Positions) -> None:
        """Stores the group's offsets at the broker, if there is a group."""
        self.brokers.report(end)

    def _range(self, part: OffsetRange) -> QueueRange:
        return queue_range(
            part,
            self._options,
            self.brokers.master(part.queue),
            self.brokers.created,
            self._read_before.get((part.queue, part.first)),
        )

    def _report_last(self) -> None:
        """Reports the last batch. Spark confirms a batch only when it plans the next one."""
        if self._options.group is None or not self._running or not is_committed(self._checkpoint, self._running):
            return
        try:
            self.report_done(self._running)
        except LaneError as error:
            log.warning("the group's offsets after the last batch are not stored at the broker: %s", error)

    def _bounds(self) -> BoundsByQueue:
        found = self.brokers.bounds()
        self.ends = {queue: held.end for queue, held in found.items()}
        return found

    def _bounds_for(self, end: Positions) -> BoundsByQueue:
        """What the brokers reported when this end was chosen. A batch that is planned again, or that the run before had
        chosen, needs a new answer. What a task finds changed since is reported by the task."""
        chosen, self._chosen = self._chosen, None
        return chosen[1] if chosen is not None and chosen[0] == end else self._bounds()

    def _report_losses(self, when: str, losses: Sequence[str]) -> None:
        """Reports each loss once, not for every batch."""
        known = frozenset().union(*self._reported_losses.values())
        report_losses([loss for loss in losses if loss not in known], fail=self._options.fail_on_data_loss)
        self._reported_losses[when] = frozenset(losses)

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
