"""FILE or CHECKPOINT: both lead to a pipeline's checkpoint, and commands that only read it take either."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import Failed
from lanemq.model.errors import StateLost

if TYPE_CHECKING:
    from lanemq.pipelines.transitions.requests import StoppedLane

LOOKS = 5

PLACE = click.argument("place", metavar="FILE|CHECKPOINT", type=click.Path(path_type=Path))
NAME = click.option("--name", help="Which one, if the file declares several.")


def checkpoint_of(place: Path, name: str | None) -> Path:
    """The folder of a checkpoint that was used at least once."""
    from lanemq.pipelines.checkpoint import identity_of

    if place.is_dir():
        folder = place
    else:
        from lanemq.pipelines.declare import load

        folder = load(place, name).folder
    if identity_of(folder) is None:
        raise Failed(f"{folder} is no checkpoint of a pipeline: it was never started, or the folder is another one")
    return folder


def stopped_lanes(stage: Path, *, held: bool) -> "list[StoppedLane]":
    """Lanes that stand still. A running pipeline removes old files while they are read, so one look may fail."""
    from lanemq.pipelines.transitions import requests

    for _ in range(LOOKS - 1):
        with suppress(StateLost):
            return requests.list_parked(stage, held=held)
    return requests.list_parked(stage, held=held)
