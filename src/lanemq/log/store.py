"""The store: the messages of one data folder.

    Appender         stage (loop) ─▶ flush (log thread) ─▶ publish (loop)
    Checkpointer     take (loop) ─▶ write (row thread) ─▶ finish (loop)
    retention        retire (loop) ─▶ forget_keys (search thread) ─▶ delete_retired (log thread)
    KeyIndex         search thread only: `query`, `index_keys`, `forget_keys`

Everything else belongs to the loop. There is one loop, one log thread, one row thread for `state` and
indexes, and one search thread. The log reads no clock: times are arguments.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

from lanemq.core.brokering.disk_space import Space
from lanemq.log.appender import Appender, NewRecords, Pending, Staged
from lanemq.log.checkpoint import Checkpointer
from lanemq.log.commit_log import CommitLog, Segment
from lanemq.log.filesystem import Disk, RealDisk
from lanemq.log.folder.checks import open_matching_state, refuse_backup, refuse_coordinator, unfinished_restore
from lanemq.log.folder.lock import DataLock
from lanemq.log.index_rebuild import IndexRebuild
from lanemq.log.key_index import KeyIndex
from lanemq.log.options import StoreOptions
from lanemq.log.queue_index import (
    ENTRY_BYTES,
    Entry,
    IndexFiles,
    IndexLost,
    QueueIndex,
    QueueTable,
    broken_entries,
    unpack_entries,
)
from lanemq.log.reading import ReadResult, ReadStatus, TimeSearch, adjacent_runs, gather, nothing_to_read, read_adjacent
from lanemq.log.record_bytes import facts_of, size_at
from lanemq.log.recovery import OnRecords, Piece, RecoveryReport, Startup
from lanemq.log.retention import Retention
from lanemq.log.state.database import DamageRow, ProducerRow, State
from lanemq.log.state.recovery_file import RecoveryFile
from lanemq.log.state.space_reserve import SpaceReserve
from lanemq.model.errors import CorruptRecord, DiskFull, NoDescriptors, StorageError, WriteFailed
from lanemq.model.steps import in_one_piece
from lanemq.wire.record import HEAD_BYTES

_FILTER_SCAN = 8192
"""Entries that a filtered pull scans at most before it answers, so that a rare tag does not cost many round trips."""

_FIRST_LOOK = 1024
"""Entries that a pull reads before it decides whether it needs more."""


class Store:
    """Opens the messages of one data folder: call `recover` once, use it, `close` it.

    Between opening and `recover`, only `state` may be used: the broker restores its producer table from it and then
    receives all later records through `on_records`.
    """

    def __init__(
        self,
        folder: Path,
        options: StoreOptions | None = None,
        disk: Disk | None = None,
        open_state: Callable[[Path], State] = State,
    ) -> None:
        self.options = options or StoreOptions()
        disk = disk or RealDisk()
        self._disk, self._folder = disk, folder
        disk.make_dir(folder)
        self._lock = DataLock(folder)
        try:
            refuse_backup(folder)
            refuse_coordinator(folder)
            if open_state is State and unfinished_restore(folder):
                raise StorageError(f"{folder} is not restored completely: run lanemq restore again")
            SpaceReserve(folder).release_if_full()
            self._log = CommitLog(folder / "log", disk)
            self._copy = RecoveryFile(folder)
            self.state = open_matching_state(
                folder / "state.db", self._log, self._copy, open_state, self.options.recover
            )
        except BaseException:  # also an interrupt: this process may open the folder again
            self._lock.close()
            raise
        self._files = IndexFiles(
            folder / "index", disk, self.options.max_open_indexes, on_lost=self.state.request_rebuild
        )
        self._queues = QueueTable(self._log, self._files)
        self.appender = Appender(self._log, self._queues, self.options)
        self.checkpoints = Checkpointer(self.appender, self._queues, self._files, self.state)
        self.retention = Retention(self._log, self.options)
        self.times = TimeSearch(self._log, self._queues)
        self._keys = KeyIndex(folder / "keys", disk, self._log, lambda: self.appender.published)
        self._startup = Startup(folder, disk, self._log, self._queues, self._files, self.state)
        self._dropped = self.state.dropped_topics()
        self._rebuild: IndexRebuild | None = None
        self._may_be_unused = True
        """Whether the oldest segments may hold messages of deleted topics only."""
        self._ready = False

    def recover(
        self,
        on_records: OnRecords | None = None,
        producers: Callable[[], Iterable[ProducerRow]] = tuple,
        *,
        rebuild_later: bool = False,
    ) -> RecoveryReport:
        """Make the store usable: immediately after a clean stop, else by reading the log from the last checkpoint.

        `producers` is called after the last `on_records`. Its rows go into the new checkpoint, without which a second
        crash would lose the stamps of the records that were just replayed.

        Lost indexes are rebuilt before this returns, or, with `rebuild_later`, by the caller's use of `rebuild`. Until
        then, reading an older message may raise `StillRebuilding`.
        """
        report = self._startup.run(on_records)
        if any(position > self._log.end for position in self._dropped.values()):
            self.state.cut_dropped(self._log.end)
            self._dropped = self.state.dropped_topics()
        self.appender.reset(report.last_store_time)
        self._keys.open(self._log.end)
        self.checkpoints.note_damage(report.damage)
        if report.indexes_lost:
            self.checkpoints.rebuild_begins()
            # To the end of the log: the rows of queues may be newer than the position of their checkpoint.
            self._rebuild = IndexRebuild(self._log, self._queues, self._dropped, self._log.end)
            if not rebuild_later:
                report = self._rebuild_now(self._rebuild, report)
        if not report.clean or report.indexes_lost:
            self.checkpoint(producers())
        self.state.mark_running()
        self.state.new_generation()
        self._copy.set_running(True)
        self._ready = True
        return report

    def _rebuild_now(self, rebuild: IndexRebuild, report: RecoveryReport) -> RecoveryReport:
        damage = list(report.damage)
        while not rebuild.done:
            damage += self.enter_rebuilt(rebuild, rebuild.read())
        return report._replace(scanned=report.scanned + rebuild.entered, damage=damage)

    @property
    def rebuild(self) -> IndexRebuild | None:
        """The rebuild of lost indexes, until it is done."""
        return None if self._rebuild is None or self._rebuild.done else self._rebuild

    @property
    def indexes_complete(self) -> bool:
        """Whether no index entry is lost, or all lost ones are rebuilt and joined with the others."""
        return self._rebuild is None or (self._rebuild.done and not self._queues.incomplete())

    def enter_rebuilt(self, rebuild: IndexRebuild, pieces: list[Piece]) -> list[DamageRow]:
        """On the loop: add what `rebuild.read` found; returns the damage that it found."""
        damage = rebuild.enter(pieces)
        self.checkpoints.note_damage(damage)
        return damage

    @property
    def log_start(self) -> int:
        return self._log.start

    @property
    def log_end(self) -> int:
        """The position after the last visible record."""
        return self.appender.published

    def space(self) -> Space:
        """What is left of the disk."""
        return Space(*self._disk.free_space(self._folder))

    def lost(self) -> str | None:
        """Why what is written now would be lost; None if it would not."""
        if self._lock.lost():
            return (
                f"the data folder {self._folder} is not there any more: it was removed or renamed, or its disk was "
                f"unmounted"
            )
        removed = self._log.removed
        return self.state.lost() if removed is None else f"{removed}, the newest file of the log, was deleted"

    @property
    def open_files(self) -> int:
        """How many files the store keeps open at most, with the segments that it has now."""
        return len(self._log.segments) + self.options.max_open_indexes

    def append(self, topic: str, queue_id: int, items: NewRecords, *, store_time: int) -> Staged:
        """Stage, flush and publish on one thread, for tools and tests."""
        staged = self.appender.stage(topic, queue_id, items, store_time=store_time)
        pending = self.appender.take_pending()
        try:
            self.appender.flush(pending)
        except (DiskFull, NoDescriptors):
            self.undo(pending)
            raise
        self.appender.publish(pending)
        return staged

    def undo(self, pending: Pending) -> list[bytes]:
        """Discard a flush that stored nothing, and everything staged behind it (`Appender.undo`).

        A topic that was dropped behind the new end of the log is dropped at the end, or new records of that name would
        be hidden. `state.cut_dropped` must follow, before anything else is written to the log.
        """
        lost = self.appender.undo(pending)
        self._dropped = {topic: min(position, self._log.end) for topic, position in self._dropped.items()}
        return lost

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The smallest offset kept and the next one to be written; (0, 0) for a queue without messages."""
        queue = self._queues.find(topic, queue_id)
        return (self._queues.first(queue), queue.end) if queue else (0, 0)

    def queues(self) -> list[tuple[str, int]]:
        """Every queue that ever held a message and was not dropped."""
        return [(queue.topic, queue.queue_id) for queue in self._queues]

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_filter: frozenset[int] | None = None,
    ) -> ReadResult:
        """Verified records from an offset on. Returns at least one message if there is one, however large.

        Raises `StillRebuilding` if the entry of the first one is lost and not rebuilt yet.
        """
        queue = self._queues.find(topic, queue_id)
        first, end = self.bounds(topic, queue_id)
        answer = nothing_to_read(offset, first, end)
        if answer is not None or queue is None:
            return answer or ReadResult(ReadStatus.EMPTY, b"", 0, 0, 0, 0, [])
        readable = self._queues.readable_end(queue, offset) - offset
        if tag_filter is None:
            raw, runs = self._enough_entries(queue, offset, min(max_count, readable), max_bytes)
            plain = read_adjacent(self._log, queue_id, offset, raw, runs) if runs else None
            if plain is not None:
                return ReadResult(ReadStatus.FOUND, plain.data, plain.count, offset + plain.scanned, first, end, [])
            entries = unpack_entries(raw)
        else:
            entries = self._entries(queue, offset, min(max(max_count, _FILTER_SCAN), readable))
        lost = [i for i, entry in enumerate(entries) if entry[1] == 0]
        wanted: Sequence[int] = range(len(entries))
        if tag_filter is not None:
            wanted = [i for i, entry in enumerate(entries) if entry[2] in tag_filter and entry[1]]
        elif lost:
            wanted = [i for i, entry in enumerate(entries) if entry[1]]
        if len(wanted) > max_count:
            entries, wanted = entries[: wanted[max_count]], wanted[:max_count]
        got = gather(self._log, queue_id, offset, entries, wanted, max_bytes)
        damaged = got.damaged + [offset + i for i in lost if i < got.scanned]
        if got.damaged:
            self._note_damaged(queue, got.damaged)
        status = ReadStatus.FOUND if got.count else ReadStatus.NO_MATCH
        return ReadResult(status, got.data, got.count, offset + got.scanned, first, end, sorted(damaged))

    def left_out(
        self, topic: str, queue_id: int, start: int, end: int, tag_filter: frozenset[int]
    ) -> Iterator[list[int]]:
        """The offsets in a range that a read with this filter leaves out: ascending, some in each step.

        Raises `StillRebuilding` if an entry is lost and not rebuilt yet.
        """
        queue = self._queues.find(topic, queue_id)
        first, last = self.bounds(topic, queue_id)
        for offset in range(max(start, first), min(end, last) if queue else 0, _FILTER_SCAN):
            assert queue is not None
            entries = self._entries(queue, offset, min(_FILTER_SCAN, min(end, last) - offset))
            yield [offset + i for i, entry in enumerate(entries) if entry[2] not in tag_filter and entry[1]]

    def _enough_entries(
        self, queue: QueueIndex, offset: int, count: int, max_bytes: int
    ) -> tuple[bytes, list[tuple[int, int, int]] | None]:
        """Packed entries for about `max_bytes`, and their places in the log (`adjacent_runs`).

        Of large messages, far fewer fit into an answer than were asked for.
        """
        raw = self._packed(queue, offset, min(count, _FIRST_LOOK))
        runs = adjacent_runs(raw, max_bytes)
        if count > _FIRST_LOOK and (runs is None or sum([run[2] for run in runs]) == _FIRST_LOOK):
            raw += self._packed(queue, offset + _FIRST_LOOK, count - _FIRST_LOOK)
            runs = adjacent_runs(raw, max_bytes)
        return raw, runs

    def _packed(self, queue: QueueIndex, offset: int, count: int) -> bytes:
        """Packed entries of which the first is intact: how much is read first depends on it, before verifying a record
        also verifies its entry."""
        raw = self._queues.raw_entries(queue, offset, count)
        self._refuse_broken(queue, list(broken_entries(raw[:ENTRY_BYTES], offset)))
        return raw

    def _entries(self, queue: QueueIndex, offset: int, count: int) -> list[Entry]:
        """Entries that are all intact: which records a pull skips because of their tag depends on them."""
        raw = self._queues.raw_entries(queue, offset, count)
        self._refuse_broken(queue, list(broken_entries(raw, offset)))
        return unpack_entries(raw)

    def _note_damaged(self, queue: QueueIndex, offsets: Sequence[int]) -> None:
        """Note damaged records, or raise `IndexLost` if it is their index entry that is damaged."""
        for offset in offsets:
            raw = self._queues.raw_entries(queue, offset, 1)
            self._refuse_broken(queue, list(broken_entries(raw, offset)))
            position, size, _tag, _check = unpack_entries(raw)[0]
            self.checkpoints.note_damage([DamageRow(position, size, "failed its checksum when read")])

    def _refuse_broken(self, queue: QueueIndex, offsets: Sequence[int]) -> None:
        if offsets:
            self.state.request_rebuild()
            raise IndexLost(queue, f"is damaged at offset {offsets[0]}")

    def read_at(self, position: int) -> bytes:
        """One visible record by its log position; raises `CorruptRecord` if there is none.

        Clients choose the position. So the index of the record's queue must have it: bytes inside a body may look like
        a record too.
        """
        head = self._log.read(position, HEAD_BYTES) if position < self.appender.published else b""
        size = -size_at(head + b"\0" * (HEAD_BYTES - len(head)), 0, position)
        record = self._log.read(position, size) if size > 0 else b""
        if size <= 0 or size_at(record, 0, position) != size:
            raise CorruptRecord(position, "no intact record begins there; check the message id")
        facts = facts_of(record, 0)
        if position < self._dropped.get(facts.topic, 0):
            raise CorruptRecord(position, f"its topic {facts.topic!r} was deleted")
        queue = self._queues.find(facts.topic, facts.queue_id)
        known = queue is not None and self._queues.first(queue) <= facts.queue_offset < queue.end
        if queue is None or not known or self._queues.entry(queue, facts.queue_offset)[0] != position:
            raise CorruptRecord(position, "no queue has a record there; check the message id")
        return record

    def query(self, topic: str, key: str, limit: int, begin: int, end: int) -> list[bytes]:
        """On the search thread: the newest records with this key, stored between two times."""
        return self._keys.query(topic, key, limit, begin, end, oldest=self._dropped.get(topic, 0))

    def index_keys(self, max_bytes: int) -> bool:
        """On the search thread: index the keys of some more of the log; False at its end."""
        return self._keys.advance(max_bytes)

    @property
    def keys_indexed(self) -> bool:
        """Whether `index_keys` has nothing left to do."""
        return self._keys.complete

    def checkpoint(self, producers: Iterable[ProducerRow] = ()) -> None:
        """Write a checkpoint on one thread, with nothing staged."""
        work = self.checkpoints.take(self.appender.staged)
        if work is None:
            raise StorageError("records are staged and not published: flush and publish them first")
        if not self.options.durable:
            self.appender.sync()
        self.checkpoints.write(work, producers)
        self.checkpoints.finish(work)

    def expired(self, now: int) -> Generator[None, None, int]:
        """Count the oldest segments that are too old, too many or unused, in steps: there may be many queues."""
        unused = yield from self._unused_segments()
        return max(self.retention.expired(now), unused)

    def retire(self, now: int, count: int | None = None) -> list[Segment]:
        """Remove the oldest segments from view; their queues begin later from now on. `count`: as many as `expired`
        has counted, or fewer; None: count now. Not while `indexes_complete` is false.
        """
        assert self.indexes_complete, "a rebuild of indexes reads these segments"
        count = in_one_piece(self.expired(now)) if count is None else count
        if count:
            self._may_be_unused = True  # those behind them may be
        return self._log.retire(count) if count else []

    def _unused_segments(self) -> Generator[None, None, int]:
        """Count the oldest finished segments that hold messages of deleted topics only.

        Those after the last checkpoint stay: a crash may bring back a topic whose deletion is not on disk yet, and its
        queues must not begin again at offsets that they had already. Looks at the queues only after a topic was
        deleted, and stops at the first one that needs the oldest segment. What is published between two steps lies
        behind the last checkpoint before the first step.
        """
        segments = self._log.segments
        if not self._may_be_unused or len(segments) < 2:
            return 0
        saved, dropped, needed = self.checkpoints.saved, self._dropped, segments[-1].start
        for queue in self._queues:
            if not queue.dropped and (first := self._queues.first(queue)) < queue.end:
                needed = min(needed, self._queues.entry(queue, first)[0])
                if needed < segments[1].start:
                    break
            yield
        unused = [segment.end for segment in segments[:-1] if segment.end <= needed]
        count = sum(end <= saved for end in unused)
        self._may_be_unused = count < len(unused) or self._dropped is not dropped  # a topic was deleted in between
        return count

    def start_after(self, segments: int) -> int:
        """Where the log would start without this number of its oldest segments."""
        return self._log.segments[segments].start if segments else self._log.start

    def position_of(self, topic: str, queue_id: int, offset: int) -> int:
        """The log position of a message that is in the log."""
        queue = self._queues.find(topic, queue_id)
        assert queue is not None
        return self._queues.entry(queue, offset)[0]

    def first_from(self, topic: str, queue_id: int, position: int) -> int:
        """A queue's smallest offset whose record is not below a log position."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self._queues.first_from(queue, position)

    def unread_below(self, topic: str, queue_id: int, offset: int, position: int) -> range:
        """The offsets of a queue, from an offset on, whose records are stored below a log position."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or offset >= queue.end:
            return range(0)
        offset = max(offset, self._queues.first(queue))
        if offset >= queue.end or self._queues.entry(queue, offset)[0] >= position:
            return range(0)
        return range(offset, self._queues.first_from(queue, position))

    def forget_keys(self, retired: Sequence[Segment]) -> None:
        """On the search thread: forget retired segments. Afterwards no search reads them, and they may be deleted."""
        self._keys.forget(retired)

    def delete_retired(self, retired: Sequence[Segment]) -> None:
        """On the log thread, after `forget_keys`: delete the files of retired segments."""
        if retired:
            self._log.close_retired(retired)

    def drop_topic(self, topic: str) -> int:
        """Make everything stored or staged so far for a topic unreachable; a new topic of that name starts at 0.

        This lasts until the next restart only. To make it permanent, the caller passes the returned position to
        `state.drop_topic` on the row thread, before anything about a new topic of that name is written there.
        """
        position = self.appender.staged
        self._queues.drop(topic)
        self._dropped = {**self._dropped, topic: position}
        self._may_be_unused = True
        return position

    def close(self, producers: Iterable[ProducerRow] = (), *, clean: bool = True) -> None:
        """Stop cleanly, so that the next start needs no scan. Repeating it does nothing.

        Pass `clean=False` if something that belongs to a clean stop could not be saved.
        """
        if self._lock.closed:
            return
        try:
            if clean and self._ready and self.appender.failed is None:
                self._stop_cleanly(producers)
            if self._ready:
                with contextlib.suppress(OSError):  # the next search reads the log instead
                    self._keys.save()
        finally:
            self._files.close()
            self._log.close()
            with contextlib.suppress(WriteFailed):  # the next start is refused and says what to do
                self._copy.set_running(False)  # closing the database removes its write-ahead log
            self.state.close()
            self._lock.close()

    def _stop_cleanly(self, producers: Iterable[ProducerRow]) -> None:
        pending = self.appender.take_pending()
        self.appender.flush(pending)
        self.appender.sync()
        self.appender.publish(pending)
        work = self.checkpoints.take(self.appender.published)
        assert work is not None
        self.checkpoints.write(work._replace(mark=work.mark._replace(clean=True)), producers)
        with contextlib.suppress(WriteFailed):  # the database has it, and may be ahead
            self.state.new_generation()
