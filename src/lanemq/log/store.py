"""The face of the log: append, read, find, checkpoint, recover.

    stage (loop) ─▶ flush (log thread) ─▶ publish (loop)                           appending, see `appender`
    take_index_work (loop) ─▶ write_index (log thread) ─▶ finish_index (loop)      checkpoints, see `checkpoint`
    retire (loop) ─▶ delete_retired (log thread)                                   retention

Everything else belongs to the loop, except `index_keys` and `query`, which belong to the log thread. There is
one loop and one log thread; nothing here reads a clock, so times come in as arguments.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from lanemq.log.appender import Appender
from lanemq.log.checkpoint import Checkpointer, IndexWork
from lanemq.log.commit_log import CommitLog
from lanemq.log.data_lock import DataLock
from lanemq.log.filesystem import Disk, RealDisk
from lanemq.log.index_files import IndexFiles, IndexLost
from lanemq.log.key_index import KeyIndex
from lanemq.log.options import StoreOptions
from lanemq.log.queue_index import ENTRY_BYTES, Entry, QueueIndex, broken_entries, unpack_entries
from lanemq.log.queue_table import QueueTable
from lanemq.log.reading import ReadResult, ReadStatus, gather, nothing_to_read
from lanemq.log.rebuild import OnRecord
from lanemq.log.record_bytes import facts_of, size_at, store_time_at
from lanemq.log.retention import SegmentFacts, expired_segments
from lanemq.log.segment import Segment
from lanemq.log.staging import Arrival, NewRecords, Pending, Staged
from lanemq.log.startup import RecoveryReport, Startup
from lanemq.log.state import ProducerRow, State
from lanemq.log.time_search import Boundary, TimeSearch
from lanemq.model.errors import CorruptRecord, StorageError
from lanemq.model.units import Millis
from lanemq.wire.hosts import NO_HOST
from lanemq.wire.record import HEAD_BYTES

_FILTER_SCAN = 8192
"""Entries a filtered pull looks at before it answers, so that a rare tag does not cost a round trip per screen."""

_FIRST_LOOK = 1024
"""Entries a pull reads before it looks whether it needs more of them."""


class Store:
    """The messages of one data folder. Open it, `recover()` once, use it, `close()` it.

    `state` holds the broker's small tables. Between opening and `recover`, only `state` may be used: the broker
    restores its producer table from it and then gets every later record through `on_record`.
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
        disk.make_dir(folder)
        self._lock = DataLock(folder)
        try:
            self._log = CommitLog(folder / "log", disk)
            self.state = _open_state(folder / "state.db", self._log, open_state)
        except (OSError, StorageError):
            self._lock.close()
            raise
        self._files = IndexFiles(
            folder / "index", disk, self.options.most_open_indexes, on_lost=lambda: self._startup.ask_rebuild()
        )
        self._queues = QueueTable(self._log, self._files)
        self._appender = Appender(self._log, self._queues, self.options)
        self._checkpointer = Checkpointer(self._log, self._queues, self._files, self.state)
        self._keys = KeyIndex(folder / "keys", disk, self._log)
        self._times = TimeSearch(self._log, self._queues)
        self._startup = Startup(folder, disk, self._log, self._queues, self._files, self.state)
        self._dropped = self.state.dropped_topics()
        self._ready = False

    def recover(
        self, on_record: OnRecord | None = None, producers: Callable[[], Iterable[ProducerRow]] = tuple
    ) -> RecoveryReport:
        """Makes the store usable: at once after a clean stop, else by reading the log from the last checkpoint.

        `producers` is asked once everything was handed to `on_record`: the new checkpoint lies behind records whose
        stamps would otherwise be known to nobody after a second crash.
        """
        report = self._startup.run(on_record)
        if any(position > self._log.end for position in self._dropped.values()):
            self.state.cut_dropped(self._log.end)
            self._dropped = self.state.dropped_topics()
        self._appender.last_store_time = report.last_store_time
        self._appender.reset()
        self._checkpointer.note_damage(report.damage)
        if not report.clean:
            self.checkpoint(producers())
        self.state.mark_running()
        self._ready = True
        return report

    @property
    def failed(self) -> StorageError | None:
        """Why nothing can be written any more; reads go on."""
        return self._appender.failed

    @property
    def log_start(self) -> int:
        return self._log.start

    @property
    def log_end(self) -> int:
        """The position after the last visible record."""
        return self._appender.published

    @property
    def log_bytes(self) -> int:
        return self._log.total_bytes()

    def stage(
        self,
        topic: str,
        queue_id: int,
        items: NewRecords,
        *,
        store_time: int,
        born_host: bytes = NO_HOST,
        store_host: bytes = NO_HOST,
    ) -> Staged:
        """See `Appender.stage`."""
        return self._appender.stage(
            topic, queue_id, items, store_time=store_time, born_host=born_host, store_host=store_host
        )

    def take_pending(self) -> Pending:
        """See `Appender.take_pending`."""
        return self._appender.take_pending()

    def flush(self, pending: Pending, now: Millis | None = None) -> None:
        """See `Appender.flush`; `now` (monotonic) is needed in relaxed mode only, to sync from time to time."""
        self._appender.flush(pending, now)

    def publish(self, pending: Pending) -> list[Arrival]:
        """See `Appender.publish`."""
        return self._appender.publish(pending)

    def sync(self) -> None:
        """See `Appender.sync`."""
        self._appender.sync()

    def append(self, topic: str, queue_id: int, items: NewRecords, *, store_time: int) -> Staged:
        """All three steps on one thread, for tools and tests."""
        staged = self.stage(topic, queue_id, items, store_time=store_time)
        pending = self.take_pending()
        self.flush(pending)
        self.publish(pending)
        return staged

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The smallest offset kept and the next one to be written; (0, 0) for a queue nobody wrote to."""
        queue = self._queues.find(topic, queue_id)
        return (self._queues.first(queue), queue.end) if queue else (0, 0)

    def queues(self) -> list[tuple[str, int]]:
        """Every queue that has ever held a message and was not dropped."""
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
        """Records from an offset on, each verified. At least one message is given, however large, if there is one."""
        queue = self._queues.find(topic, queue_id)
        first, end = self.bounds(topic, queue_id)
        answer = nothing_to_read(offset, first, end)
        if answer is not None or queue is None:
            return answer or ReadResult(ReadStatus.EMPTY, b"", 0, 0, 0, 0, [])
        if tag_filter is None:
            entries = self._enough_entries(queue, offset, min(max_count, end - offset), max_bytes)
        else:
            entries = self._entries(queue, offset, min(max(max_count, _FILTER_SCAN), end - offset), tag_filter)
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
            self._blame(queue, got.damaged)
        status = ReadStatus.FOUND if got.count else ReadStatus.NO_MATCH
        return ReadResult(status, got.data, got.count, offset + got.scanned, first, end, sorted(damaged))

    def read_at(self, position: int) -> bytes:
        """One visible record by its log position; raises `CorruptRecord` if there is none."""
        head = self._log.read(position, HEAD_BYTES) if position < self._appender.published else b""
        size = -size_at(head + b"\0" * (HEAD_BYTES - len(head)), 0, position)
        record = self._log.read(position, size) if size > 0 else b""
        if size <= 0 or size_at(record, 0, position) != size:
            raise CorruptRecord(position, "no intact record begins there; check the message id")
        facts = facts_of(record, 0)
        if position < self._dropped.get(facts.topic, 0):
            raise CorruptRecord(position, f"its topic {facts.topic!r} was deleted")
        return record

    def find_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary) -> int:
        """See `TimeSearch.find`."""
        queue = self._queues.find(topic, queue_id)
        return self._times.find(queue, timestamp, boundary) if queue else 0

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """When the oldest message kept was stored; None if there is none."""
        queue = self._queues.find(topic, queue_id)
        return self._times.earliest(queue) if queue else None

    def latest_time(self, topic: str, queue_id: int) -> int | None:
        """When the newest message was stored; None if there is none."""
        queue = self._queues.find(topic, queue_id)
        return self._times.latest(queue) if queue else None

    def query(self, topic: str, key: str, limit: int, begin: int, end: int) -> list[bytes]:
        """On the log thread: the newest records with this key, stored between two times."""
        return self._keys.query(topic, key, limit, begin, end, oldest=self._dropped.get(topic, 0))

    def index_keys(self, most_bytes: int) -> bool:
        """On the log thread, when idle: indexes keys of some more of the log; False when nothing is left."""
        return self._keys.advance(most_bytes)

    @property
    def keys_indexed(self) -> bool:
        """Whether `index_keys` has nothing left to do."""
        return self._keys.complete

    def checkpoint_mark(self) -> int:
        """See `Checkpointer.take`: what the broker's own rows must reflect is everything staged up to here."""
        return self._appender.staged

    def take_index_work(self, mark: int) -> IndexWork | None:
        """See `Checkpointer.take`; None while records below the mark are not published."""
        if self._appender.published < mark:
            return None
        return self._checkpointer.take(mark, self._appender.last_store_time)

    def write_index(
        self,
        work: IndexWork,
        producers: Iterable[ProducerRow] = (),
        gone_producers: Iterable[tuple[str, int, str]] = (),
    ) -> None:
        """See `Checkpointer.write`."""
        if not self.options.durable:
            self._appender.sync()
        self._checkpointer.write(work, producers, gone_producers)

    def finish_index(self, work: IndexWork) -> None:
        """See `Checkpointer.finish`."""
        self._checkpointer.finish(work)

    def give_back_index(self, work: IndexWork) -> None:
        """See `Checkpointer.give_back`."""
        self._checkpointer.give_back(work)

    def checkpoint(self, producers: Iterable[ProducerRow] = ()) -> None:
        """All steps of a checkpoint on one thread, with nothing staged."""
        work = self.take_index_work(self.checkpoint_mark())
        if work is None:
            raise StorageError("records are staged and not published: flush and publish them first")
        self.write_index(work, producers)
        self.finish_index(work)

    def retire(self, now_wall: int) -> list[Segment]:
        """Takes segments that are too old or too many out of sight; queues begin later from now on."""
        count = expired_segments(self._segment_facts(), self.options, now_wall)
        return self._log.retire(count) if count else []

    def delete_retired(self, retired: Sequence[Segment]) -> None:
        """On the log thread: deletes their files."""
        if retired:
            self._keys.forget(retired)
            self._log.close_retired(retired)

    def drop_topic(self, topic: str) -> int:
        """Makes everything stored or staged so far for a topic unreachable; a new topic of that name starts at 0.

        Until the next restart: for longer, `state.drop_topic` must follow on the log thread with the position
        returned, before anything about a new topic of that name is written there.
        """
        position = self._appender.staged
        self._queues.drop(topic)
        self._dropped = {**self._dropped, topic: position}
        return position

    def close(self, producers: Iterable[ProducerRow] = ()) -> None:
        """Stops cleanly, so that the next start needs no scan. Repeating it does nothing."""
        if self._lock.closed:
            return
        try:
            if self._ready and self.failed is None:
                self._stop_cleanly(producers)
        finally:
            self._files.close()
            self._log.close()
            self.state.close()
            self._lock.close()

    def _stop_cleanly(self, producers: Iterable[ProducerRow]) -> None:
        pending = self.take_pending()
        self.flush(pending)
        self.sync()
        self.publish(pending)
        work = self._checkpointer.take(self._appender.published, self._appender.last_store_time)
        clean = work._replace(mark=work.mark._replace(clean=True))
        self._checkpointer.write(clean, producers, ())

    def _enough_entries(self, queue: QueueIndex, offset: int, count: int, max_bytes: int) -> list[Entry]:
        """Not many more than fit: of large messages an answer holds fewer than were asked for."""
        entries = self._entries(queue, offset, min(count, _FIRST_LOOK), None)
        if count > _FIRST_LOOK and sum([entry[1] for entry in entries]) < max_bytes:
            entries += self._entries(queue, offset + _FIRST_LOOK, count - _FIRST_LOOK, None)
        return entries

    def _entries(self, queue: QueueIndex, offset: int, count: int, tag_filter: frozenset[int] | None) -> list[Entry]:
        raw = self._queues.raw_entries(queue, offset, count)
        # A record confirms its entry, except for two things the entry is believed about: how much to read first,
        # and which records to pass over because of their tag.
        believed = raw[:ENTRY_BYTES] if tag_filter is None else raw
        self._refuse_broken(queue, list(broken_entries(believed, offset)))
        return unpack_entries(raw)

    def _blame(self, queue: QueueIndex, offsets: Sequence[int]) -> None:
        """Tells a damaged record from an index that points at the wrong place; only the latter can be rebuilt."""
        for offset in offsets:
            raw = self._queues.raw_entries(queue, offset, 1)
            self._refuse_broken(queue, list(broken_entries(raw, offset)))
            position, size, _tag, _check = unpack_entries(raw)[0]
            self._checkpointer.note_bad_record(position, size)

    def _refuse_broken(self, queue: QueueIndex, offsets: Sequence[int]) -> None:
        if offsets:
            self._startup.ask_rebuild()
            raise IndexLost(queue, f"is damaged at offset {offsets[0]}")

    def _segment_facts(self) -> list[SegmentFacts]:
        segments = self._log.segments
        facts = []
        for segment, following in pairwise(segments):
            head = self._log.read(following.start, HEAD_BYTES)
            newest = store_time_at(head) if len(head) == HEAD_BYTES else None
            facts.append(SegmentFacts(segment.size, newest))
        return facts


def _open_state(path: Path, log: CommitLog, open_state: Callable[[Path], State]) -> State:
    if log.segments and not path.exists():
        log.close()
        raise StorageError(
            f"{path} is missing, but the log beside it holds messages: restore the file from a backup, or move "
            f"the whole data folder away to start empty; without it every group would lose its position"
        )
    return open_state(path)
