"""What can be known before Spark starts, asked before it starts: nobody waits for a session to hear of a typing error.

The rule guarded here: nothing is decided here that is not decided again where it counts. A lock or a topic may come and
go meanwhile; this only tells the usual mistakes early.
"""

import os
import shutil
from pathlib import Path

from lanemq.model.errors import CheckpointInUse, TopicNotFound, UsageError
from lanemq.pipelines.checkpoint.checkpoint import holder_of, own_identity
from lanemq.pipelines.checkpoint.spark_log import SparkLog
from lanemq.pipelines.pipeline import Pipeline
from lanemq.spark.read.brokers import Brokers
from lanemq.wire.codes import ResponseCode


def need_java() -> None:
    """Without Java, Spark's own error is a page about a gateway."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise UsageError("Spark needs Java 17 or newer, and there is none: install one, or set JAVA_HOME to where it is")


def need_checkpoint(pipeline: Pipeline) -> None:
    """Refuses a checkpoint that another run uses, or that is another pipeline's."""
    holder = holder_of(pipeline.folder)
    if holder is not None:
        raise CheckpointInUse(
            f"checkpoint {pipeline.folder} is used by another run ({holder}): stop that one, "
            f"or choose another checkpoint"
        )
    own_identity(pipeline.folder, pipeline.name)


def need_topic(pipeline: Pipeline) -> None:
    """Waits for the broker as the query would; for a first start the topic must be there.

    Later a topic that is gone is a loss of data, and `failOnDataLoss` decides about it.
    """
    options = pipeline.source.parsed
    with Brokers(options) as brokers:
        there = {queue.topic for queue in brokers.bounds()}
    if SparkLog(pipeline.folder).planned() is not None:
        return
    missing = [name for name in options.topics if name not in there]
    if missing:
        raise TopicNotFound(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {missing[0]!r} does not exist at {options.servers}: create it with `lanemq topic create "
            f"{missing[0]} --queues 8 --ordered --server '{options.servers}'`, or correct the source's topic",
        )
    if not there:
        raise TopicNotFound(
            ResponseCode.TOPIC_NOT_EXIST,
            f"no topic at {options.servers} matches topicPattern {options.topic_pattern!r}; "
            f"`lanemq topic list --server '{options.servers}'` shows those that are there",
        )
