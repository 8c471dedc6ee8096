"""Retention and parked messages: log files that hold parked messages are kept, up to a limit.

Beyond the limit the oldest of these files are deleted, after the parked records in them have been copied into the state
database.

Invariant: a log file is deleted only when every parked message in it has been copied, and the copies are on disk.
"""

import logging

from lanemq.broker.storage.parking import Parking
from lanemq.core.brokering.parked_lane_table import ParkedLane
from lanemq.log.store import Store
from lanemq.model.errors import StorageError

log = logging.getLogger(__name__)

MAX_COPIED = 1_000
MAX_COPIED_BYTES = 4 * 1024 * 1024
"""Messages and bytes copied in one step, during which the event loop reads them."""


class Pinning:
    """Decides how many of the oldest log files may be deleted."""

    def __init__(self, store: Store, parking: Parking, max_bytes: int) -> None:
        self._store = store
        self._parking = parking
        self._max_bytes = max_bytes
        self._copying = False

    def deletable(self, expired: int) -> int:
        """How many of the `expired` oldest files hold no parked message that is only there.

        If the others are too large together, starts to copy; they can be deleted at a later call.
        """
        if not expired or not self._parking.lanes:
            return expired
        start_after, needed_from = self._store.start_after, self._first_position()
        free = expired
        while free and start_after(free) > needed_from:
            free -= 1
        release = free
        while release < expired and start_after(expired) - start_after(release) > self._max_bytes:
            release += 1
        if release > free and not self._copying:
            self._copying = True
            self._copy_below(start_after(release))
        return free

    def _first_position(self) -> int:
        """The position of the first record that a lane needs from the log."""
        lanes, needed = self._parking.lanes, self._store.log_end
        for place in lanes.places():
            queue = place[1:]
            below, end = self._store.bounds(*queue)
            first = min((self._first_uncopied(lane, below, end) for lane in lanes.of_queue(place)), default=end)
            if first < end:
                needed = min(needed, self._store.position_of(*queue, first))
        return needed

    def _first_uncopied(self, lane: ParkedLane, below: int, end: int) -> int:
        """The first offset of a lane whose record is in the log and was not copied; `end` if there is none."""
        if lane.first >= below and lane.first > lane.copied:
            return lane.first
        return next(iter(self._uncopied(lane, 1)), end)

    def _uncopied(self, lane: ParkedLane, limit: int) -> list[int]:
        """The first offsets of a lane whose records are in the log and were not copied since the start."""
        below, _ = self._store.bounds(lane.name.topic, lane.name.queue_id)
        return lane.offsets.from_offset(max(below, lane.copied + 1), limit)

    def _copy_below(self, position: int) -> None:
        """Copies the records below a position, step by step."""
        for lane in self._parking.lanes:
            end = self._store.first_from(lane.name.topic, lane.name.queue_id, position)
            offsets = [offset for offset in self._uncopied(lane, MAX_COPIED) if offset < end]
            if offsets:
                self._copy(lane, offsets, position)
                return
        self._copying = False

    def _copy(self, lane: ParkedLane, offsets: list[int], position: int) -> None:
        name = lane.name
        records = self._parking.in_log(name, offsets, MAX_COPIED_BYTES)
        last = offsets[-1] if len(records) == len(offsets) else max(records, default=offsets[0])
        log.warning(
            "group %s: %d parked messages of key %r of %s/%s are copied, because retention deletes their log file; "
            "raise max_pinned_bytes, or redrive or discard the lane",
            name.group, len(records), name.key, name.topic, name.queue_id,
        )  # fmt: skip

        def saved(error: StorageError | None) -> None:
            if error is not None:
                self._copying = False  # the next look tries again
                return
            lane.copied = max(lane.copied, last)
            self._copy_below(position)

        self._parking.save(name, saved, copies=records)
