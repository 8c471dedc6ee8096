"""The history of what the sink applied, for `lanemq check`: one line per message that rows came from.

Invariant: a line stands for something that is in the sink. So lines are written after the sink's commit, and none for a
batch that the sink already had.
"""

from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from pyspark.sql.types import StructType

from lanemq.clock import SystemClock, machine_of
from lanemq.history import Place, open_history
from lanemq.model.errors import InvalidOption
from lanemq.model.names import DEFAULT_BROKER_NAME
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Results

COORDINATES = ("topic", "queue_id", "queue_offset", "key")
"""Columns of the outputs that identify the message a row came from. On a cluster `broker` too."""
BROKER = "broker"


class EffectHistory:
    """Writes the history of one run's sink; without a folder it is not `on`, and its user writes nothing."""

    def __init__(self, folder: Path | None, name: str, now_ns: Callable[[], int] | None = None) -> None:
        self._name = name
        self._group = f"pipeline-{name}"
        """Not the consumer group's name: a parked key has its effects long after the group has passed it."""
        clock = SystemClock()
        machine = "" if now_ns is not None else machine_of(clock)
        self._history = open_history(folder, self._group, now_ns or clock.now_ns, machine=machine)
        self.on = self._history.on

    def check(self, schema: StructType) -> None:
        """`InvalidOption` if the outputs do not identify their messages: an empty history would pass every check."""
        missing = [column for column in COORDINATES if column not in schema.names]
        if self.on and missing:
            raise InvalidOption(
                f"history: the outputs have no column {', '.join(missing)}, so the message that a row came from is "
                f"unknown; add {'it' if len(missing) == 1 else 'them'}, or leave history out"
            )

    def now(self) -> int:
        return self._history.now()

    def applied(self, results: Results, batch: Batch, asked: int) -> None:
        """Record a batch after the sink's commit. `asked`: `now()` before the commit.

        Redriven dead letters are late on purpose, so they get no line.
        """
        table = results.outputs.table()
        rows = zip(*(column.to_pylist() for column in table.select(COORDINATES).columns), strict=True)
        named = BROKER in table.column_names
        brokers = table.column(BROKER).to_pylist() if named else repeat(DEFAULT_BROKER_NAME)
        late = results.late if named else {(topic, DEFAULT_BROKER_NAME, *where) for topic, _, *where in results.late}
        seen: set[Place] = set()
        for (topic, queue, offset, key), broker in zip(rows, brokers, strict=False):
            # A message may make several rows, and a row of a timer comes from no message.
            if offset is None or (topic, broker, queue, offset) in late:
                continue
            place = Place(self._group, topic, queue, offset, broker)
            if place not in seen:
                seen.add(place)
                self._history.effect(place, key or "", self._name, epoch=batch.epoch, asked=asked)

    def close(self) -> None:
        self._history.close()
