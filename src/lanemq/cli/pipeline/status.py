"""`lanemq pipeline status`: how far a pipeline is, from its checkpoint and the broker, whether or not it runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import json_option
from lanemq.cli.output import Grid, plural, show, without_log
from lanemq.cli.pipeline.dead import kept_in, kept_words
from lanemq.cli.pipeline.parked import CARRIED_OUT
from lanemq.cli.pipeline.place import NAME, PLACE, declared_at, refused
from lanemq.cli.pipeline.security import overridden, runs_securely
from lanemq.cli.pipeline.view import LAG_COLUMNS, lag_row
from lanemq.model.errors import LaneError

if TYPE_CHECKING:
    from lanemq.model.queue import MessageQueue
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.spark.lag import QueueLag

BROKER_WAIT = "1s"
"""A status that waits a minute for a broker is none."""

UNKNOWN = "not known"
"""Instead of a number that only the broker has: 0 would look like good news."""


@click.command()
@PLACE
@NAME
@json_option
@runs_securely
def status(place: Path, name: str | None, as_json: bool) -> None:
    """Show batches, starts, parked keys, dead letters and lag of a pipeline.

    The lag is what the last finished batch left over. Offsets come from the checkpoint, ends from the broker.
    """
    from lanemq.pipelines.checkpoint.checkpoint import SparkLog, epoch_of, holder_of, identity_of, stage_folder
    from lanemq.pipelines.operate.parked import parked
    from lanemq.pipelines.stages.transitions.redrives import Redrives
    from lanemq.spark.lag import oldest_age

    declared = declared_at(place, name)
    with refused():
        lanes = parked(declared or place)
    folder = lanes.checkpoint
    known, holder, log = identity_of(folder), holder_of(folder), SparkLog(folder)
    assert known is not None
    done, planned, stopped = log.done(), log.planned(), lanes.counts()
    decided, dead = lanes.requested(), kept_in(folder)
    redriven = len(Redrives(stage_folder(folder)).pending_letters())
    queues, trouble = _lag(_source(known.source, declared), log.end_of(done) if done is not None else {})
    document = {
        "pipeline": known.name,
        "checkpoint": str(folder),
        "query": known.query,
        "running": holder,
        "epoch": epoch_of(folder),
        "batch": done,
        "unfinished_batch": planned if planned != done else None,
        "stopped_lanes": stopped,
        "decided_lanes": decided,
        "decided_letters": redriven,
        "dead_letters": {"count": dead[0], "folder": str(dead[1]) if dead[1] is not None else None},
        "lag": sum(each.messages for each in queues) if trouble is None else None,
        "lag_seconds": oldest_age(queues),
        "queues": [_document(each, trouble is None) for each in queues],
        "note": trouble,
    }
    show(
        as_json,
        lambda: document,
        f"pipeline {known.name}: {f'running ({holder})' if holder else 'not running'}, started "
        f"{plural(epoch_of(folder), 'time')}",
        f"checkpoint {folder}",
        f"last batch {'none' if done is None else done}"
        + (f", batch {planned} is unfinished" if planned != done else ""),
        ", ".join(f"{plural(count, 'key')} {why}" for why, count in stopped.items()) or "no key stands still",
        *([f"{plural(len(decided), 'key')} decided about: {CARRIED_OUT}"] if decided else []),
        kept_words(*dead),
        *([f"{plural(redriven, 'dead letter')} decided about: {CARRIED_OUT}"] if redriven else []),
        f"lag {_total(queues) if trouble is None else UNKNOWN}",
        Grid(LAG_COLUMNS, [_row(each, trouble is None) for each in queues], "no message was read yet"),
        *([trouble] if trouble else []),
    )


def _source(used: Mapping[str, str], declared: "Pipeline | None") -> dict[str, str]:
    """As the last start had it; TLS and the user are the file's, if there is one that names them: a checkpoint keeps
    no secrets."""
    from lanemq.spark.options import SECURITY_OPTIONS

    known = {name.lower() for name in SECURITY_OPTIONS}
    own = declared.source.options if declared is not None else {}
    secure = {name: value for name, value in own.items() if name.lower() in known}
    rest = {name: value for name, value in used.items() if not secure or name.lower() not in known}
    return overridden({**rest, **secure})


def _row(each: "QueueLag", known: bool) -> tuple[object, ...]:
    row = lag_row(each)
    return row if known else (*row[:3], UNKNOWN, UNKNOWN, UNKNOWN)


def _document(each: "QueueLag", known: bool) -> dict[str, object]:
    found = each.document()
    return found if known else found | {"end": None, "lag": None, "lag_seconds": None}


def _total(queues: "Sequence[QueueLag]") -> str:
    from lanemq.spark.lag import oldest_age

    behind = oldest_age(queues)
    age = "" if behind is None else f", the oldest {behind:.1f} s old"
    return plural(sum(each.messages for each in queues), "message") + age


def _lag(source: Mapping[str, str], at: "Mapping[MessageQueue, int]") -> "tuple[tuple[QueueLag, ...], str | None]":
    """Offsets against what the broker holds now; without the broker, offsets alone and a word about it."""
    from lanemq.spark.lag import LagAges, lag_between
    from lanemq.spark.options import parse_read_options
    from lanemq.spark.read.brokers import Brokers

    try:
        options = parse_read_options({**source, "brokerWait": BROKER_WAIT}, streaming=True)
        with without_log("lanemq.spark.retrying"), Brokers(options) as brokers:
            bounds = brokers.bounds()
        times = LagAges(options.servers, security=options.security)
        try:
            begun = {queue: int(held.first) for queue, held in bounds.items()} | dict(at)
            return times.with_ages(lag_between(begun, {queue: held.end for queue, held in bounds.items()})), None
        finally:
            times.close()
    except LaneError as error:
        return lag_between(at, {}), f"the lag is not known: {error}"
