"""`lanemq pipeline status`: the progress of a pipeline, from its checkpoint and the broker, running or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import click

from lanemq.cli.options import CliError, json_option
from lanemq.cli.output import Grid, duration_text, plural, show, without_log
from lanemq.cli.pipeline.dead_letters import kept_in
from lanemq.cli.pipeline.loading import (
    APPLIED_LATER,
    FILE_OR_CHECKPOINT,
    NAME,
    dead_letters_at,
    declared_at,
    parked_lanes_at,
    pipeline_security_options,
    refused,
    with_flags,
)
from lanemq.cli.pipeline.parked import lane_document
from lanemq.cli.pipeline.run_output import LAG_COLUMNS, lag_row
from lanemq.model.errors import LaneError

if TYPE_CHECKING:
    from lanemq.files import StorePath
    from lanemq.model.queue import MessageQueue
    from lanemq.pipelines.checkpoint.checkpoint import CheckpointIdentity
    from lanemq.pipelines.operate.parked import ParkedLanes
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.stages.cdc.misfits import ColumnMisfits
    from lanemq.spark.lag import QueueLag

BROKER_WAIT = "1s"
"""The command must answer quickly, so it does not wait for the broker for a minute."""

UNKNOWN = "unknown"
"""Shown instead of a number that only the broker has; 0 would look like no lag."""

MAX_LANES = 1_000
"""Keys that `--waiting` lists, parked ones first. `lanemq pipeline parked list` has all."""


@click.command()
@FILE_OR_CHECKPOINT
@NAME
@click.option(
    "--waiting",
    "with_waiting",
    is_flag=True,
    help=f"With --json: also the keys that wait, at most {MAX_LANES:,}, how many messages wait in all of them, and the "
    f"dead letters by state.",
)
@json_option
@pipeline_security_options
def status(place: str, name: str | None, with_waiting: bool, as_json: bool) -> None:
    """Show the progress of a pipeline, running or not.

    Shows batches, starts, held and parked keys, dead letters and lag. The lag is counted from the last finished batch:
    offsets come from the checkpoint, ends from the broker.
    """
    from lanemq.pipelines.operate.parked import parked as parked_lanes

    declared = declared_at(place, name)
    with refused():
        lanes = parked_lanes(declared or place)
    found = _status_of(lanes, declared)
    show(
        as_json,
        lambda: found.document() | (_waiting(lanes, place, name) if with_waiting else {}),
        *found.lines(),
        Grid(LAG_COLUMNS, [_row(each, found.lag_error is None) for each in found.queues], "no messages were read yet"),
        *([found.lag_error] if found.lag_error else []),
    )


@dataclass(frozen=True, slots=True)
class _Status:
    """What the checkpoint of a pipeline says, and the broker about its lag."""

    identity: "CheckpointIdentity"
    folder: "StorePath"
    holder: str | None
    starts: int
    done: int | None
    """The last batch that is finished."""
    planned: int | None
    """The last batch that was begun."""
    waiting: dict[str, int]
    decided: dict[str, str]
    dead: "tuple[int | None, StorePath | None]"
    settled: int
    """Dead letters that are notices of messages which do not wait any more."""
    decided_dead: int
    misfits: "dict[str, ColumnMisfits]"
    """Values that `LastState` replaced by null, by column."""
    queues: "tuple[QueueLag, ...]"
    deleted: int
    """Messages that retention deleted before the pipeline read them."""
    lag_error: str | None

    def document(self) -> dict[str, object]:
        from lanemq.spark.lag import oldest_age

        source = {option.lower(): value for option, value in self.identity.source.items()}
        count, kept = self.dead
        return {
            "pipeline": self.identity.name,
            "checkpoint": str(self.folder),
            "query": self.identity.query,
            "group": source.get("group"),
            "topics": [each.strip() for each in source.get("topic", "").split(",") if each.strip()],
            "running": self.holder,
            "epoch": self.starts,
            "batch": self.done,
            "unfinished_batch": self.planned if self.planned != self.done else None,
            "waiting_lanes": self.waiting,
            "decided_lanes": self.decided,
            "decided_dead_letters": self.decided_dead,
            "dead_letters": {
                "count": count,
                "settled": self.settled,
                "folder": str(kept) if kept is not None else None,
            },
            "misfits": {
                column: {"count": each.count, "type": each.type, "first": each.first}
                for column, each in self.misfits.items()
            },
            "lag": sum(each.messages for each in self.queues) if self.lag_error is None else None,
            "lag_seconds": oldest_age(self.queues),
            "deleted_unread": self.deleted if self.lag_error is None else None,
            "queues": [_document(each, self.lag_error is None) for each in self.queues],
            "note": self.lag_error,
        }

    def lines(self) -> Iterator[str]:
        runs = f"running ({self.holder})" if self.holder else "not running"
        yield f"pipeline {self.identity.name}: {runs}, started {plural(self.starts, 'time')}"
        yield f"checkpoint {self.folder}"
        unfinished = f", batch {self.planned} is unfinished" if self.planned != self.done else ""
        yield f"last batch {'none' if self.done is None else self.done}{unfinished}"
        keys = [f"{plural(count, 'key')} {why}" for why, count in self.waiting.items()]
        yield ", ".join(keys) or "no key is held or parked"
        if self.decided:
            yield f"{plural(len(self.decided), 'key')} with a decision: {APPLIED_LATER}"
        yield _dead_letters(*self.dead, self.settled)
        if self.decided_dead:
            yield f"{plural(self.decided_dead, 'dead letter')} with a decision: {APPLIED_LATER}"
        yield from (each.line(column) for column, each in self.misfits.items())
        yield f"lag {_total(self.queues) if self.lag_error is None else UNKNOWN}"
        if self.deleted:
            yield f"retention deleted {plural(self.deleted, 'message')} after the last batch, before they were read"


def _status_of(lanes: "ParkedLanes", declared: "Pipeline | None") -> _Status:
    from lanemq.pipelines.checkpoint.checkpoint import SparkLog, epoch_of, holder_of, need_identity, stage_folder
    from lanemq.pipelines.operate.dead_letters import dead_letters
    from lanemq.pipelines.stages.cdc.misfits import read_misfits
    from lanemq.pipelines.stages.transitions.operator_requests import Redrives

    folder = lanes.checkpoint
    identity, log = need_identity(folder), SparkLog(folder)
    done, planned = log.done(), log.planned()
    dead = kept_in(folder)
    lag = _lag(_source(identity.source, declared), log.end_of(done) if done is not None else {})
    return _Status(
        identity,
        folder,
        holder_of(folder),
        epoch_of(folder),
        done,
        planned,
        lanes.counts(),
        lanes.requested(),
        dead,
        dead_letters(folder).settled() if dead[0] else 0,
        len(Redrives(stage_folder(folder)).pending_dead_letters()),
        read_misfits(stage_folder(folder)),
        lag.queues,
        lag.deleted,
        lag.error,
    )


class PipelineWaiting(NamedTuple):
    """What waits in the checkpoint of a pipeline: keys, and dead letters about which no person has decided."""

    pipeline: str
    group: str | None
    """The consumer group as which it commits; None if it has none."""
    held: int
    parked: int
    dead: int | None
    """None: they are in a sink of their own."""


def waiting_in(place: str) -> PipelineWaiting:
    """Reads the checkpoint of a pipeline, given that or the file that declares it."""
    from lanemq.pipelines.checkpoint.checkpoint import need_identity
    from lanemq.pipelines.operate.dead_letters import UNDECIDED

    lanes = parked_lanes_at(place, None)
    known, counts = need_identity(lanes.checkpoint), lanes.counts()
    parked = counts.pop("parked", 0)
    try:
        dead = sum(count for state, count in dead_letters_at(place, None).counts().items() if state in UNDECIDED)
    except CliError:
        dead = None
    group = {option.lower(): value for option, value in known.source.items()}.get("group")
    return PipelineWaiting(known.name, group, sum(counts.values()), parked, dead)


def _dead_letters(count: int | None, folder: object, settled: int) -> str:
    if count is None:
        return "dead letters go to the sink that the pipeline declares for them; they are not counted here"
    left = count - settled
    return f"{plural(left, 'dead letter') if left else 'no dead letters'} in {folder}" + (
        f", and {plural(settled, 'notice')} of messages that do not wait any more" if settled else ""
    )


def _waiting(lanes: "ParkedLanes", place: str, name: str | None) -> dict[str, object]:
    """The keys that wait, how many messages wait in all of them, and the number of dead letters by state.

    That is None if dead letters are in a sink of their own.
    """
    decided = lanes.requested()
    found = sorted(lanes.waiting(held=True), key=lambda each: (each.why.value != "parked", each.since))
    try:
        states = dead_letters_at(place, name).counts()
    except CliError:
        states = None
    return {
        "lanes": [lane_document(each, decided.get(each.lane)) for each in found[:MAX_LANES]],
        "waiting_messages": {
            why: sum(len(each.messages) for each in found if each.why.value == why)
            for why in dict.fromkeys(each.why.value for each in found)
        },
        "dead_letters_by_state": states,
    }


def _source(used: Mapping[str, str], declared: "Pipeline | None") -> dict[str, str]:
    """The source's options at the last start. TLS and credentials come from the file, if it has them, because a
    checkpoint keeps no secrets."""
    from lanemq.spark.options import SECURITY_OPTIONS

    known = {name.lower() for name in SECURITY_OPTIONS}
    own = declared.source.options if declared is not None else {}
    secure = {name: value for name, value in own.items() if name.lower() in known}
    rest = {name: value for name, value in used.items() if not secure or name.lower() not in known}
    return with_flags({**rest, **secure})


def _row(each: "QueueLag", known: bool) -> tuple[object, ...]:
    row = lag_row(each)
    return row if known else (*row[:3], UNKNOWN, UNKNOWN, UNKNOWN)


def _document(each: "QueueLag", known: bool) -> dict[str, object]:
    found = each.document()
    return found if known else found | {"end": None, "lag": None, "lag_seconds": None}


def _total(queues: "Sequence[QueueLag]") -> str:
    from lanemq.spark.lag import oldest_age

    oldest = oldest_age(queues)
    age = "" if oldest is None else f", the oldest is {duration_text(oldest * 1000)} old"
    return plural(sum(each.messages for each in queues), "message") + age


class _Lag(NamedTuple):
    queues: "tuple[QueueLag, ...]"
    deleted: int = 0
    """Messages after the last batch that retention deleted."""
    error: str | None = None
    """Why the broker could not be asked."""


def _lag(source: Mapping[str, str], at: "Mapping[MessageQueue, int]") -> _Lag:
    """The lag of each queue; if the broker does not answer, only the offsets, and the reason."""
    from lanemq.spark.lag import LagAges, lag_between
    from lanemq.spark.options import parse_read_options
    from lanemq.spark.read.brokers import Brokers

    try:
        options = parse_read_options({**source, "brokerWait": BROKER_WAIT}, streaming=True)
        with without_log("lanemq.spark.retrying"), Brokers(options) as brokers:
            bounds = brokers.bounds()
        times = LagAges(options.servers, security=options.security)
        try:
            # What retention deleted cannot be read any more, so it is not waited for.
            next_read = {queue: max(int(held.first), at.get(queue, 0)) for queue, held in bounds.items()}
            lag = lag_between(dict(at) | next_read, {queue: held.end for queue, held in bounds.items()})
            deleted = sum(next_read[queue] - offset for queue, offset in at.items() if queue in next_read)
            return _Lag(times.with_ages(lag), deleted)
        finally:
            times.close()
    except LaneError as error:
        return _Lag(lag_between(at, {}), error=f"the lag is unknown: {error}")
