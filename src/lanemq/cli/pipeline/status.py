"""`lanemq pipeline status`: the progress of a pipeline, from its checkpoint and the broker, running or not."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from lanemq.cli.options import CliError, json_option
from lanemq.cli.output import Grid, duration_text, plural, show
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
from lanemq.cli.pipeline.run_output import LAG_COLUMNS

if TYPE_CHECKING:
    from lanemq.pipelines.operate.dead_letters import DeadLetterCount
    from lanemq.pipelines.operate.status import PipelineQueue, PipelineStatus

UNKNOWN = "unknown"
"""Shown instead of a number that only the broker has; 0 would look like no lag."""


@click.command()
@FILE_OR_CHECKPOINT
@NAME
@json_option
@pipeline_security_options
def status(place: str, name: str | None, as_json: bool) -> None:
    """Show the progress of a pipeline, running or not.

    Shows batches, starts, held and parked keys, dead letters and lag. The lag is counted from the last finished batch:
    offsets come from the checkpoint, ends from the broker.
    """
    from lanemq.pipelines.operate.parked import parked
    from lanemq.pipelines.operate.status import read_status

    declared = declared_at(place, name)
    with refused():
        lanes = parked(declared or place)
    source = None if declared is None else declared.source.options
    found = read_status(lanes, lanes.keys(held=True), source, with_flags)
    show(
        as_json,
        lambda: found,
        *_lines(found),
        Grid(LAG_COLUMNS, list(map(_row, found.queues)), "no messages were read yet"),
        *([found.note] if found.note else []),
    )


def _lines(found: "PipelineStatus") -> Iterator[str]:
    runs = f"running ({found.running})" if found.running else "not running"
    yield f"pipeline {found.pipeline}: {runs}, started {plural(found.epoch, 'time')}"
    yield f"checkpoint {found.checkpoint}"
    unfinished = f", batch {found.unfinished_batch} is unfinished" if found.unfinished_batch is not None else ""
    yield f"last batch {'none' if found.batch is None else found.batch}{unfinished}"
    yield ", ".join(f"{plural(n, 'key')} {why}" for why, n in found.waiting_lanes.items()) or "no key is held or parked"
    if found.requested_lanes:
        yield f"{plural(len(found.requested_lanes), 'key')} with a request: {APPLIED_LATER}"
    yield _dead_letters(found.dead_letters)
    if found.requested_dead_letters:
        yield f"{plural(found.requested_dead_letters, 'dead letter')} with a request: {APPLIED_LATER}"
    yield from (misfits.line(column) for column, misfits in found.misfits.items())
    yield f"lag {UNKNOWN if found.lag is None else _lag(found.lag, found.lag_seconds)}"
    if found.deleted_unread:
        lost = plural(found.deleted_unread, "message")
        yield f"retention deleted {lost} after the last batch, before they were read"


def _dead_letters(kept: "DeadLetterCount") -> str:
    if kept.count is None:
        return "dead letters go to the sink that the pipeline declares for them; they are not counted here"
    left = kept.count - kept.settled
    return f"{plural(left, 'dead letter') if left else 'no dead letters'} in {kept.folder}" + (
        f", and {plural(kept.settled, 'notice')} of messages that do not wait any more" if kept.settled else ""
    )


def _lag(messages: int, seconds: float | None) -> str:
    age = "" if seconds is None else f", the oldest is {duration_text(seconds * 1000)} old"
    return plural(messages, "message") + age


def _row(queue: "PipelineQueue") -> tuple[object, ...]:
    place = (queue.topic, queue.queue, queue.offset)
    if queue.lag is None:
        return *place, UNKNOWN, UNKNOWN, UNKNOWN
    return *place, queue.end, queue.lag, None if queue.lag_seconds is None else duration_text(queue.lag_seconds * 1000)


class PipelineWaiting(NamedTuple):
    """What waits in the checkpoint of a pipeline: keys, and dead letters about which no person has decided."""

    pipeline: str
    group: str | None
    """The consumer group under which it stores its offsets; None if it has none."""
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
