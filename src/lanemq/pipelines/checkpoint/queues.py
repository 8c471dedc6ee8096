"""What a checkpoint records about queues: which ones the state belongs to, and how far the sink has each.

`QueueSet`. Producers choose a message's queue by the number of queues, so if a topic gets more queues, keys move. Where
state is kept by queue, or queue offsets decide what is newer, a moved key would silently begin anew. So the pipeline
ends before it reads a message of the new queues, unless `on_queue_change` allows it.

`SinkPositions`. In a consumer group, a repeated batch may hold less than its first attempt: queues that another member
took over in between are missing from it, and come later in a batch with another number. If the sink has the first
attempt, it would apply their messages twice.

Invariants of the positions: what a batch holds of each queue is on disk before its first commit, and counts once the
sink has the batch. A message below that position is dropped before the stage sees it, unless it was stored later than
everything that was read: then the topic was deleted and created again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from lanemq.files import StorePath, write_durably
from lanemq.model.errors import InvalidOption, OrderError, UsageError
from lanemq.pipelines.checkpoint.fencing import Write, read_fenced_json
from lanemq.pipelines.ports import OnQueueChange, SinkPosition
from lanemq.spark.offsets import Positions

log = logging.getLogger(__name__)

_CHOICES: Final = ("fail", "continue")


class _Queues(msgspec.Struct, frozen=True):
    topics: dict[str, list[str]]
    """By topic, `broker/number` of each queue."""


class QueueSet:
    """The known queues of one checkpoint."""

    def __init__(self, path: StorePath, on_change: OnQueueChange, write: Write = write_durably) -> None:
        self._path = path
        self._write = write
        self._on_change = on_change
        self._known: dict[str, list[str]] | None = None

    def check(self, positions: Positions) -> None:
        """`OrderError` if a known topic has new queues. New topics are accepted."""
        known, found = self._read(), _by_topic(positions)
        more = {
            topic: [name for name in names if name not in known[topic]]
            for topic, names in found.items()
            if topic in known
        }
        grown = {topic: names for topic, names in more.items() if names}
        if grown:
            self._warn_or_refuse(known, grown)
        if grown or not found.keys() <= known.keys():
            self._known = known | {topic: sorted({*names, *known.get(topic, ())}) for topic, names in found.items()}
            self._write(self._path, msgspec.json.encode(_Queues(self._known)))

    def _warn_or_refuse(self, known: dict[str, list[str]], grown: dict[str, list[str]]) -> None:
        topic, names = next(iter(sorted(grown.items())))
        what = (
            f"topic {topic} had {len(known[topic])} queues and now has {', '.join(names)} too (more queues, or a "
            f"broker that is new or was down): keys that moved there have no state"
        )
        if self._on_change == "continue":
            log.warning("%s; continuing because of on_queue_change='continue'", what)
            return
        raise OrderError(
            f"{what}. Remove the new queues again, or begin with an empty checkpoint and table; if no key has moved, "
            f"or a moved key may begin anew, set on_queue_change='continue'"
        )

    def _read(self) -> dict[str, list[str]]:
        if self._known is None:
            self._known = read_fenced_json(self._path, _Queues).topics if self._path.exists() else {}
        return self._known


def check_on_queue_change(value: str) -> OnQueueChange:
    """The value as an `OnQueueChange`, or `InvalidOption`."""
    if value not in _CHOICES:
        raise InvalidOption(f"on_queue_change={value!r}: use 'fail' or 'continue'")
    return value  # type: ignore[return-value]


def _by_topic(positions: Positions) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for queue in sorted(positions):
        found.setdefault(queue.topic, []).append(f"{queue.broker}/{queue.queue_id}")
    return found


NEEDED: Final = ("topic", "broker", "queue_id", "queue_offset", "store_timestamp")
"""Columns without which a message that comes again cannot be recognised."""


class _Note(msgspec.Struct, frozen=True):
    number: int
    """The batch that is being committed."""
    before: dict[str, SinkPosition]
    after: dict[str, SinkPosition]


class SinkPositions:
    """The positions of one checkpoint's sink, by queue (`topic/broker/number`)."""

    def __init__(self, path: StorePath, write: Write = write_durably) -> None:
        self._path = path
        self._write = write
        self._note = _Note(-1, {}, {})
        self._current: dict[str, SinkPosition] = {}

    def open(self, is_in: Callable[[int], bool]) -> None:
        """Read the file. `is_in`: whether the sink has the batch with this number."""
        if self._path.exists():
            self._note = read_fenced_json(self._path, _Note)
        self._current = self._note.after if is_in(self._note.number) else self._note.before

    def note(self, number: int, positions: Mapping[str, SinkPosition]) -> None:
        """Record a batch before its first commit. A batch without messages changes nothing."""
        if not positions:
            return
        before = self._note.before if self._note.number == number else self._current
        after = before | {queue: position.with_more(before.get(queue)) for queue, position in positions.items()}
        if (number, after) != (self._note.number, self._note.after):
            self._note = _Note(number, dict(before), dict(after))
            self._write(self._path, msgspec.json.encode(self._note))

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


def check_position_columns(columns: Iterable[str]) -> None:
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
