"""Retention and parked messages: log files that hold parked messages are kept, up to a limit.

Beyond the limit the oldest of these files are deleted, after the parked records in them have been copied into the state
database.

There may be many thousand lanes, so a look at them is taken in slices on the event loop. Lanes change in between: what
leaves a lane only keeps a file for longer than needed, and what is parked since the look began is noted by the table.

Invariant: a log file is deleted only when every parked message in it has been copied, and the copies are on disk.
"""

import logging
from collections.abc import Generator, Iterable, Iterator
from itertools import chain

from lanemq.broker.storage.progress_keeper import ProgressKeeper
from lanemq.clock import Clock
from lanemq.core.brokering.progress_table import ProgressChanges
from lanemq.core.brokering.queue_progress import ParkedLane
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.keys import shown_key
from lanemq.model.queue import MessageQueue
from lanemq.net.rate_limited_log import FewLines
from lanemq.net.serving.loop_slices import LoopSlices

log = logging.getLogger(__name__)

MAX_COPIED = 100
MAX_COPIED_BYTES = 1024 * 1024
"""Messages and bytes copied in one step, during which the event loop reads them."""


class Pinning:
    """Decides how many of the oldest log files may be deleted. One look at a time."""

    def __init__(self, store: Store, keeper: ProgressKeeper, max_bytes: int, slices: LoopSlices, clock: Clock) -> None:
        self._store = store
        self._keeper = keeper
        self._progress = keeper.table
        self._max_bytes = max_bytes
        self._slices = slices
        self._lines = FewLines(log, clock)
        self._copying = False

    def deletable(self, expired: int, changes: ProgressChanges) -> Generator[None, None, int]:
        """How many of the `expired` oldest files hold no parked message that is only there. Yields between two steps;
        the answer holds until something else happens on the loop (`still_deletable`).

        `changes` are those of the progress of groups in between. If the other files are too large together, starts to
        copy; they can be deleted at a later call.
        """
        if not expired or not self._progress.parked():
            return self.still_deletable(expired, changes)
        needed_from = yield from self._first_position()
        start_after = self._store.start_after
        free = self.still_deletable(self._free(expired, needed_from), changes)
        release = free
        while release < expired and start_after(expired) - start_after(release) > self._max_bytes:
            release += 1
        if release > free and not self._copying:
            self._copying = True
            self._copy_below(start_after(release), self._all_lanes())
        return free

    def still_deletable(self, count: int, changes: ProgressChanges) -> int:
        """How many of the files that were `deletable` hold no message that was parked since."""
        for (_, queue), first in changes.parked_from.items():
            count = self._free(count, self._position(queue, first))
        return count

    def _free(self, count: int, needed_from: int) -> int:
        """How many of the oldest files end at or before a position."""
        while count and self._store.start_after(count) > needed_from:
            count -= 1
        return count

    def _first_position(self) -> Generator[None, None, int]:
        """The position of the first record that a lane needs from the log."""
        needed = self._store.log_end
        for progress in self._progress.parked():
            below, first = self._keeper.queue_log.bounds(progress.queue)
            for lane in tuple(progress.lanes.values()):
                first = min(first, self._first_uncopied(lane, below, first))
                yield
            needed = min(needed, self._position(progress.queue, first))
        return needed

    def _position(self, queue: MessageQueue, offset: int) -> int:
        """The position of a record; the end of the log if the queue has none of this offset, or none any more."""
        low, end = self._keeper.queue_log.bounds(queue)
        inside = low <= offset < end
        return self._store.position_of(queue.topic, queue.queue_id, offset) if inside else self._store.log_end

    def _first_uncopied(self, lane: ParkedLane, below: int, end: int) -> int:
        """The first offset of a lane whose record is in the log and was not copied; `end` if there is none."""
        if not lane.offsets:
            return end  # it has ended since
        if lane.first >= below and lane.first > lane.copied:
            return lane.first
        return next(iter(self._uncopied(lane, 1)), end)

    def _uncopied(self, lane: ParkedLane, limit: int) -> list[int]:
        """The first offsets of a lane whose records are in the log and were not copied since the start."""
        below, _ = self._keeper.queue_log.bounds(lane.name.queue)
        return lane.offsets.from_offset(max(below, lane.copied + 1), limit)

    def _all_lanes(self) -> Iterator[ParkedLane]:
        return chain.from_iterable(tuple(progress.lanes.values()) for progress in self._progress.parked())

    def _copy_below(self, position: int, left: Iterable[ParkedLane]) -> None:
        """Copies the records of these lanes below a position, step by step."""
        self._slices.begin(self._next_to_copy(position, iter(left)))

    def _next_to_copy(self, position: int, left: Iterator[ParkedLane]) -> Iterator[None]:
        """Looks for the next lane with records to copy, in slices, and begins to copy them."""
        try:
            for lane in left:
                end = self._store.first_from(lane.name.queue.topic, lane.name.queue.queue_id, position)
                offsets = [offset for offset in self._uncopied(lane, MAX_COPIED) if offset < end]
                if offsets:
                    self._copy(lane, offsets, position, left)
                    return
                yield
        except StorageError as error:
            log.warning("parked messages cannot be copied now: %s; the next look of retention tries again", error)
        self._copying = False

    def _copy(self, lane: ParkedLane, offsets: list[int], position: int, left: Iterator[ParkedLane]) -> None:
        name = lane.name
        records = self._keeper.in_log(name, offsets, MAX_COPIED_BYTES)
        last = offsets[-1] if len(records) == len(offsets) else max(records, default=offsets[0])
        self._lines.write(
            logging.WARNING,
            f"group {name.group}",
            f"group {name.group}: {len(records)} parked messages of key {shown_key(name.key)} of "
            f"{name.queue.topic}/{name.queue.queue_id} are copied, because retention deletes their log file; "
            f"raise max_pinned_bytes, or redrive or discard the lane",
        )

        def saved(error: StorageError | None) -> None:
            if error is not None:
                self._copying = False  # the next look tries again
                return
            lane.copied = max(lane.copied, last)
            self._copy_below(position, chain((lane,), left))

        self._keeper.save_lane(name, saved, copies=records)
