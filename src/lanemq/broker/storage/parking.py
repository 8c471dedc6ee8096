"""Parked lanes between the machine that decides and the disk that remembers.

A change is decided on the loop at once, so that whoever asks next (above all a new owner of the queue) sees it, and
nobody is answered before it is on disk. A write that failed is not forgotten: the next one repeats it first, so the
disk gets the changes in the order in which they were decided, and an answer never relies on one that is missing.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from lanemq.broker.config import BrokerOptions
from lanemq.broker.recording import Recording
from lanemq.broker.storage.log_thread import LogThread
from lanemq.core.brokering.parked_lanes import LaneName, Limits, ParkedLane, ParkedLanes
from lanemq.core.parked_lane import Failure, LaneStatus
from lanemq.log.parked_rows import LaneId, LaneRow, ParkedChange, ParkedRows
from lanemq.log.state import State
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis

log = logging.getLogger(__name__)

Told: TypeAlias = Callable[[StorageError | None], None]
Added: TypeAlias = tuple[tuple[int, bytes], ...]


class Parking:
    """The parked lanes of one broker."""

    def __init__(
        self, options: BrokerOptions, state: State, thread: LogThread, recording: Recording, wall: int
    ) -> None:
        limits = Limits(options.max_parked_lane, options.max_parked_messages, options.max_parked_bytes)
        self.lanes = ParkedLanes(limits, serial=wall)
        self.rows = ParkedRows(state)
        self._thread = thread
        self._recording = recording
        # Decided and not on disk, in that order; those at the front may be under way.
        self._unsaved: list[ParkedChange] = []
        self._waiting: list[Told] = []
        self._writing = False

    def recover(self, end_of: Callable[[str, int], int]) -> None:
        """What was parked before the start; lines for the checker are written again, a crash may have cost some."""
        sizes = self.rows.sizes()
        self.lanes.restore(_restored(row, sizes[row.id]) for row in self.rows.lanes() if row.id in sizes)
        lost = self.lanes.cut(end_of)
        for name, offsets in lost.items():
            log.error("%d parked messages of %s are gone with the end of the log: %s", len(offsets), name, offsets)
        self._unsaved = [self._change(name, removed=offsets) for name, offsets in lost.items()]
        self.rows.apply(self._unsaved)
        self._unsaved.clear()
        if self._recording.on:
            for lane in self.lanes:
                self._recording.parked(lane.name, lane.messages)
                if lane.status is LaneStatus.REDRIVING:
                    self._recording.redriven(lane.name, lane.first)

    def save(self, name: LaneName, then: Told, *, added: Added = (), removed: Iterable[int] = ()) -> None:
        """Writes down what became of a lane; `then` is called on the loop when that, and all before it, is on disk."""
        self._unsaved.append(self._change(name, added, tuple(removed)))
        self.settled(then)

    def settled(self, then: Told) -> None:
        """Calls back when everything decided so far is on disk; at once if it is."""
        if not self._unsaved:
            then(None)
            return
        self._waiting.append(then)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        """One write at a time: what is decided meanwhile shares the next one, and its one sync."""
        changes, told = tuple(self._unsaved), self._waiting
        self._waiting, self._writing = [], True

        def written(_: object, error: StorageError | None) -> None:
            self._writing = False
            if error is None:
                del self._unsaved[: len(changes)]
            else:
                log.error("parked lanes could not be saved, trying again with the next change: %s", error)
            for then in told:
                then(error)
            if self._waiting and not self._writing:
                self._write()

        self._thread.submit(lambda: self.rows.apply(changes), written)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """The lanes of a deleted topic or group, in memory and, in time, on disk."""
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
    """Said by `settled` already."""
