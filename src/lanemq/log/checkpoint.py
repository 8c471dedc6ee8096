"""Checkpoints: up to which log position the indexes and the broker's producer rows are on disk.

    take (loop) ─▶ write (row thread) ─▶ finish or give_back (loop)

There may be a hundred thousand queues, so `take` and `finish` are also there in steps. Queues may change between two of
them: entries that come after the step of their queue belong to the next checkpoint.

Invariant: a checkpoint never claims more than is on disk. Index files are synced first; then one transaction records
the position together with the rows that belong to it. While lost indexes are rebuilt, the request for it is on disk,
and stands for the entries that are not; the checkpoint after the last of them removes it.

The caller takes a mark (`Appender.staged`) and copies its producer rows in the same step, because those rows reflect
what is staged. The checkpoint is written only when everything below the mark is published. Otherwise a crash could
leave the stamp of a record that never reached the disk, and the producer's repeat would be refused as a duplicate.
"""

from collections.abc import Generator, Iterable
from typing import NamedTuple

from lanemq.log.appender import Appender
from lanemq.log.queue_index import IndexFiles, IndexPart, QueueTable
from lanemq.log.state.database import DamageRow, LogCheckpoint, ProducerRow, State
from lanemq.model.errors import StorageError
from lanemq.model.steps import in_one_piece


class IndexWork(NamedTuple):
    """The content of one checkpoint while it is being written."""

    mark: LogCheckpoint
    parts: list[IndexPart]
    damage: list[DamageRow]
    ends_rebuild: bool
    """Whether these are the last entries of a rebuild."""


class Checkpointer:
    """Collects what a checkpoint must contain, and writes it."""

    def __init__(self, appender: Appender, queues: QueueTable, files: IndexFiles, state: State) -> None:
        self._appender = appender
        self._queues = queues
        self._files = files
        self._state = state
        self._rebuilding = False
        self._damage: dict[int, DamageRow] = {}
        self._damaged = {row.position for row in state.damage()}
        saved = state.checkpoint()
        self.saved = 0 if saved is None else saved.position
        """The position of the last checkpoint that is on disk."""

    def rebuild_begins(self) -> None:
        """Called before the first checkpoint if entries are lost."""
        self._rebuilding = True

    def note_damage(self, damage: Iterable[DamageRow]) -> None:
        rows = {row.position: row for row in damage}
        self._damage.update(rows)
        self._damaged.update(rows)

    @property
    def damaged_places(self) -> int:
        """How many places of the log are known to be damaged."""
        return len(self._damaged)

    def ready(self, mark: int) -> bool:
        """Whether all records below a mark are published."""
        return self._appender.published >= mark

    def take(self, mark: int) -> IndexWork | None:
        """On the loop: the work for a mark; None while records below the mark are not published."""
        return in_one_piece(self.take_steps(mark)) if self.ready(mark) else None

    def take_steps(self, mark: int) -> Generator[None, None, IndexWork]:
        """On the loop: the work for a mark that is `ready`, one queue in each step. Take all of them, or close it."""
        damage, parts = list(self._damage.values()), list[IndexPart]()
        self._damage.clear()
        try:
            yield from self._queues.take_parts(parts)
        except BaseException:  # also if it is closed
            self._queues.give_back(parts)
            self.note_damage(damage)
            raise
        checkpoint = LogCheckpoint(mark, self._appender.last_store_time, clean=False)
        return IndexWork(checkpoint, parts, damage, self._rebuilding and not self._queues.incomplete())

    def write(
        self,
        work: IndexWork,
        producers: Iterable[ProducerRow] = (),
        gone_producers: Iterable[tuple[str, int, str]] = (),
    ) -> None:
        """On the row thread, after the log is synced up to the mark.

        A failure loses nothing: the previous checkpoint stays valid.
        """
        try:
            self._files.write(part for part in work.parts if part.entries and not part.queue.dropped)
        except OSError as error:
            raise StorageError(
                f"the indexes cannot be written: {error}; the log is not affected, a restart rebuilds them"
            ) from error
        # Lazy, so that it is evaluated inside the transaction: the rows of a topic dropped by then must not return.
        rows = (part.row for part in work.parts if not part.queue.dropped)
        self._state.save_checkpoint(work.mark, rows, producers, gone_producers, work.damage)
        if work.ends_rebuild:
            self._state.request_rebuild(wanted=False)

    def finish(self, work: IndexWork) -> None:
        """On the loop, after `write` succeeded: free the memory of the entries that are in the files now."""
        in_one_piece(self.finish_steps(work))

    def finish_steps(self, work: IndexWork) -> Generator[None, None, None]:
        """As `finish`, one queue in each step. Take all of them, before anything else is taken."""
        yield from self._queues.finish_parts(work.parts)
        self.saved = work.mark.position
        if work.ends_rebuild:
            self._rebuilding = False

    def give_back(self, work: IndexWork) -> None:
        """On the loop, after `write` failed: the next checkpoint takes the same entries again."""
        self._queues.give_back(work.parts)
        self.note_damage(work.damage)
