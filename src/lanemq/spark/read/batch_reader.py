"""`spark.read.format("lanemq")`: everything between two places, planned once.

The ends are fixed while planning, so messages that arrive during the query are not in it.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lanemq.spark.columns.schema import arrow_schema, check_schema
from lanemq.spark.options import ReadOptions
from lanemq.spark.places import Kind
from lanemq.spark.read.brokers import Brokers
from lanemq.spark.read.fetch import QueueRange
from lanemq.spark.read.partition_reader import RangePartition, Terms, read_partition, report_losses
from lanemq.spark.read.planning import Span, plan, split


class LaneBatchReader(DataSourceReader):
    """Plans in the driver, reads in executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Brokers(options) as brokers:
            bounds = brokers.existing_bounds()
            start = brokers.positions(options.start, bounds)
            end = brokers.positions(options.end, bounds)
            if options.end.kind is not Kind.OFFSETS:
                end = {queue: max(offset, start[queue]) for queue, offset in end.items()}
            planned = plan(start, end, bounds, options.reads)
            report_losses(planned.losses, fail=options.fail_on_data_loss)
            spans = planned.spans if options.ordered else split(planned.spans, options.min_partitions)
            return [range_partition(span, options, brokers) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, arrow_schema(self._schema))


def range_partition(
    span: Span, options: ReadOptions, brokers: Brokers, client: str | None = None, epoch: int | None = None
) -> RangePartition:
    """One task's work, with the address to go to and the lease to show."""
    wanted = QueueRange(
        queue=span.queue,
        first=span.first,
        end=span.end,
        address=brokers.master(span.queue),
        group=options.pull_group,
        tags=options.tags.text,
        client=client,
        epoch=epoch,
    )
    terms = Terms(options.wait, options.fail_on_data_loss, options.chunk_bytes, options.security, options.damaged)
    return RangePartition(wanted, terms)
