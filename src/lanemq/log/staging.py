"""What travels between the loop and the log thread during an append.

Hand-over: the loop fills one `Pending`, then swaps it for a new one; from then on only the log thread touches
it (`flush`), and afterwards only the loop again (`publish`). Nothing is shared while it is being changed, so
the hot path needs no lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from lanemq.log.queue_index import QueueIndex
from lanemq.wire.record_columns import RecordColumns

RecordParts: TypeAlias = tuple[bytes, bytes, int, int, int, int, int]
"""The fields of a `NewRecord` as a plain tuple: a broker makes hundreds of thousands a second."""

NewRecords: TypeAlias = Sequence[RecordParts] | RecordColumns
"""What is staged in one go: one by one, or many that are alike as columns."""


class NewRecord(NamedTuple):
    """One message to store. `properties` is RocketMQ's properties text in UTF-8; `tag_code` 0 means no tag."""

    body: bytes
    properties: bytes = b""
    tag_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    reconsume_times: int = 0


class Staged(NamedTuple):
    """Where the records will be; true once they are flushed, nothing before."""

    first_offset: int
    positions: list[int]
    store_time: int


class Arrival(NamedTuple):
    """New visible messages of one queue; wakes long polls."""

    topic: str
    queue_id: int
    max_offset: int
    tag_codes: frozenset[int]


@dataclass(slots=True)
class QueueBatch:
    """One queue's share of a pending append."""

    entries: list[bytes] = field(default_factory=list)
    tag_codes: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Pending:
    """Everything staged since the last group commit. `parts` are segment start and the records for it."""

    start: int
    end: int
    parts: list[tuple[int, list[bytes]]] = field(default_factory=list)
    queues: dict[QueueIndex, QueueBatch] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.end > self.start
