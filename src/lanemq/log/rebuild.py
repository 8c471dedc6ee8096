"""Bringing memory and indexes up to the log at start.

Guards: an offset that was given out is never given out again while anything still tells of it. A damaged
record keeps its place in its queue, as a gap that readers are told about. Known offsets come from the queue
rows, from the neighbours of the damage, and, for the last record of a queue, from what is left of its head.

And: of an append that nobody was told of, only the beginning counts. A power cut may have kept its end and not its
middle; were that end taken for stored, its producer's repetition would be answered as a duplicate, and the middle
would be lost although acknowledged. So the log ends at its first torn byte, unless a record behind it shows that it
had been synced (`shows_synced`): then it is damage, and costs nothing but itself.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.queue_index import QueueIndex
from lanemq.log.queue_table import QueueTable
from lanemq.log.record_bytes import RecordFacts, facts_of
from lanemq.log.recovery import Damaged, Found, scan, shows_synced
from lanemq.log.state import DamageRow, QueueRow
from lanemq.wire.properties import tag_code_of
from lanemq.wire.record import PROOF, RecordView

OnRecord = Callable[[RecordView], None]


@dataclass(slots=True)
class Rebuilt:
    """What a scan found. `torn_at` is where an unfinished end begins, if there is one."""

    records: int = 0
    last_store_time: int = 0
    damage: list[DamageRow] = field(default_factory=list)
    torn_at: int | None = None


class _Place(NamedTuple):
    topic: str
    queue_id: int
    offset: int
    position: int


class Rebuilder:
    """One scan of the log, from `begin` on, into the queue table.

    Records below `known` were handed to the broker before the restart, so `on_record` gets only later ones;
    and bytes below it were synced, so damage there is damage, never a torn end.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, dropped: Mapping[str, int], known: int) -> None:
        self._log = log
        self._queues = queues
        self._dropped = dropped
        self._known = known
        self._damage_at = 0
        self._guesses: list[_Place] = []
        self._result = Rebuilt()

    def run(self, begin: int, on_record: OnRecord | None) -> Rebuilt:
        for part in scan(self._log, begin):
            if isinstance(part, Found):
                self._add(part, on_record)
            elif not self._kept(part):
                break
        self._keep_guessed_places()
        return self._result

    def _kept(self, part: Damaged) -> bool:
        """Notes damage; False for a torn end, which begins where nothing is known to have been synced."""
        end = part.position + part.length
        if end > self._known and not shows_synced(self._log, end):
            self._result.torn_at = max(part.position, self._known)
            part = part._replace(length=self._result.torn_at - part.position)
        if part.length:
            self._note(part)
        return self._result.torn_at is None

    def keep_known_ends(self, rows: list[QueueRow]) -> None:
        """After a rebuild from nothing: no queue may end before the offset it had reached."""
        for row in rows:
            queue = self._queues.find(row.topic, row.queue_id)
            if queue is None:
                queue = self._queues.obtain(row.topic, row.queue_id)
                if self._log.start > 0:
                    queue.begin_at(row.end)
                self._queues.touch(queue)
            while queue.end < row.end:
                self._put(queue, self._damage_at, 0, 0)

    def _add(self, found: Found, on_record: OnRecord | None) -> None:
        facts = facts_of(found.buffer, found.start)
        self._result.records += 1
        self._result.last_store_time = max(self._result.last_store_time, facts.store_time)
        if found.position < self._dropped.get(facts.topic, 0):
            return
        self._index(found, facts)
        if on_record is not None and found.position >= self._known:
            on_record(RecordView(found.buffer, found.start))

    def _index(self, found: Found, facts: RecordFacts) -> None:
        queue = self._queues.find(facts.topic, facts.queue_id)
        if queue is None:
            queue = self._queues.obtain(facts.topic, facts.queue_id)
            if self._log.start > 0:
                # The records before this one were deleted with their segments, they are not damaged.
                queue.begin_at(facts.queue_offset)
        while queue.end < facts.queue_offset:
            self._put(queue, self._damage_at, 0, 0)
        if queue.end == facts.queue_offset:
            self._put(queue, found.position, found.size, tag_code_of(facts.properties))

    def _put(self, queue: QueueIndex, position: int, size: int, tag_code: int) -> None:
        queue.put(position, size, tag_code)
        self._queues.touch(queue)

    def _note(self, damaged: Damaged) -> None:
        self._damage_at = damaged.position
        self._result.damage.append(DamageRow(damaged.position, damaged.length, damaged.reason))
        place = _guess(damaged)
        if place is not None:
            self._guesses.append(place)

    def _keep_guessed_places(self) -> None:
        for place in self._guesses:
            queue = self._queues.find(place.topic, place.queue_id)
            if queue is not None and queue.end == place.offset:
                self._put(queue, place.position, 0, 0)


def _guess(damaged: Damaged) -> _Place | None:
    """Whose record this was, if its head still tells. A wrong guess costs one reported gap, nothing else."""
    try:
        claimed = PROOF.unpack_from(damaged.head, 0)[4]
        facts = facts_of(damaged.head, 0)
    except (struct.error, ValueError, IndexError):
        return None
    if claimed != damaged.position:
        return None
    return _Place(facts.topic, facts.queue_id, facts.queue_offset, damaged.position)
