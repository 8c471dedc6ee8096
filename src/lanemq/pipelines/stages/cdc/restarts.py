"""Whether a queue began again: where offsets say what is newer, they must not start over.

The rule guarded here: a lower offset with a newer store time is that of a queue that was deleted and created again. Its
changes would lose against the rows of the former queue, all of them and without a word, so the batch is refused, also
by a later run: how far each queue was read is part of the stage's state. A lower offset with an old time is a message
that comes again, and rightly loses.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from lanemq.model.errors import OrderError
from lanemq.pipelines.atomic_files import read_json
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.checkpoint.run_folder import write_as
from lanemq.pipelines.stages.cdc.task import Line


class _End(msgspec.Struct, frozen=True):
    batch: int
    """The batch that read so far; a repeated one is not compared with itself."""
    last: int
    stored: int


class _Known(msgspec.Struct):
    queues: dict[str, _End] = {}


class Ends:
    """How far each queue was read, and by which batch."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: where it is kept; None: in memory only."""
        self._path = path
        self._ends: dict[str, _End] = {}
        if path is not None and path.exists():
            found = read_json(path, _Known)
            assert isinstance(found, _Known)
            self._ends = found.queues

    def refuse_restart(self, lines: Sequence[Line], batch: Batch) -> None:
        """`OrderError` if a queue has lower offsets than in an earlier batch, and newer messages."""
        for line in lines:
            end = self._ends.get(line.queue)
            if (
                end is not None
                and batch.number > end.batch
                and line.first <= end.last
                and line.first_stored > end.stored
            ):
                raise OrderError(
                    f"{batch}: queue {line.queue} goes on at offset {line.first} after {end.last}, so it was deleted "
                    "and created again; its changes would count as older than the rows in the table. Begin with an "
                    "empty table and checkpoint, and declare sequence= of the source if this can happen again"
                )

    def behind(self, lines: Sequence[Line], batch: Batch) -> str:
        """What is true behind the batch, for `settle`. A queue's lines of several tasks count together."""
        ends = dict(self._ends)
        for line in lines:
            known = ends.get(line.queue)
            last, stored = (known.last, known.stored) if known is not None else (-1, 0)
            ends[line.queue] = _End(batch.number, max(last, line.last), max(stored, line.stored))
        return msgspec.json.encode(_Known(ends)).decode()

    def settle(self, state: str, epoch: int) -> None:
        """The batch counts."""
        self._ends = msgspec.json.decode(state, type=_Known).queues
        if self._path is not None:
            write_as(epoch, self._path.parent, self._path, state.encode())
