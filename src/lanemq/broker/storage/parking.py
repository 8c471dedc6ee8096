"""Parked lanes: connects the table that decides with the database that stores, and finds the records.

A change is decided on the loop immediately, so that every later request (above all of a new owner) sees it, and it is
answered only when it is on disk. After a failed write the next one repeats the failed changes first, so that the
database receives all changes in the order of the decisions.

A record is read from the log, or from its copy in the database if retention has deleted it from the log.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeAlias

from lanemq.broker.recording import Recording
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.core.brokering.lane_offsets import ChunkRow, LaneOffsets
from lanemq.core.brokering.parked_lane_table import LaneName, ParkedLane, ParkedLaneTable
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.log.reading import ReadStatus
from lanemq.log.state.parked_rows import ForgottenLanes, LaneId, LaneRow, ParkedChange, ParkedRows
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.java_hash import LONG_MAX
from lanemq.model.keys import shown_key
from lanemq.model.units import Millis
from lanemq.wire.record import RecordView

log = logging.getLogger(__name__)

MAX_GIVEN = 32
"""Messages of a lane that its owner gets at once. Many: more of them run again after a crash, and more that an operator
discards may already be on their way. Few: a redrive takes longer, because each answer waits for the disk."""

Saved: TypeAlias = Callable[[StorageError | None], None]
Stored: TypeAlias = Callable[[], None]
Records: TypeAlias = dict[int, bytes]
"""Offset → record, ascending."""
Found: TypeAlias = Callable[[Records, StorageError | None], None]


def _nothing() -> None:
    """Stands for `stored` if the caller of `save` does not need to know when the change is on disk."""


class Parking:
    """The parked lanes of one broker: `lanes` decides; after each change of a lane, `save` must follow."""

    def __init__(self, store: Store, thread: DiskThread, recording: Recording, wall: int) -> None:
        self.lanes = ParkedLaneTable(serial=wall)
        self.rows = ParkedRows(store.state)
        self._store = store
        self._thread = thread
        self._recording = recording
        # Decided and not on disk, in that order; the first ones may be being written.
        self._unsaved: list[tuple[ParkedChange | ForgottenLanes, Stored]] = []
        self._waiting: list[Saved] = []
        self._writing = False

    def recover(self, end_of: Callable[[str, int], int]) -> None:
        """Restore the lanes. Their history lines are written again, because a crash may have lost some."""
        self.lanes.restore(map(self._restored, self.rows.lanes()))
        lost = self.lanes.cut(end_of)
        for name, offsets in lost.items():
            log.error(
                "group %s: %d parked messages of key %s of %s/%s were lost with the end of the log, from offset %d on",
                name.group, len(offsets), shown_key(name.key), name.topic, name.queue_id, offsets[0],
            )  # fmt: skip
            lane = self.lanes.get(name)
            change = self._change(name, () if lane is None else lane.offsets.rows())
            self.rows.apply([change._replace(first_chunk=LONG_MAX)])  # all chunks are replaced
        if self._recording.on:
            for lane in self.lanes:
                self._recording.parked(lane.name, lane.offsets)
                if lane.status.runs:
                    given = lane.offsets.from_offset(lane.first, MAX_GIVEN)
                    self._recording.redriven(lane.name, lane.first, given[-1])

    def save(
        self,
        name: LaneName,
        then: Saved,
        *,
        stored: Stored = _nothing,
        chunks: Sequence[ChunkRow] = (),
        copies: Records | None = None,
    ) -> None:
        """Save the current state of a lane.

        `then` is called on the loop when it and everything before it are on disk, or with the error. `stored` is called
        when it is on disk, also if that is a repetition after an error.
        """
        self._unsaved.append((self._change(name, chunks, copies or {}), stored))
        self.settled(then)

    def settled(self, then: Saved) -> None:
        """Call `then` when everything decided so far is on disk, immediately if it already is."""
        if not self._unsaved:
            then(None)
            return
        self._waiting.append(then)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        """Write all unsaved changes. One write at a time: changes decided during it share the next one."""
        changes, waiting = tuple(change for change, _ in self._unsaved), self._waiting
        self._waiting, self._writing = [], True

        def written(_: object, error: StorageError | None) -> None:
            self._writing = False
            if error is None:
                on_disk, self._unsaved = self._unsaved[: len(changes)], self._unsaved[len(changes) :]
                for _, stored in on_disk:
                    stored()
            else:
                log.error("parked lanes could not be saved, trying again with the next change: %s", error)
            for then in waiting:
                then(error)
            if self._waiting and not self._writing:
                self._write()

        self._thread.submit(lambda: self.rows.apply(changes), written)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> Iterator[None]:
        """Remove the lanes of a deleted topic or group, in memory now and on disk soon.

        Returns steps that free the memory.
        """
        forgotten = self.lanes.forget(group=group, topic=topic)
        if forgotten:
            self._unsaved.append((ForgottenLanes(group, topic), _nothing))
            self.settled(_ignored)
        return _freed(forgotten)

    # records

    def find(self, name: LaneName, offsets: Sequence[int], max_bytes: int, found: Found) -> None:
        """Calls `found` with the records at these offsets of a lane, up to a size; the first one always fits.

        Stops before the first offset in the log if some are only in the database. An offset without an intact record
        is left out, with an error in the log.
        """
        below, _ = self._store.bounds(name.topic, name.queue_id)
        copied = [offset for offset in offsets if offset < below]
        if not copied:
            found(self.in_log(name, offsets, max_bytes), None)
            return

        def read(rows: list[tuple[int, bytes]] | None, error: StorageError | None) -> None:
            records = dict(rows or ())
            if error is None:
                _log_missing(name, [offset for offset in copied if offset not in records])
            found(_fitting({offset: records[offset] for offset in copied if offset in records}, max_bytes), error)

        self._thread.submit(lambda: self.rows.records(lane_id(name), copied[0], len(copied)), read)

    def in_log(self, name: LaneName, offsets: Sequence[int], max_bytes: int) -> Records:
        """The records at these offsets of the log, up to a size; damaged ones are left out."""
        steps = self.log_steps(name, offsets, max_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Records = end.value
                return found

    def log_steps(self, name: LaneName, offsets: Sequence[int], max_bytes: int) -> Generator[None, None, Records]:
        """As `in_log`; yields after each record."""
        records: Records = {}
        for offset in offsets:
            result = self._store.read(name.topic, name.queue_id, offset, 1, 1, None)
            if result.status is not ReadStatus.FOUND or RecordView(result.data).queue_offset != offset:
                _log_missing(name, [offset])
                continue
            max_bytes -= len(result.data)
            if max_bytes < 0 and records:
                break
            records[offset] = result.data
            yield
        return records

    def _change(self, name: LaneName, chunks: Sequence[ChunkRow] = (), copies: Records | None = None) -> ParkedChange:
        lane = self.lanes.get(name)
        if lane is None:
            return ParkedChange(lane_id(name), None)
        return ParkedChange(
            lane_id(name), _row(lane), lane.offsets.first_row, tuple(chunks), tuple((copies or {}).items())
        )

    def _restored(self, row: LaneRow) -> ParkedLane:
        name = LaneName(row.group, row.topic, row.queue_id, row.key[1:] if row.key else None)
        lane = ParkedLane(name, Failure(row.reason, row.attempts), Millis(row.since), LaneStatus(row.status))
        lane.through = row.through
        lane.offsets = LaneOffsets.of_rows(self.rows.chunks(row.id), row.first)
        return lane


def lane_id(name: LaneName) -> LaneId:
    return (*name.place, "" if name.key is None else f"={name.key}")


def _row(lane: ParkedLane) -> LaneRow:
    failure, status = lane.failure, lane.status.value
    return LaneRow(*lane_id(lane.name), failure.reason, failure.attempts, lane.since, status, lane.through, lane.first)


def _fitting(records: Records, max_bytes: int) -> Records:
    fitting: Records = {}
    for offset, record in records.items():
        max_bytes -= len(record)
        if max_bytes < 0 and fitting:
            break
        fitting[offset] = record
    return fitting


def _log_missing(name: LaneName, offsets: Sequence[int]) -> None:
    for offset in offsets:
        log.error("group %s: parked offset %d of %s/%s cannot be read", name.group, offset, *name[1:3])


def _freed(forgotten: Iterable[dict[str | None, ParkedLane]]) -> Iterator[None]:
    for lanes in forgotten:
        while lanes:
            lanes.popitem()
            yield


def _ignored(_: StorageError | None) -> None:
    """`_write` has logged the error."""
