"""`spark.read.format("lanemq")`: reads everything between two limits.

The end offsets are fixed during planning, so messages that arrive while the query runs are not part of it. Executors
import this module for every worker process, so planning imports what only the driver needs.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lanemq.spark.columns import arrow_schema, check_schema
from lanemq.spark.offsets import LimitKind
from lanemq.spark.options import ReadOptions
from lanemq.spark.read.partition_reader import read_partition, task_partition
from lanemq.spark.read.planning import pack, plan_batch, split
from lanemq.spark.read.range_reader import queue_range, report_losses


class LaneBatchReader(DataSourceReader):
    """Plans in the driver and reads in executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        from lanemq.spark.parallelism import least_tasks, warn_if_too_few_queues
        from lanemq.spark.read.brokers import Brokers

        options = self._options
        with Brokers(options) as brokers:
            bounds = brokers.existing_bounds()
            warn_if_too_few_queues(options, len(bounds))
            start = brokers.positions(options.start, bounds)
            end = brokers.positions(options.end, bounds)
            if options.end.kind is not LimitKind.OFFSETS:
                end = {queue: max(offset, start[queue]) for queue, offset in end.items()}
            plan = plan_batch(start, end, bounds, options.reads)
            report_losses(plan.losses, fail=options.fail_on_data_loss)
            ranges = plan.ranges if options.ordered else split(plan.ranges, options.min_partitions)
            tasks = pack(ranges, least_tasks(options))
            return [
                task_partition(
                    [queue_range(each, options, brokers.master(each.queue), brokers.created) for each in task], options
                )
                for task in tasks
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, arrow_schema(self._schema))
