"""Whether a queue began again: where offsets say what is newer, they must not start over.

The rule guarded here: a source reads a queue forwards only, so in a later batch a lower offset is that of a queue that
was deleted and created again. Its changes would lose against the rows of the former queue, all of them and without a
word, so the batch is refused. This knows only what the same run has seen; after a restart it is the sink that counts
the rows which are older than the table's.
"""

from collections.abc import Sequence

from lanemq.model.errors import OrderError
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.cdc.task import Line


class Ends:
    """How far each queue was read, and by which batch; a repeated batch is not compared with itself."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[int, int]] = {}

    def refuse_restart(self, lines: Sequence[Line], batch: Batch) -> None:
        """`OrderError` if a queue has lower offsets than in an earlier batch."""
        for line in lines:
            number, end = self._ends.get(line.queue, (batch.number, -1))
            if batch.number > number and line.first <= end:
                raise OrderError(
                    f"{batch}: queue {line.queue} goes on at offset {line.first} after {end}, so it was deleted and "
                    "created again; its changes would count as older than the rows in the table. Begin with an empty "
                    "table and checkpoint, and declare sequence= of the source if this can happen again"
                )

    def note(self, lines: Sequence[Line], batch: Batch) -> None:
        """A queue's lines of several tasks count together."""
        for line in lines:
            number, end = self._ends.get(line.queue, (batch.number, -1))
            self._ends[line.queue] = (batch.number, max(end, line.last) if number == batch.number else line.last)
