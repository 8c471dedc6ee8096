"""How far a pipeline is: what its checkpoint says, and the brokers about its lag. Without PySpark.

    status = read_status(parked("/data/checkpoints/orders"))

`lanemq pipeline status` shows it, `--json` writes it as it is, and so does the console.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import msgspec

from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.pipelines.checkpoint.checkpoint import SparkLog, epoch_of, holder_of, need_identity, stage_folder
from lanemq.pipelines.operate.dead_letters import DeadLetterCount, count_dead_letters
from lanemq.pipelines.operate.parked import ParkedLanes, WaitingKey
from lanemq.pipelines.stages.cdc.misfits import ColumnMisfits
from lanemq.pipelines.stages.cdc.replica_state import read_misfits
from lanemq.pipelines.stages.transitions.operator_requests import Redrives
from lanemq.spark.lag import LagAges, QueueLag, lag_between
from lanemq.spark.options import SECURITY_OPTIONS, parse_read_options
from lanemq.spark.read.brokers import Brokers


class PipelineQueue(msgspec.Struct, frozen=True):
    """How far a pipeline is in one queue."""

    topic: str
    broker: str
    queue: int
    offset: int
    """The next offset to read, after the last finished batch."""
    end: int | None = None
    """None if the broker did not answer, as in the fields below."""
    lag: int | None = None
    lag_seconds: float | None = None
    """The age of the message at `offset`; None also if there is no lag."""


class PipelineStatus(msgspec.Struct, frozen=True):
    """A pipeline, running or not."""

    pipeline: str
    checkpoint: str
    query: str
    group: str | None
    """The consumer group under which it stores its offsets; None if it has none."""
    topics: tuple[str, ...]
    """Empty if they are chosen by a pattern."""
    running: str | None
    """The process that runs it."""
    epoch: int
    """How often it was started."""
    batch: int | None
    """The last finished batch."""
    unfinished_batch: int | None
    """The batch that was begun after it."""
    waiting_lanes: dict[str, int]
    """The number of keys by the reason for which they wait: `parked`, `held` or `gap`."""
    requested_lanes: dict[str, str]
    """Keys about which a person has requested something that the pipeline has not done yet."""
    requested_dead_letters: int
    dead_letters: DeadLetterCount
    misfits: dict[str, ColumnMisfits]
    """Values that `LastState` replaced by null, by column."""
    queues: tuple[PipelineQueue, ...]
    lag: int | None = None
    """None if the broker did not answer."""
    lag_seconds: float | None = None
    deleted_unread: int | None = None
    """Messages after the last batch that retention deleted before they were read."""
    note: str | None = None
    """Why the lag is not known."""


def read_status(
    lanes: ParkedLanes,
    keys: Collection[WaitingKey],
    declared_source: Mapping[str, str] | None = None,
    change_source: Callable[[Mapping[str, str]], dict[str, str]] = dict,
) -> PipelineStatus:
    """The status of the pipeline whose waiting keys these are.

    `declared_source`: the options of the source in the file that declares the pipeline. They say how brokers are
    reached where TLS or credentials are needed, because a checkpoint keeps no secrets. `change_source` may replace
    options before they are used, as flags of a command do.
    """
    folder = lanes.checkpoint
    identity, log = need_identity(folder), SparkLog(folder)
    done, planned = log.done(), log.planned()
    source = {name.lower(): value for name, value in identity.source.items()}
    at = log.end_of(done) if done is not None else {}
    checkpointed = PipelineStatus(
        pipeline=identity.name,
        checkpoint=str(folder),
        query=identity.query,
        group=source.get("group"),
        topics=tuple(topic.strip() for topic in source.get("topic", "").split(",") if topic.strip()),
        running=holder_of(folder),
        epoch=epoch_of(folder),
        batch=done,
        unfinished_batch=planned if planned != done else None,
        waiting_lanes=counts_of(keys),
        requested_lanes={key.key: key.requested for key in keys if key.requested is not None},
        requested_dead_letters=len(Redrives(stage_folder(folder)).pending_dead_letters()),
        dead_letters=count_dead_letters(folder),
        misfits=read_misfits(stage_folder(folder)),
        queues=tuple(PipelineQueue(queue.topic, queue.broker, queue.queue_id, at[queue]) for queue in sorted(at)),
    )
    return _with_lag(checkpointed, at, change_source(_reachable(identity.source, declared_source or {})))


def counts_of(keys: Collection[WaitingKey]) -> dict[str, int]:
    """The number of keys by the reason for which they wait."""
    reasons = [key.state for key in keys]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def _reachable(used: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    """The source's options at the last start, with TLS and credentials as they are declared, if they are."""
    security = {name.lower() for name in SECURITY_OPTIONS}
    secure = {name: value for name, value in declared.items() if name.lower() in security}
    rest = {name: value for name, value in used.items() if not secure or name.lower() not in security}
    return {**rest, **secure}


def _with_lag(status: PipelineStatus, at: Mapping[MessageQueue, int], source: Mapping[str, str]) -> PipelineStatus:
    """The status with the ends of the queues, if the brokers answer at once, else with the reason why not."""
    try:
        options = replace(parse_read_options(source, streaming=True), wait=Millis(0))
        with Brokers(options) as brokers:
            bounds = brokers.bounds()
        # What retention deleted cannot be read any more, so it is not waited for.
        next_read = {queue: max(int(held.first), at.get(queue, 0)) for queue, held in bounds.items()}
        ages = LagAges(options.servers, security=options.security)
        try:
            ends = {queue: int(held.end) for queue, held in bounds.items()}
            queues = ages.with_ages(lag_between(dict(at) | next_read, ends))
        finally:
            ages.close()
    except LaneError as error:
        return msgspec.structs.replace(status, note=f"the lag is unknown: {error}")
    return msgspec.structs.replace(
        status,
        queues=tuple(map(_queue, queues)),
        lag=sum(lag.messages for lag in queues),
        lag_seconds=max((lag.seconds for lag in queues if lag.seconds is not None), default=None),
        deleted_unread=sum(next_read[queue] - offset for queue, offset in at.items() if queue in next_read),
    )


def _queue(lag: QueueLag) -> PipelineQueue:
    queue = lag.queue
    return PipelineQueue(queue.topic, queue.broker, queue.queue_id, lag.offset, lag.end, lag.messages, lag.seconds)
