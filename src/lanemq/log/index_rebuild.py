"""The rebuild of lost queue indexes, step by step, while the store is in use.

    read (search thread) ─▶ enter (loop)

A start needs no index entry below the last checkpoint: the queue rows say where each queue ends, and what was logged
later is replayed. These rows may be newer than the checkpoint's position in the log, so the rebuild reads the log to
the end that it had at the start. The broker serves before the rebuild begins. The log is read from its start, so the
oldest messages of each queue are readable first. Entries go to the files with the usual checkpoints.

Invariant: an entry is either right or missing, and a reader of a missing one is refused (`StillRebuilding`), never
answered with another record or with none. The request for the rebuild stays on disk until all entries are in the
files, so a crash in between begins again. Log files must not be deleted before the rebuild is done.
"""

from collections.abc import Mapping

from lanemq.log.commit_log import CommitLog
from lanemq.log.queue_index import ENTRY_BYTES, QueueTable
from lanemq.log.recovery import Piece, dropped_bytes, read_piece
from lanemq.log.state.database import DamageRow

STEP_BYTES = 16 * 1024 * 1024
"""Bytes of the log that one step reads."""
WINDOW_BYTES = 512 * 1024
"""Bytes of the log that the search thread indexes in one call. The call holds the interpreter lock for about half a
millisecond, and the event loop waits for it; a smaller window costs more calls."""


class IndexRebuild:
    """Builds the entries of all records below a log position."""

    def __init__(self, log: CommitLog, queues: QueueTable, dropped: Mapping[str, int], until: int) -> None:
        self._log = log
        self._queues = queues
        self._dropped = dropped_bytes(dropped)
        self._until = until
        self._position = log.start
        self._damage_at = 0
        self.entered = 0
        """How many records were entered."""
        self.done = False

    @property
    def bytes_left(self) -> int:
        """How much of the log is still to be read."""
        return max(0, self._until - self._position)

    @property
    def unfiled_bytes(self) -> int:
        """The size of the rebuilt entries that no checkpoint has written to files."""
        return sum(len(queue.rebuilt.tail) for queue in self._queues.incomplete() if queue.rebuilt is not None)

    def read(self, max_bytes: int = STEP_BYTES) -> list[Piece]:
        """On the search thread: the next part of the log. One step at a time."""
        pieces = []
        position = self._position
        end = min(self._until, position + max_bytes)
        while position < end:
            piece = read_piece(self._log, position, self._until, self._dropped, WINDOW_BYTES)
            if piece is None:
                break
            pieces.append(piece._replace(buffer=b""))
            position = piece.reached
        return pieces

    def enter(self, pieces: list[Piece]) -> list[DamageRow]:
        """On the loop: add the entries that `read` found; returns the damage that it found."""
        damage = []
        for piece in pieces:
            if piece.damaged is not None:
                self._damage_at = piece.position
                damage.append(DamageRow(piece.position, piece.damaged.length, piece.damaged.reason))
            for topic, queue_id, first, entries in piece.runs:
                self._add(topic.decode(), queue_id, first, entries)
            self.entered += piece.records
            self._position = piece.reached
        if not pieces or self._position >= self._until:
            self._finish()
        return damage

    def _add(self, topic: str, queue_id: int, first: int, entries: bytes) -> None:
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.rebuilt is None:
            return  # the topic was deleted since the start
        rebuilt, room = queue.rebuilt, queue.filed_end - first
        if rebuilt.end == 0 and self._log.start > 0:
            # The records before this one were deleted with their segments; they are not damaged.
            rebuilt.begin_at(first)
        if room > 0:
            rebuilt.enter(first, entries[: room * ENTRY_BYTES], damage_at=self._damage_at)
            self._queues.touch(queue)

    def _finish(self) -> None:
        """Extend every queue to the end that it had reached: what was not found is damaged, or was deleted."""
        self.done = True
        for queue in self._queues.incomplete():
            assert queue.rebuilt is not None
            if queue.rebuilt.end == 0 and self._log.start > 0:
                queue.rebuilt.begin_at(queue.filed_end)
            queue.rebuilt.enter(queue.filed_end, b"", damage_at=self._damage_at)
            self._queues.touch(queue)
