"""The driver's side of a streaming query, for as long as it runs: which batch comes next, and what is in it.

The rules guarded here: Spark plans a batch only when the one before is finished, so everything up to the start of
the next one is done and may be reported; in a group a batch holds only queues that this query owns; a part of a
batch that another member has taken over is not read here, and its position goes back to where it began, also when
the query is stopped before it could write that down; a query that ends after its last batch leaves nothing unreported.
"""

import logging
from collections.abc import Collection, Sequence

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from lanemq.clock import SystemClock
from lanemq.model.errors import LaneError, LeaseLost
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.spark.group.ending import is_done
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.group.membership import Membership
from lanemq.spark.offsets import Positions
from lanemq.spark.options import ReadOptions
from lanemq.spark.read.batch_reader import range_partition
from lanemq.spark.read.brokers import Brokers, QueueBounds
from lanemq.spark.read.fetch import RangeReader, Sample
from lanemq.spark.read.partition_reader import RangePartition, report_losses
from lanemq.spark.read.passed_over import PassedOver
from lanemq.spark.read.planning import Span, available, begins, limit_bytes, limit_rows, must_wait, plan, split
from lanemq.spark.read.waiting import Patience

log = logging.getLogger(__name__)


class Driver:
    """Connections, membership and memory of one running query. For one thread."""

    def __init__(self, options: ReadOptions, checkpoint: str | None = None) -> None:
        """`checkpoint`: where Spark notes what is done, if the query was told; asked only at the end."""
        self._checkpoint = checkpoint
        self._running: Positions = {}
        """Where the batch ends that was planned last."""
        self.brokers = Brokers(options)
        self.ends: Positions = {}
        """What all queues held when last asked."""
        self._options = options
        self._clock = SystemClock()
        self._membership = Membership(options) if options.is_member else None
        self._passed = PassedOver(options.group)
        self._reporter: MemberCalls | None = None
        self._target: Positions | None = None
        """With available-now: where the query stops."""
        self._last_batch = self._clock.now()
        self._left_out: Positions = {}
        """Queues whose part of a batch was another member's to read, and where that part began."""
        self._told: dict[str, frozenset[str]] = {}
        """Losses as they were last seen, while a batch was chosen and while it was planned."""

    def close(self) -> None:
        self._report_last()
        if self._membership is not None:
            self._membership.leave()
        if self._reporter is not None:
            self._reporter.close()
        self.brokers.close()

    def stop_at_what_is_there(self) -> None:
        """Available-now: messages that come later are for the next run."""
        self._bounds()
        self._target = dict(self.ends)
        if self._membership is not None:
            self._whole_share(self._membership)

    def next_end(self, start: Positions, limit: ReadLimit) -> Positions:
        """Where the next batch ends; `start` itself if there is nothing to do yet."""
        options = self._options
        self.brokers.expect(start)
        if self._membership is not None:
            self._batch_done(self._membership, start)
        found = begins(*self._readable(start, self._bounds()), self._options.reads)
        self._report("chosen", found.losses)
        set_back = self._put_back(start) | found.set_back
        first = {queue: at for queue, at in found.offsets.items() if queue not in set_back}
        top = {queue: max(first[queue], self.ends[queue]) for queue in first}
        if self._target is not None:
            target = self._target
            top = {q: max(first[q], min(end, target.get(q, first[q]))) for q, end in top.items()}
        elif must_wait(available(first, top), options.min_offsets, self._waited(), options.max_delay):
            return {**start, **set_back}
        return {**start, **self._limited(first, top, limit), **set_back}

    def partitions(self, start: Positions, end: Positions) -> list[RangePartition]:
        """What the batch from `start` to `end` reads; the same again after a failure."""
        self.brokers.expect(start)
        bounds = self._bounds()
        self._last_batch, self._running = self._clock.now(), end
        if self._membership is None:
            spans = self._planned(start, end, bounds)
            least = 0 if self._options.ordered else self._options.min_partitions
            return [range_partition(span, self._options, self.brokers) for span in split(spans, least)]
        begin, epochs = self._claimed(self._membership, start, end, bounds)
        spans = self._planned(begin, {queue: end[queue] for queue in begin}, bounds)
        client = self._membership.client_id
        return [
            range_partition(span, self._options, self.brokers, client, epochs[span.queue] or None) for span in spans
        ]

    def report_done(self, end: Positions) -> None:
        """Tells the broker how far the group is; a member does so under its leases."""
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
                # The checkpoint is the truth; the broker is told again after the next batch.
                log.warning("offset %s of %s is not stored at the broker: %s", offset, queue, error)

    def _report_last(self) -> None:
        """Spark says that a batch is done when it plans the next one; behind the last batch there is none."""
        if self._options.group is None or not self._running or not is_done(self._checkpoint, self._running):
            return
        try:
            self.report_done(self._running)
        except LaneError as error:
            log.warning("the group's offsets behind the last batch are not stored at the broker: %s", error)

    def _batch_done(self, membership: Membership, end: Positions) -> None:
        """What was left out is not done, whatever the end of the batch says."""
        behind = membership.batch_done({queue: at for queue, at in end.items() if queue not in self._left_out})
        self._left_out |= behind

    def _bounds(self) -> QueueBounds:
        found = self.brokers.bounds()
        self.ends = {queue: held.end for queue, held in found.items()}
        if self._membership is not None:
            self._membership.join({queue.topic for queue in found})
        return found

    def _report(self, when: str, losses: Sequence[str]) -> None:
        """Each loss once: a deleted topic stays deleted, and one line about it is enough. What is over is forgotten."""
        told = frozenset().union(*self._told.values())
        report_losses([loss for loss in losses if loss not in told], fail=self._options.fail_on_data_loss)
        self._told[when] = frozenset(losses)

    def _put_back(self, start: Positions) -> Positions:
        self._left_out = {queue: at for queue, at in self._left_out.items() if start.get(queue, at) != at}
        return dict(self._left_out)

    def _readable(self, start: Positions, bounds: QueueBounds) -> tuple[Positions, QueueBounds]:
        """Where this query stands in the queues it may read; what becomes of the others is no loss of its own.

        In a group that is not before the group's offset: what another member has done is not read again.
        """
        if self._membership is None:
            return start, bounds
        floors = self._membership.usable()
        bounds = self._as_new_as(floors, bounds)
        standing = {queue: at for queue, at in start.items() if queue not in bounds}
        mine = {queue: held for queue, held in bounds.items() if queue in floors}
        for queue, held in mine.items():
            at, floor = start.get(queue, held.first), floors[queue]
            # A floor behind the end belongs to a topic that was deleted and created again.
            standing[queue] = self._passed.later(queue, at, floor) if floor <= held.end else at
        return standing, mine

    def _as_new_as(self, floors: Positions, bounds: QueueBounds) -> QueueBounds:
        """A queue that was got after its bounds were asked for may stand behind them: another member went on there."""
        late = any(queue in bounds and floor > bounds[queue].end for queue, floor in floors.items())
        return self._bounds() if late else bounds

    def _whole_share(self, membership: Membership) -> None:
        """A run that reads what is there must not end well with queues of its share unread."""
        missing = membership.settle(self._options.wait)
        if missing is not None:
            raise LeaseLost(
                f"group {self._options.group}: after {self._options.wait / 1000:.0f} s {missing}, so this run cannot "
                f"read what is there; nothing was read or lost. Start it again, or give it a longer brokerWait"
            )

    def _waited(self) -> Millis:
        return Millis(self._clock.now() - self._last_batch)

    def _limited(self, first: Positions, top: Positions, limit: ReadLimit) -> Positions:
        """The engine's limit always counts; the option's byte limit counts unless everything is asked for."""
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if most is not None and not isinstance(limit, ReadAllAvailable):
            samples = self._samples(first, top)
            full = {q: QueueOffset(at + samples[q].empty) if q in samples else at for q, at in first.items()}
            top = limit_bytes(full, top, {q: each.size for q, each in samples.items()}, most)
        return limit_rows(first, top, limit.max_rows) if isinstance(limit, ReadMaxRows) else top

    def _samples(self, first: Positions, top: Positions) -> dict[MessageQueue, Sample]:
        """What a message takes in each queue that has any: one small pull each, a few more behind a filter."""
        samples: dict[MessageQueue, Sample] = {}
        for queue in first:
            if first[queue] < top[queue]:
                span = Span(queue, first[queue], top[queue])
                reader = RangeReader(
                    Patience(self._options.wait), fail_on_data_loss=False, security=self._options.security
                )
                try:
                    samples[queue] = reader.sample(range_partition(span, self._options, self.brokers).wanted)
                finally:
                    reader.close()
        return samples

    def _planned(self, start: Positions, end: Positions, bounds: QueueBounds) -> tuple[Span, ...]:
        planned = plan(start, end, bounds, self._options.reads)
        self._report("planned", planned.losses)
        return planned.spans

    def _claimed(
        self, membership: Membership, start: Positions, end: Positions, bounds: QueueBounds
    ) -> tuple[Positions, dict[MessageQueue, Epoch]]:
        """Where the batch begins in the queues it may read, and under which epochs."""
        promised = [queue for queue in end if end[queue] > start.get(queue, 0)]
        self._settle(membership, promised)
        claims = membership.take(promised)
        # A queue that is new has no start yet; of one that is gone nobody can be told anything.
        firsts = {queue: held.first for queue, held in bounds.items()} | start
        left = [queue for queue in promised if queue in firsts and queue not in claims]
        membership.leave_to_others({queue: end[queue] for queue in left if queue in bounds})
        self._left_out |= {queue: firsts[queue] for queue in left}
        begin: Positions = {}
        held = self._as_new_as({queue: claim.floor for queue, claim in claims.items()}, bounds)
        for queue, claim in claims.items():
            at = firsts.get(queue, claim.floor)
            inside = queue in held and claim.floor <= held[queue].end
            begin[queue] = self._passed.later(queue, at, claim.floor) if inside else at
        return begin, {queue: claim.epoch for queue, claim in claims.items()}

    def _settle(self, membership: Membership, promised: Collection[MessageQueue]) -> None:
        """A batch that is repeated after a restart may have to wait for the end of our own former leases."""
        if not set(promised) <= membership.usable().keys():
            membership.settle(self._options.wait)
