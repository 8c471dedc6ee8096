"""How far the sink has each queue, so that a message that comes again in another batch is not applied again.

In a consumer group, a repeated batch may hold less than the first attempt: queues that another member took over in
between are missing from it and come later, in a batch with another number. If the sink has the first attempt, it would
apply their messages twice.

Invariants: what a batch holds of each queue is on disk before its first commit, and counts once the sink has the
batch. A message below that position is dropped before the stage sees it, unless it was stored later than everything
that was read: then the topic was deleted and created again.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from lanemq.model.errors import UsageError
from lanemq.pipelines.atomic_files import read_json, write_json
from lanemq.spark.offsets import Positions

NEEDED: Final = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp")
"""Columns without which a message that comes again cannot be recognised."""


class SinkPosition(msgspec.Struct, frozen=True):
    """How far one queue was read."""

    next: int
    """The offset after the last message that was read."""
    stored: int
    """The highest store time of the messages that were read, in milliseconds since 1970."""

    def with_more(self, other: "SinkPosition | None") -> "SinkPosition":
        return self if other is None else SinkPosition(max(self.next, other.next), max(self.stored, other.stored))


class _Note(msgspec.Struct, frozen=True):
    number: int
    """The batch that is being committed."""
    before: dict[str, SinkPosition]
    after: dict[str, SinkPosition]


class SinkPositions:
    """The positions of one checkpoint's sink, by queue (`topic/broker/number`)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note = _Note(-1, {}, {})
        self._current: dict[str, SinkPosition] = {}

    def open(self, is_in: Callable[[int], bool]) -> None:
        """Read the file. `is_in`: whether the sink has the batch with this number."""
        if self._path.exists():
            self._note = read_json(self._path, _Note)
        self._current = self._note.after if is_in(self._note.number) else self._note.before

    def note(self, number: int, positions: Mapping[str, SinkPosition]) -> None:
        """Record a batch before its first commit. A batch without messages changes nothing."""
        if not positions:
            return
        before = self._note.before if self._note.number == number else self._current
        after = before | {queue: position.with_more(before.get(queue)) for queue, position in positions.items()}
        if (number, after) != (self._note.number, self._note.after):
            self._note = _Note(number, dict(before), dict(after))
            write_json(self._path, self._note)

    def committed(self, number: int) -> None:
        """Called when the sink has the batch."""
        if self._note.number == number:
            self._current = self._note.after

    def fresh(self, messages: DataFrame, start: Callable[[], Positions]) -> DataFrame:
        """The messages that the sink does not have. Usually the frame itself, since queues are rarely read again."""
        if not self._current:
            return messages
        begins = {str(queue): at for queue, at in start().items()}
        again = [queue for queue, position in self._current.items() if begins.get(queue, 0) < position.next]
        if not again:
            return messages
        return messages.where(~reduce(or_, (_was_read(queue, self._current[queue]) for queue in again)))


def refuse_without(columns: Iterable[str]) -> None:
    """`UsageError` if a column is missing that identifies a message."""
    missing = [name for name in NEEDED if name not in set(columns)]
    if missing:
        raise UsageError(
            f"messages have no column {', '.join(missing)}: in a group a message may come again in another batch, and "
            f"only these columns show it. Keep them in prepare, or name them in the source's option columns"
        )


def _was_read(queue: str, position: SinkPosition) -> Column:
    topic, broker, number = queue.split("/")[0], "/".join(queue.split("/")[1:-1]), queue.split("/")[-1]
    here = (f.col("topic") == topic) & (f.col("broker") == broker) & (f.col("queue_id") == int(number))
    old = f.col("store_timestamp") <= f.timestamp_millis(f.lit(position.stored))
    return here & (f.col("queue_offset") < position.next) & old
