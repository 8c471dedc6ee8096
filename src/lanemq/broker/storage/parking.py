"""Parked lanes: connects the table that decides with the database that stores.

A change is decided on the loop immediately, so that every later request (above all of a new owner) sees it, and it is
answered only when it is on disk. After a failed write the next one repeats the failed changes first, so that the
database receives all changes in the order of the decisions.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from lanemq.broker.config import BrokerOptions
from lanemq.broker.recording import Recording
from lanemq.broker.storage.group_commit import LogThread
from lanemq.core.brokering.parked_lanes import LaneName, Limits, ParkedLane, ParkedLaneTable
from lanemq.core.parked_lane import Failure, LaneStatus
from lanemq.log.parked_rows import LaneId, LaneRow, ParkedChange, ParkedRows
from lanemq.log.state import State
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis

log = logging.getLogger(__name__)

Saved: TypeAlias = Callable[[StorageError | None], None]
Added: TypeAlias = tuple[tuple[int, bytes], ...]


class Parking:
    """The parked lanes of one broker."""

    def __init__(
        self, options: BrokerOptions, state: State, thread: LogThread, recording: Recording, wall: int
    ) -> None:
        limits = Limits(options.max_parked_lane, options.max_parked_messages, options.max_parked_bytes)
        self.lanes = ParkedLaneTable(limits, serial=wall)
        self.rows = ParkedRows(state)
        self._thread = thread
        self._recording = recording
        # Decided and not on disk, in that order; the first ones may be being written.
        self._unsaved: list[ParkedChange] = []
        self._waiting: list[Saved] = []
        self._writing = False

    def recover(self, end_of: Callable[[str, int], int]) -> None:
        """Restore the lanes. Their history lines are written again, because a crash may have lost some."""
        sizes = self.rows.sizes()
        self.lanes.restore(_restored(row, sizes[row.id]) for row in self.rows.lanes() if row.id in sizes)
        lost = self.lanes.cut(end_of)
        for name, offsets in lost.items():
            log.error("%d parked messages of %s were lost with the end of the log: %s", len(offsets), name, offsets)
        self._unsaved = [self._change(name, removed=offsets) for name, offsets in lost.items()]
        self.rows.apply(self._unsaved)
        self._unsaved.clear()
        if self._recording.on:
            for lane in self.lanes:
                self._recording.parked(lane.name, lane.messages)
                if lane.status is LaneStatus.REDRIVING:
                    self._recording.redriven(lane.name, lane.first)

    def save(self, name: LaneName, then: Saved, *, added: Added = (), removed: Iterable[int] = ()) -> None:
        """Save the current state of a lane.

        `then` is called on the loop when it and everything before it are on disk.
        """
        self._unsaved.append(self._change(name, added, tuple(removed)))
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
        changes, waiting = tuple(self._unsaved), self._waiting
        self._waiting, self._writing = [], True

        def written(_: object, error: StorageError | None) -> None:
            self._writing = False
            if error is None:
                del self._unsaved[: len(changes)]
            else:
                log.error("parked lanes could not be saved, trying again with the next change: %s", error)
            for then in waiting:
                then(error)
            if self._waiting and not self._writing:
                self._write()

        self._thread.submit(lambda: self.rows.apply(changes), written)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Remove the lanes of a deleted topic or group, in memory now and on disk soon."""
        for name in self.lanes.forget(group=group, topic=topic):
            self.save(name, _ignored)

    def _change(self, name: LaneName, added: Added = (), removed: tuple[int, ...] = ()) -> ParkedChange:
        lane = self.lanes.get(name)
        return ParkedChange(lane_id(name), None if lane is None else _row(lane), added, removed)


def lane_id(name: LaneName) -> LaneId:
    return (*name.place, "" if name.key is None else f"={name.key}")


def _row(lane: ParkedLane) -> LaneRow:
    failure, status = lane.failure, lane.status.value
    return LaneRow(*lane_id(lane.name), failure.reason, failure.attempts, lane.since, status, lane.through)


def _restored(row: LaneRow, sizes: dict[int, int]) -> ParkedLane:
    name = LaneName(row.group, row.topic, row.queue_id, row.key[1:] if row.key else None)
    failure = Failure(row.reason, row.attempts)
    return ParkedLane(name, failure, Millis(row.since), LaneStatus(row.status), sizes, row.through)


def _ignored(_: StorageError | None) -> None:
    """`_write` has logged the error."""
