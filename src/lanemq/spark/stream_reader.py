"""`spark.readStream.format("lanemq")`: plans batches in the driver, reads them in executors.

The checkpoint is the truth: a batch is its start and end, and both can be read again after any failure. What the
broker stores as a group's offset follows behind. In a group, a batch holds only queues that this query owns, and
a position moves only in them.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lanemq.clock import SystemClock
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.spark.batch_reader import range_partition
from lanemq.spark.brokers import Brokers, QueueBounds
from lanemq.spark.fetch import RangeReader
from lanemq.spark.membership import Membership
from lanemq.spark.offsets import OffsetJson, Positions, from_json, to_json
from lanemq.spark.options import ReadOptions
from lanemq.spark.planning import (
    Span,
    available,
    begins,
    limit_bytes,
    limit_rows,
    must_wait,
    plan,
    split,
)
from lanemq.spark.reading import read_partition, report_losses
from lanemq.spark.schema import arrow_schema, check_schema
from lanemq.spark.waiting import Patience

log = logging.getLogger(__name__)


class Driver:
    """The part that lives in the driver for as long as a query runs: connections, membership, memory of losses."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.clock = SystemClock()
        self.brokers = Brokers(options)
        self.membership = Membership(options) if options.is_member else None
        self.ends: Positions = {}
        """What all queues held when last asked."""
        self.target: Positions | None = None
        """With available-now: where the query stops."""
        self.last_batch: Millis = self.clock.now()
        self.left_out: Positions = {}
        """Queues whose part of a batch was not read because another member owns them, and where it began."""
        self._told: set[str] = set()

    def bounds(self) -> QueueBounds:
        found = self.brokers.bounds()
        self.ends = {queue: held.end for queue, held in found.items()}
        if self.membership is not None:
            self.membership.join({queue.topic for queue in found})
        return found

    def report(self, losses: Sequence[str]) -> None:
        """Each loss once: a deleted topic stays deleted, and one line about it is enough."""
        report_losses([loss for loss in losses if loss not in self._told], fail=self.options.fail_on_data_loss)
        self._told.update(losses)

    def close(self) -> None:
        if self.membership is not None:
            self.membership.leave()
        self.brokers.close()


class LaneStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls. Everything that needs a connection waits in `_driver` until it is needed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema)
        self._opened: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get a copy without connections."""
        return {**self.__dict__, "_opened": None}

    @property
    def _driver(self) -> Driver:
        if self._opened is None:
            self._opened = Driver(self._options)
        return self._opened

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        brokers = self._driver.brokers
        return to_json(brokers.positions(self._options.start, brokers.existing_bounds()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        return to_json(_next_end(self._driver, from_json(start), limit))

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return to_json(self._driver.ends) if self._driver.ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        driver = self._driver
        driver.bounds()
        driver.target = dict(driver.ends)
        if driver.membership is not None:
            driver.membership.settle(self._options.wait)

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        driver = self._driver
        spans, epochs = _spans(driver, from_json(start), from_json(end))
        driver.last_batch = driver.clock.now()
        client = driver.membership.client_id if driver.membership is not None else None
        return [
            range_partition(span, self._options, driver.brokers, client, epochs.get(span.queue) or None)
            for span in spans
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, arrow_schema(self._schema))

    def commit(self, end: OffsetJson) -> None:
        driver = self._driver
        if driver.membership is not None:
            return  # stored already when the batch behind it was planned, under the lease
        if self._options.group is not None:
            driver.brokers.store(from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _next_end(driver: Driver, start: Positions, limit: ReadLimit) -> Positions:
    """Where the next batch ends; `start` itself if there is nothing to do yet."""
    options = driver.options
    if driver.membership is not None:
        # Spark plans a batch only when the one before is finished, so everything up to `start` is done.
        driver.membership.batch_done(start)
    bounds = driver.bounds()
    found = begins(start, bounds)
    driver.report(found.losses)
    held_back = _held_back(driver, start) | found.set_back
    first = _owned(driver, {queue: at for queue, at in found.offsets.items() if queue not in held_back})
    top = {queue: driver.ends[queue] for queue in first}
    if driver.target is not None:
        top = {queue: min(end, driver.target.get(queue, first[queue])) for queue, end in top.items()}
    elif must_wait(available(first, top), options.min_offsets, _waited(driver), options.max_delay):
        top = dict(first)
    return {**start, **found.offsets_unchanged(start), **_limited(driver, first, top, limit), **held_back}


def _held_back(driver: Driver, start: Positions) -> Positions:
    """Queues whose last range was another member's to read: their position goes back to where it began."""
    held_back = {queue: at for queue, at in driver.left_out.items() if start.get(queue, at) != at}
    driver.left_out = held_back
    return held_back


def _owned(driver: Driver, offsets: Positions) -> Positions:
    """Those of the queues that this query may read, each not before the group's own offset."""
    if driver.membership is None:
        return offsets
    usable = driver.membership.usable()
    return {queue: max(at, usable[queue]) for queue, at in offsets.items() if queue in usable}


def _waited(driver: Driver) -> Millis:
    return Millis(driver.clock.now() - driver.last_batch)


def _limited(driver: Driver, first: Positions, top: Positions, limit: ReadLimit) -> Positions:
    """The engine's limit always counts; the source's own byte limit counts unless everything is asked for."""
    everything = isinstance(limit, ReadAllAvailable)
    most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
    if most_bytes is None and not everything:
        most_bytes = driver.options.max_bytes
    if most_bytes is not None:
        top = limit_bytes(first, top, _sizes(driver, first, top), most_bytes)
    return limit_rows(first, top, limit.max_rows) if isinstance(limit, ReadMaxRows) else top


def _sizes(driver: Driver, first: Positions, top: Positions) -> dict[MessageQueue, float]:
    """What a message takes in each queue that has any: one small pull each."""
    reader = RangeReader(Patience(driver.options.wait), fail_on_data_loss=False)
    try:
        sizes = {}
        for queue in first:
            if first[queue] < top[queue]:
                span = Span(queue, first[queue], top[queue])
                sizes[queue] = reader.mean_size(range_partition(span, driver.options, driver.brokers).wanted)
                reader.close()
        return sizes
    finally:
        reader.close()


def _spans(driver: Driver, start: Positions, end: Positions) -> tuple[tuple[Span, ...], dict[MessageQueue, Epoch]]:
    """What the batch reads, and in a group under which leases."""
    bounds = driver.bounds()
    if driver.membership is None:
        planned = plan(start, end, bounds)
        driver.report(planned.losses)
        least = 0 if driver.options.ordered else driver.options.min_partitions
        return split(planned.spans, least), {}
    promised = [queue for queue in end if end[queue] > start.get(queue, 0)]
    if not set(promised) <= driver.membership.usable().keys():
        # A batch repeated after a restart: our own former lease may have to end first.
        driver.membership.settle(driver.options.wait)
    epochs = dict(driver.membership.take(promised))
    floors = driver.membership.usable()
    driver.left_out |= {queue: start[queue] for queue in promised if queue in start and queue not in epochs}
    begin = {queue: max(start.get(queue, floors[queue]), floors[queue]) for queue in epochs if queue in floors}
    planned = plan(begin, {queue: end[queue] for queue in begin}, bounds)
    driver.report(planned.losses)
    return planned.spans, epochs
