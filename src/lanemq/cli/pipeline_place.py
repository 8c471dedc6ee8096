"""FILE or CHECKPOINT: both lead to a pipeline's checkpoint, and commands that only read it take either."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import Failed
from lanemq.model.errors import UsageError

if TYPE_CHECKING:
    from lanemq.pipelines.parked_lanes import ParkedLanes

PLACE = click.argument("place", metavar="FILE|CHECKPOINT", type=click.Path(path_type=Path))
NAME = click.option("--name", help="Which one, if the file declares several.")


def checkpoint_of(place: Path, name: str | None) -> Path:
    """The folder of a checkpoint that was used at least once."""
    return parked_of(place, name).checkpoint


def parked_of(place: Path, name: str | None) -> "ParkedLanes":
    """The keys that stand still in the checkpoint that a person means."""
    from lanemq.pipelines.parked_lanes import parked

    if place.is_dir():
        folder = place
    else:
        from lanemq.pipelines.declare import load

        folder = load(place, name).folder
    with refused():
        return parked(folder)


@contextmanager
def refused() -> Iterator[None]:
    """What the checkpoint does not have is no mistake of the command line: exit code 1."""
    try:
        yield
    except UsageError as error:
        raise Failed(str(error)) from error
