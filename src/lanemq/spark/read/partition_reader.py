"""What an executor does with a partition: opens a connection, reads its range, hands on Arrow batches.

Runs in another process than the planning, on a pickled copy: everything it needs is in the partition.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lanemq.client.consumer.tag_filter import tag_filter
from lanemq.model.units import Millis
from lanemq.net.freed_memory import keep_freed_memory
from lanemq.net.security import OPEN, Security
from lanemq.spark.columns.arrow import Wanted, decode
from lanemq.spark.columns.damage import Damaged
from lanemq.spark.read.fetch import DataLost, QueueRange, RangeReader
from lanemq.spark.read.waiting import Patience
from lanemq.spark.worker_log import log_in_worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """How ranges are read, the same for all of a query."""

    wait: Millis
    fail_on_data_loss: bool
    chunk_bytes: int
    security: Security = OPEN
    damaged: Damaged = Damaged.FAIL


class RangePartition(InputPartition):
    """One range of one queue."""

    def __init__(self, wanted: QueueRange, terms: Terms) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.terms = terms


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in the order of their offsets."""
    if not isinstance(partition, RangePartition):
        return  # Spark invents a partition for a batch query that has none
    log_in_worker()
    keep_freed_memory()
    wanted, terms = partition.wanted, partition.terms
    what = Wanted(schema, wanted.queue.broker, tag_filter(wanted.tags).tags, terms.damaged)
    reader = RangeReader(Patience(terms.wait), fail_on_data_loss=terms.fail_on_data_loss, security=terms.security)
    try:
        for body in reader.chunks(wanted, terms.chunk_bytes):
            batch = decode(body, wanted.first, wanted.end, what)
            if batch.num_rows:
                yield batch
    finally:
        reader.close()


def report_losses(losses: Sequence[str], *, fail: bool) -> None:
    """The data-loss policy: an error, or a warning for each."""
    if losses and fail:
        raise DataLost("; ".join(losses) + ". To go on without these messages set failOnDataLoss=false")
    for loss in losses:
        log.warning("%s; going on without these messages", loss)
