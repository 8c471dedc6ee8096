"""What a sink took, written down for `lanemq check`: one line per row that says which message it came from.

The rule guarded here: a line stands for something that is in the sink. So lines are written after the sink's commit,
and none for a batch that the sink had already.
"""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql.types import StructType

from lanemq.clock import SystemClock
from lanemq.history import Place, open_history
from lanemq.model.errors import InvalidOption
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.ports import Results

COORDINATES = ("topic", "queue_id", "queue_offset", "key")
"""Columns of the outputs that say which message a row came from."""


class Effects:
    """The history of one run's sink; does nothing without a folder."""

    def __init__(self, folder: Path | None, name: str, now_ns: Callable[[], int] | None = None) -> None:
        self._name = name
        self._group = f"pipeline-{name}"
        """Not the consumer group's name: a key that was parked has its effects long after the group went past it."""
        self._history = open_history(folder, self._group, now_ns or SystemClock().now_ns)

    def check(self, schema: StructType) -> None:
        """Refuses outputs that do not say where they came from: an empty history would pass every check."""
        missing = [column for column in COORDINATES if column not in schema.names]
        if self._history.on and missing:
            raise InvalidOption(
                f"history: the outputs have no column {', '.join(missing)}, so nobody could tell which message "
                f"a row came from; add {'it' if len(missing) == 1 else 'them'}, or leave history out"
            )

    def now(self) -> int:
        return self._history.now()

    def applied(self, results: Results, batch: Batch, asked: int) -> None:
        """After the sink's commit; `asked` is from before it. Redriven letters are late on purpose: no line says so."""
        if not self._history.on:
            return
        table = results.outputs.table().select(COORDINATES)
        seen: set[tuple[str, int, int]] = set(results.late)
        for topic, queue, offset, key in zip(*(column.to_pylist() for column in table.columns), strict=True):
            # A message may make several rows, and a row of `on_expire` comes of none.
            if offset is not None and (topic, queue, offset) not in seen:
                seen.add((topic, queue, offset))
                place = Place(self._group, topic, queue, offset)
                self._history.effect(place, key or "", self._name, epoch=batch.epoch, asked=asked)

    def close(self) -> None:
        self._history.close()
