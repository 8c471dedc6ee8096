"""Whether a run with `once` would find nothing to do, asked before Spark starts.

A start costs about 15 s of CPU time and a commit in the sink, which records the run. A schedule that finds nothing new
most of the time needs neither. In every doubt the answer is no: then the run starts as usual, and finds and reports
what is wrong.
"""

import logging
from pathlib import Path

from lanemq.model.errors import LaneError
from lanemq.pipelines.batches import batch_number
from lanemq.pipelines.checkpoint.checkpoint import SparkLog, declaration_of, identity_of, run_log_folder
from lanemq.pipelines.checkpoint.run_log import read_log
from lanemq.pipelines.checkpoint.unit_record import unit_in
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.ports import Stage
from lanemq.spark.offsets import Positions, created_in, from_json, stored_in
from lanemq.spark.read.brokers import Brokers
from lanemq.spark.read.planning import other_ends, replaced_queues

log = logging.getLogger(__name__)


def is_nothing_new(pipeline: Pipeline) -> bool:
    """Whether all messages are done, nothing can wait in the stage, and the sink has what the checkpoint says.

    Only if the declaration is that of the last start: stage and sink must see a changed one, to accept or refuse it.

    Never with `Transitions`, whose retries and timers may be due, and never with a checkpoint on a remote store.
    """
    if not isinstance(pipeline.folder, Path):
        return False
    try:
        return (
            declaration_of(pipeline.folder) == pipeline.fingerprint
            and _is_all_done(pipeline.folder)
            and not _may_wait(pipeline.stage)
            and _is_read_to_the_ends(pipeline)
            and _has_sink_all(pipeline)
        )
    except (LaneError, OSError, ValueError) as error:
        log.debug("pipeline %s: the start will show whether something is new: %s", pipeline.name, error)
        return False


def _is_all_done(folder: Path) -> bool:
    spark_log = SparkLog(folder)
    spark_log.check_plans()
    done = spark_log.done()
    return done is not None and done == spark_log.planned()


def _may_wait(stage: Stage) -> bool:
    """Whether the stage may have something to do without a message, such as a retry or a timer of `Transitions`."""
    return type(stage).due is not Stage.due


def _is_read_to_the_ends(pipeline: Pipeline) -> bool:
    """Whether the last batch ends where every queue ends now. A queue that is gone, or begins again, is something."""
    planned = SparkLog(pipeline.folder).plan_of(_last_batch(pipeline))
    at: Positions = from_json(planned)
    with Brokers(pipeline.source.parsed) as brokers:
        brokers.expect(at)
        bounds = brokers.bounds()
        if replaced_queues(at, created_in(planned), brokers.created, bounds):
            return False
        if any(other_ends(at, stored_in(planned), brokers.stored)):
            return False
    read = {queue: offset for queue, offset in at.items() if offset}
    return read == {queue: held.end for queue, held in bounds.items() if held.end}


def _has_sink_all(pipeline: Pipeline) -> bool:
    """Whether the sink has the last batch and all that was decided after it, as far as it can know."""
    identity, last = identity_of(pipeline.folder), _last_batch(pipeline)
    if identity is None:
        return False
    applied: int | None = batch_number(last)
    if pipeline.sink.all_at_once:
        applied = pipeline.sink.applied(identity.query, pipeline.spark)
    if applied is None or not batch_number(last) <= applied < batch_number(last + 1):
        return False
    unit = unit_in(read_log(run_log_folder(pipeline.folder)).records)
    return unit is None or unit.decided is None or unit.number <= applied


def _last_batch(pipeline: Pipeline) -> int:
    done = SparkLog(pipeline.folder).done()
    assert done is not None, "asked for a checkpoint with a batch only"
    return done
