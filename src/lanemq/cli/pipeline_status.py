"""`lanemq pipeline status`: how far a pipeline is, from its checkpoint and the broker, whether or not it runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import json_option
from lanemq.cli.output import Grid, plural, show
from lanemq.cli.pipeline_place import NAME, PLACE, checkpoint_of, stopped_lanes
from lanemq.model.errors import LaneError

if TYPE_CHECKING:
    from lanemq.model.queue import MessageQueue
    from lanemq.spark.lag import QueueLag

BROKER_WAIT = "1s"
"""A status that waits a minute for a broker is none."""


@click.command()
@PLACE
@NAME
@json_option
def status(place: Path, name: str | None, as_json: bool) -> None:
    """Show batches, starts, parked keys and lag of a pipeline.

    The lag is what the last finished batch left over. Offsets come from the checkpoint, ends from the broker.
    """
    from lanemq.pipelines.checkpoint import epoch_of, holder_of, identity_of, stage_place
    from lanemq.pipelines.spark_log import SparkLog

    folder = checkpoint_of(place, name)
    known, holder, log = identity_of(folder), holder_of(folder), SparkLog(folder)
    assert known is not None
    done, planned = log.done(), log.planned()
    stage = stage_place(folder)
    stopped = [each.why.value for each in stopped_lanes(stage, held=True)] if stage.is_dir() else []
    queues, trouble = _lag(known.source, log.end_of(done) if done is not None else {})
    document = {
        "pipeline": known.name,
        "query": known.query,
        "running": holder,
        "epoch": epoch_of(folder),
        "batch": done,
        "unfinished_batch": planned if planned != done else None,
        "stopped_lanes": {why: stopped.count(why) for why in sorted(set(stopped))},
        "lag": sum(each.messages for each in queues) if trouble is None else None,
        "queues": [each.document() for each in queues],
        "note": trouble,
    }
    show(
        as_json,
        lambda: document,
        f"pipeline {known.name}: {f'running ({holder})' if holder else 'not running'}, started "
        f"{plural(epoch_of(folder), 'time')}",
        f"last batch {'none' if done is None else done}"
        + (f", batch {planned} is unfinished" if planned != done else ""),
        ", ".join(f"{stopped.count(why)} keys {why}" for why in sorted(set(stopped))) or "no key stands still",
        Grid(
            ("topic", "queue", "offset", "end", "lag", "lag time"),
            [
                (each.queue.topic, each.queue.queue_id, each.offset, each.end, each.messages,
                 None if each.seconds is None else f"{each.seconds:.1f} s") for each in queues
            ],
            "no message was read yet",
        ),
        *([trouble] if trouble else []),
    )  # fmt: skip


def _lag(source: Mapping[str, str], at: "Mapping[MessageQueue, int]") -> "tuple[tuple[QueueLag, ...], str | None]":
    """Offsets against what the broker holds now; without the broker, offsets alone and a word about it."""
    from lanemq.spark.brokers import Brokers
    from lanemq.spark.lag import LagTimes, between
    from lanemq.spark.options import parse_read_options

    try:
        options = parse_read_options({**source, "brokerWait": BROKER_WAIT}, streaming=True)
        with Brokers(options) as brokers:
            bounds = brokers.bounds()
        times = LagTimes(options.servers)
        try:
            begun = {queue: int(held.first) for queue, held in bounds.items()} | dict(at)
            return times.aged(between(begun, {queue: held.end for queue, held in bounds.items()})), None
        finally:
            times.close()
    except LaneError as error:
        return between(at, {}), f"the lag is not known: {error}"
