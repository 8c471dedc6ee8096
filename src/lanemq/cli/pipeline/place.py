"""FILE or CHECKPOINT: both lead to a pipeline's checkpoint, and commands that only read it take either."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemq.cli.options import Failed
from lanemq.cli.pipeline.security import overridden
from lanemq.model.errors import UsageError

if TYPE_CHECKING:
    from lanemq.pipelines.operate.dead_letters import DeadLetters
    from lanemq.pipelines.operate.parked import ParkedLanes
    from lanemq.pipelines.pipeline import Pipeline

PLACE = click.argument("place", metavar="FILE|CHECKPOINT", type=click.Path(path_type=Path))
NAME = click.option("--name", help="Which one, if the file declares several.")


def parked_of(place: Path, name: str | None) -> "ParkedLanes":
    """The keys that stand still in the checkpoint that a person means."""
    from lanemq.pipelines.operate.parked import parked

    with refused():
        return parked(declared_at(place, name) or place)


def dead_of(place: Path, name: str | None) -> "DeadLetters":
    """The dead letters of the pipeline that a person means."""
    from lanemq.pipelines.operate.dead_letters import dead_letters

    with refused():
        return dead_letters(declared_at(place, name) or place)


def declared_at(place: Path, name: str | None) -> "Pipeline | None":
    """The pipeline, if the place is a file that declares it; None for a checkpoint's folder."""
    if place.is_dir():
        return None
    from lanemq.pipelines.declare.files import load

    return load(place, name, overridden)


@contextmanager
def refused() -> Iterator[None]:
    """What the checkpoint does not have is no mistake of the command line: exit code 1."""
    try:
        yield
    except UsageError as error:
        raise Failed(str(error)) from error
