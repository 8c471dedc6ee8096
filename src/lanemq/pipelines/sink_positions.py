"""How far the sink has every queue, so that a message which comes again under another number is not applied again.

A batch of a group's member is not always the same when it is repeated: queues that another member took over meanwhile
are left out of it, and come later in a batch with another number. If the sink has the batch as it was first, it would
get their messages twice. The rules guarded here: what a batch holds of each queue is on disk before the first commit of
it, and counts from the moment on that the sink has the batch; a message below that is dropped before the stage sees
it, unless it is newer than all that was read, which is a topic that was deleted and created again.
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
"""Columns without which nobody can tell a message that comes again."""


class Reach(msgspec.Struct, frozen=True):
    """Of one queue."""

    next: int
    """The offset behind the last message that was read."""
    stored: int
    """The highest store time of what was read, in milliseconds."""

    def with_more(self, other: "Reach | None") -> "Reach":
        return self if other is None else Reach(max(self.next, other.next), max(self.stored, other.stored))


Reaches = Mapping[str, Reach]
"""By queue, `topic/broker/number`."""


class _Note(msgspec.Struct, frozen=True):
    number: int
    """The batch that is being committed."""
    before: dict[str, Reach]
    behind: dict[str, Reach]


class SinkReach:
    """Of one checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note = _Note(-1, {}, {})
        self._counts: dict[str, Reach] = {}

    def open(self, is_in: Callable[[int], bool]) -> None:
        """`is_in`: whether the sink has the batch with this number."""
        if self._path.exists():
            found = read_json(self._path, _Note)
            assert isinstance(found, _Note)
            self._note = found
        self._counts = self._note.behind if is_in(self._note.number) else self._note.before

    def note(self, number: int, reached: Reaches) -> None:
        """Before the first commit of a batch; a batch without messages leaves things as they are."""
        if not reached:
            return
        before = self._note.before if self._note.number == number else self._counts
        behind = before | {queue: reach.with_more(before.get(queue)) for queue, reach in reached.items()}
        if (number, behind) != (self._note.number, self._note.behind):
            self._note = _Note(number, dict(before), dict(behind))
            write_json(self._path, self._note)

    def committed(self, number: int) -> None:
        """The sink has the batch."""
        if self._note.number == number:
            self._counts = self._note.behind

    def fresh(self, messages: DataFrame, start: Callable[[], Positions]) -> DataFrame:
        """Without what the sink has. Nearly always the frame itself: a queue is rarely put back."""
        if not self._counts:
            return messages
        begins = {str(queue): at for queue, at in start().items()}
        again = [queue for queue, reach in self._counts.items() if begins.get(queue, 0) < reach.next]
        if not again:
            return messages
        return messages.where(~reduce(or_, (_was_read(queue, self._counts[queue]) for queue in again)))


def refuse_without(columns: Iterable[str]) -> None:
    """`UsageError` if messages lack a column that names them."""
    missing = [name for name in NEEDED if name not in set(columns)]
    if missing:
        raise UsageError(
            f"messages have no column {', '.join(missing)}: in a group they may come again in another batch, and only "
            f"these columns tell. Do not drop them in prepare, or name them in the source's option columns"
        )


def _was_read(queue: str, reach: Reach) -> Column:
    topic, broker, number = queue.split("/")[0], "/".join(queue.split("/")[1:-1]), queue.split("/")[-1]
    here = (f.col("topic") == topic) & (f.col("broker") == broker) & (f.col("queue_id") == int(number))
    old = f.col("store_timestamp") <= f.timestamp_millis(f.lit(reach.stored))
    return here & (f.col("queue_offset") < reach.next) & old
