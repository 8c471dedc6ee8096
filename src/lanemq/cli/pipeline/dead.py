"""Messages that a pipeline set aside: how many, where they are, and whether anything else came of a run.

The rule guarded here: neither a run nor a status looks healthy while messages become dead letters; both name their
number and their place. Levels are not judged: how many are too many, `--fail-on-dead-letters` lets a person say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lanemq.cli.output import plural

if TYPE_CHECKING:
    from lanemq.pipelines.pipeline import Pipeline
    from lanemq.pipelines.running.progress import Progress

FOLDER = "dead_letters"
"""Where they are in a checkpoint, unless the pipeline declares a sink for them."""


@dataclass(slots=True)
class Tally:
    """What a run read and set aside, added up from what it told."""

    read: int = 0
    rows: int = 0
    dead: int = 0

    def add(self, progress: "Progress") -> None:
        """Events where the stage counts them: offsets also go forward over what a filter left out.

        What a person discarded is a dead letter too, and no news to anybody.
        """
        self.read += (
            progress.applied.counts.get("events", progress.messages) if not progress.applied.batch.is_retry_pass else 0
        )
        self.rows += progress.applied.outputs
        self.dead += progress.applied.dead_letters - progress.applied.counts.get("discarded", 0)

    @property
    def nothing_else(self) -> bool:
        """Whether all that was read was set aside."""
        return self.dead >= self.read > 0

    @property
    def yield_words(self) -> str:
        """Added where keys stand still: a mistake in a step stops them all, which looks like any other number."""
        if self.rows or not self.read:
            return ""
        return f"; no row came of the {plural(self.read, 'message')} read"

    def told(self, pipeline: "Pipeline") -> str | None:
        """One sentence with the place; None if nothing was set aside."""
        if not self.dead:
            return None
        read = f"all {self.read} that were read" if self.nothing_else else f"{self.read} read"
        return f"{pipeline.name}: {plural(self.dead, 'message')} set aside ({read}): {_place_of(pipeline)}"


def counted_by(tally: Tally, report: "Callable[[Progress], object]") -> "Callable[[Progress], object]":
    """The same report, added up on its way."""

    def tell(progress: "Progress") -> None:
        tally.add(progress)
        report(progress)

    return tell


def kept_in(checkpoint: Path) -> tuple[int | None, Path | None]:
    """How many dead letters are in the checkpoint, and in which folder; None: they go to a sink of their own."""
    import pyarrow.parquet as pq

    folder = checkpoint / FOLDER
    if not folder.is_dir():
        return None, None
    files = sorted(folder.glob("lanemq_query=*/**/*.parquet"))
    return sum(pq.read_metadata(each).num_rows for each in files), folder


def kept_words(count: int | None, folder: Path | None) -> str:
    """The same for people."""
    if count is None:
        return "dead letters go to the sink that the pipeline declares for them; they are not counted here"
    return f"{plural(count, 'dead letter') if count else 'no dead letters'} in {folder}"


def _place_of(pipeline: "Pipeline") -> str:
    if pipeline.dead_letters is None:
        return f"dead letters (Parquet) are in {pipeline.folder / FOLDER}"
    return f"dead letters are in the sink that the pipeline declares for them ({type(pipeline.dead_letters).__name__})"
