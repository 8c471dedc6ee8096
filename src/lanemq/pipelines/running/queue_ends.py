"""Which queues a pipeline has read to their ends, for stages that wait for queues unless they are idle."""

import logging
from dataclasses import replace

from lanemq.model.errors import LaneError
from lanemq.model.units import Millis
from lanemq.pipelines.checkpoint.checkpoint import SparkLog
from lanemq.spark.options import ReadOptions
from lanemq.spark.read.brokers import Brokers

log = logging.getLogger(__name__)


class SourceEnds:
    """Compares what Spark has recorded as done with the ends of the queues. Connects at the first call."""

    def __init__(self, options: ReadOptions, spark_log: SparkLog) -> None:
        self._options = replace(options, wait=Millis(0))
        self._log = spark_log
        self._brokers: Brokers | None = None

    def __call__(self) -> dict[str, int | None]:
        """As `QueueEnds` says. Never raises: without an answer nothing is known to be idle."""
        done = self._log.done()
        if done is None:
            return {}
        read = self._log.end_of(done)
        try:
            if self._brokers is None:
                self._brokers = Brokers(self._options)
            bounds = self._brokers.bounds()
        except LaneError as error:
            log.info("the ends of the queues are unknown, so no queue counts as idle: %s", error)
            return {}
        found: dict[str, int | None] = {}
        for queue in bounds.keys() | read.keys():
            at, held = read.get(queue), bounds.get(queue)
            end = None if held is None else int(held.end)
            is_empty = held is not None and held.first == held.end
            is_read = end is not None and (is_empty or (at is not None and at >= end))
            found[f"{queue.topic}/{queue.broker}/{queue.queue_id}"] = end if is_read else None
        return found

    def close(self) -> None:
        if self._brokers is not None:
            self._brokers.close()
