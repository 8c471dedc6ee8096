"""Checkpoints: up to which position of the log the indexes, and the broker's rows, are on disk.

Guards: a checkpoint never claims more than what is on disk. Index files are synced first, then one transaction
records the position together with the rows it speaks of.

Why `take` wants a mark from earlier: the broker's producer rows reflect what is *staged*. It copies them and
the mark in one moment; the checkpoint is written only when everything below that mark is published. Otherwise a
crash could leave a stamp of a record that never reached the disk, and its repeat would be refused as a duplicate.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.index_files import IndexFiles
from lanemq.log.queue_table import IndexPart, QueueTable
from lanemq.log.state import Checkpoint, DamageRow, ProducerRow, State
from lanemq.model.errors import StorageError


class IndexWork(NamedTuple):
    """A checkpoint on its way: made on the loop, written on the log thread, finished on the loop."""

    mark: Checkpoint
    parts: list[IndexPart]
    damage: list[DamageRow]


class Checkpointer:
    """Collects what must be written and writes it."""

    def __init__(self, log: CommitLog, queues: QueueTable, files: IndexFiles, state: State) -> None:
        self._log = log
        self._queues = queues
        self._files = files
        self._state = state
        self._damage: dict[int, DamageRow] = {}

    def note_damage(self, damage: Iterable[DamageRow]) -> None:
        self._damage.update((row.position, row) for row in damage)

    def note_bad_record(self, position: int, size: int) -> None:
        """A record that was intact once and failed its checksum when read."""
        self.note_damage([DamageRow(position, size, "failed its checksum when read")])

    def take(self, mark: int, last_store_time: int) -> IndexWork:
        """On the loop, once everything below `mark` is published."""
        damage = list(self._damage.values())
        self._damage.clear()
        return IndexWork(Checkpoint(mark, last_store_time, clean=False), self._queues.take_parts(), damage)

    def write(
        self,
        work: IndexWork,
        producers: Iterable[ProducerRow],
        gone_producers: Iterable[tuple[str, int, str]],
    ) -> None:
        """On the log thread. A failure loses nothing: the checkpoint stays where it was."""
        try:
            for part in work.parts:
                if part.entries and not part.queue.dropped:
                    self._files.write(part.queue, part.offset, part.first, part.entries)
        except OSError as error:
            raise StorageError(
                f"the indexes cannot be written: {error}; the log is not affected, a restart rebuilds them"
            ) from error
        # Asked inside the transaction: a topic dropped meanwhile must not come back with its rows.
        rows = (part.row for part in work.parts if not part.queue.dropped)
        self._state.save_checkpoint(work.mark, rows, producers, gone_producers, work.damage)

    def finish(self, work: IndexWork) -> None:
        """On the loop, after `write` succeeded: the memory of what is in the files is given free."""
        self._queues.finish_parts(work.parts)

    def give_back(self, work: IndexWork) -> None:
        """On the loop, after `write` failed: the same entries are taken again next time."""
        self._queues.give_back(work.parts)
        self.note_damage(work.damage)
