"""Copies parked messages before their brokers delete them, within a bound, and says which were deleted too early."""

import asyncio
import logging
from dataclasses import replace

from lanemq.broker.context import GroupContext
from lanemq.coordinator.cluster import ClusterLink
from lanemq.core.brokering.cluster.retention import ToCopy, deleted, to_copy
from lanemq.core.brokering.progress_store import SavedLane
from lanemq.core.brokering.queue_progress import ParkedLane, QueueProgress
from lanemq.core.offset_windows import windows
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.keys import shown_key
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.properties import PropertyName, find_property
from lanemq.wire.record import RecordView

log = logging.getLogger(__name__)

MAX_COPIED_BYTES = 1024 * 1024 * 1024
"""Size of all copies. Beyond it, parked messages are lost when their broker deletes them."""
MAX_AT_ONCE = 2_000
"""Messages that are copied from a broker in one round."""
PULLS_AT_ONCE = 4
"""Reads of up to 32 messages. By so much the copies may be larger than their bound."""
MAX_NAMED = 1_000
MAX_DIFFERENCE_MS = 60_000
"""How far a broker's clock may be ahead without a warning."""


class ParkedCopies:
    """The copies of all groups' parked messages."""

    def __init__(self, context: GroupContext, link: ClusterLink) -> None:
        self._context = context
        self._link = link
        self._rows = ProgressRows(context.state)
        self._warnings = RateLimitedLog(log, context.clock)
        self.bytes = 0
        """Size of all copies, as of the last round."""
        self.is_full = False

    async def restore(self) -> None:
        """After a start: what was copied before."""
        for name, last in await self._context.row_thread.call(self._rows.last_copies):
            lane = self._context.progress_keeper.lane(name)
            if lane is not None:
                lane.copied = last

    async def round(self, broker: str, master: Address) -> None:
        """One look at the queues of a broker that have parked lanes."""
        places = [each for each in self._context.progress.parked() if each.queue.broker == broker]
        if not places:
            return
        retention = await self._link.retention(master)
        time = retention.copied_before(self._now_at(broker, places))
        self.bytes, left = await self._context.row_thread.call(self._rows.copied_bytes), MAX_AT_ONCE
        for progress in places:
            first = await self._link.first_offset(master, progress.queue)
            below = await self._link.offset_at(master, progress.queue, time)
            await self._name_deleted(progress, first)
            for wanted in to_copy(tuple(progress.lanes.values()), below, first, left):
                left -= len(wanted.offsets)
                await self._copy(progress.queue, wanted, master)
        self.is_full = self.bytes >= MAX_COPIED_BYTES
        if self.is_full:
            self._warnings.warn(
                "full",
                f"copies of parked messages take {self.bytes} bytes, and no more are made: redrive or discard "
                f"lanes (see lanemq parked list), or raise the retention of the brokers; messages of lanes may "
                f"be lost",
            )

    def _now_at(self, broker: str, places: list[QueueProgress]) -> int:
        """The time at a broker, which stamps its messages, if that is later than here: its retention goes by it."""
        now = self._context.clock.wall()
        stored = [mark.stored_ms for each in places if each.seen is not None for mark in each.seen.marks[-1:]]
        if (newest := max(stored, default=0)) > now + MAX_DIFFERENCE_MS:
            self._warnings.warn(
                f"clock {broker}",
                f"the clock here is {(newest - now) / 60_000:.0f} min behind that of broker {broker}: set both by NTP. "
                f"Until then, parked messages are copied by the time of the broker's newest message",
            )
        return max(now, newest)

    async def _copy(self, queue: MessageQueue, wanted: ToCopy, master: Address) -> None:
        """Copy a few windows at a time: messages may be large, and all that was read is in memory."""
        lane, reads = wanted.lane, windows(wanted.offsets)
        for start in range(0, len(reads), PULLS_AT_ONCE):
            if self.bytes >= MAX_COPIED_BYTES:
                return
            part = reads[start : start + PULLS_AT_ONCE]
            read = await asyncio.gather(*(self._link.messages(master, queue, each) for each in part))
            records = {offset: record for each in read for offset, record in each.items() if self._is_of(lane, record)}
            if self._context.progress_keeper.lane(lane.name) is not lane:
                return  # it has ended meanwhile
            if not records:
                continue
            log.info(
                "group %s: %d parked messages of key %s of %s are copied, because their broker may delete them",
                lane.name.group, len(records), shown_key(lane.name.key), queue,
            )  # fmt: skip
            await self._context.progress_keeper.saved([SavedLane.of(lane, copies=tuple(records.items()))])
            lane.copied = max(records)
            self.bytes += sum(map(len, records.values()))

    def _is_of(self, lane: ParkedLane, record: bytes) -> bool:
        """Whether a message has the lane's key; if not, the broker has another one at its offset."""
        view = RecordView(record)
        if find_property(view.properties_text, PropertyName.KEY) == lane.name.key:
            return True
        name = lane.name
        self._warnings.warn(
            str(name),
            f"group {name.group}: offset {view.queue_offset} of {name.queue} is parked for key {shown_key(name.key)}, "
            f"and the broker has a message of another key there: lanemq group compare {name.group}",
        )
        return False

    async def _name_deleted(self, progress: QueueProgress, first: int) -> None:
        """Say in a lane's reason which of its messages are gone."""
        for lane in tuple(progress.lanes.values()):
            gone = deleted(lane, first, MAX_NAMED)
            if not gone or (text := f"; deleted by the broker: offsets {gone[0]} to {gone[-1]}") in lane.failure.reason:
                continue
            name = lane.name
            log.error(
                "group %s: %d parked messages of key %s of %s were deleted by their broker, offsets %d to %d",
                name.group, len(gone), shown_key(name.key), name.queue, gone[0], gone[-1],
            )  # fmt: skip
            reason = lane.failure.reason.partition("; deleted by the broker:")[0]
            lane.failure = replace(lane.failure, reason=reason + text)
            if self._context.progress_keeper.lane(name) is not lane:
                continue  # it has ended meanwhile
            await self._context.progress_keeper.saved([SavedLane.of(lane)])
