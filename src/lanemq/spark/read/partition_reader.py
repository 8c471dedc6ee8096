"""Reads the ranges of a task in an executor, one after the other, and decodes them into Arrow batches.

The executor works on a pickled copy of the partition, which contains everything it needs.

Invariant: the rows of a range are in the order of offsets and not mixed with those of other ranges.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lanemq.model.errors import LaneError
from lanemq.model.units import Millis
from lanemq.net.security import OPEN, Security
from lanemq.spark.columns import DecodeOptions, decode
from lanemq.spark.options import OnDamaged, ReadOptions
from lanemq.spark.read.range_reader import QueueRange, RangeReader
from lanemq.spark.retrying import Retrying
from lanemq.spark.worker_process import prepare_task_process

JOIN_BYTES = 256 * 1024
"""Arrow batches of different queues are joined until they have this size. Larger: more is copied. Much smaller: each
queue with a few messages costs a batch, about 0.5 ms in Python and in the JVM."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How ranges are read; the same for all partitions of a query."""

    wait: Millis
    fail_on_data_loss: bool
    chunk_bytes: int
    security: Security = OPEN
    on_damaged: OnDamaged = OnDamaged.FAIL


class TaskPartition(InputPartition):
    """The ranges that one task reads, as Spark sends them to an executor."""

    def __init__(self, ranges: Sequence[QueueRange], settings: ReadSettings) -> None:
        self.ranges = tuple(ranges)
        super().__init__(self.ranges)
        self.settings = settings


def task_partition(ranges: Sequence[QueueRange], options: ReadOptions) -> TaskPartition:
    """The partition of a task that reads these ranges."""
    settings = ReadSettings(
        options.wait, options.fail_on_data_loss, options.chunk_bytes, options.security, options.on_damaged
    )
    return TaskPartition(ranges, settings)


def read_partition(partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a partition: range after range, each in the order of its offsets."""
    if not isinstance(partition, TaskPartition):
        return  # Spark adds an empty partition to a batch query that has none
    prepare_task_process()
    settings = partition.settings
    reader = RangeReader(
        Retrying(settings.wait), fail_on_data_loss=settings.fail_on_data_loss, security=settings.security
    )
    try:
        yield from join_small(_decoded(reader, partition, schema))
    finally:
        reader.close()


def _decoded(reader: "RangeReader", partition: TaskPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    settings = partition.settings
    for wanted in partition.ranges:
        decoding = DecodeOptions(schema, wanted.queue.broker, wanted.tags.tags, settings.on_damaged)
        try:
            for body in reader.chunks(wanted, settings.chunk_bytes):
                for batch in decode(body, wanted.first, wanted.end, decoding):
                    if batch.num_rows:
                        yield batch
        except LaneError as error:
            error.add_note(f"while reading {wanted.queue} from offset {wanted.first} to {wanted.end - 1}")
            raise


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, with consecutive small batches joined. Large ones are not copied."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        is_large = batch.nbytes >= JOIN_BYTES
        if not is_large:
            held.append(batch)
            size += batch.nbytes
        if is_large or size >= JOIN_BYTES:
            yield from _joined(held)
            held, size = [], 0
        if is_large:
            yield batch
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()
