"""Reports how far the handlers have come.

Every second the committable offsets of all held queues go into `core/consuming/offset_table`, and
what the broker has not confirmed is sent and waited for. An offset that a broker did not confirm stays to be sent.
With it goes what is finished above it (`core/finished_ranges`), to a broker that can keep that: one that gave an epoch.
In broadcasting the member's own file takes the broker's place.
"""

import asyncio
import logging
from collections.abc import Iterable

from lanemq.client.consumer.assigned_queue import Holding, Holdings, Start
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.history import group_in_history
from lanemq.client.consumer.leases import Lose
from lanemq.client.consumer.offset_file import FileOffsets, LocalOffsets, MemoryOffsets
from lanemq.client.consumer.options import ConsumerOptions, StartFrom
from lanemq.core.consuming.offset_table import OffsetTable
from lanemq.core.finished_ranges import MAX_RANGES, NOTHING_FINISHED
from lanemq.history import Place
from lanemq.model.errors import LaneError, LeaseLost
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset

log = logging.getLogger(__name__)

TOLD_AGAIN_MS = 5_000
"""How often a queue without a lease is reported though nothing happened in it: a former owner's late commit may have
set it back, which no broker can refuse, and nobody says so. RocketMQ's clients do the same as often."""


class OffsetKeeper:
    """Where the group's offsets come from and go to."""

    def __init__(self, options: ConsumerOptions, calls: ConsumerCalls, holdings: Holdings, lose: Lose) -> None:
        self._options = options
        self._calls = calls
        self._holdings = holdings
        self._lose = lose
        self._table = OffsetTable()
        self._local = _local_offsets(options) if options.broadcasting else None

    async def run(self) -> None:
        """Never ends; what could not be reported is reported next time."""
        told = self._options.clock.now()
        while True:
            await asyncio.sleep(self._options.commit_every)
            if self._local is None and self._options.clock.now() - told >= TOLD_AGAIN_MS:
                told = self._options.clock.now()
                self._doubt(holding for holding in self._holdings if not holding.epoch)
            try:
                await self.commit_all()
            except LaneError as error:
                log.warning("offsets could not be saved, trying again: %s", error)

    async def start_of(self, queue: MessageQueue) -> QueueOffset:
        """Where to begin: where the group stands, else where the options say. Read under the lease (A57).

        A broker that cannot answer raises: a guess would skip messages or repeat all of them (A51).
        """
        if self._local is not None:
            known = self._local.load().get(queue)
        else:
            known = await self._calls.committed(queue)
        if known is not None and known >= 0:
            return known
        return await self._first_start(queue)

    async def _first_start(self, queue: MessageQueue) -> QueueOffset:
        start = self._options.start
        if queue.topic.startswith(RETRY_PREFIX) or start is StartFrom.FIRST:
            # A retry topic is never skipped: its messages were handed over once already.
            return await self._calls.first_offset(queue)
        if start is StartFrom.LAST:
            return await self._calls.last_offset(queue)
        return await self._calls.offset_at(queue, self._options.start_timestamp_ms)

    def begin(self, holding: Holding, start: Start) -> None:
        """A queue was taken over here; whatever was known of it before is forgotten (A49)."""
        self._table.start(holding.queue, start.offset)
        holding.finished = holding.finished_reported = start.finished

    def forget(self, queue: MessageQueue) -> None:
        """A queue was given up or lost."""
        self._table.remove(queue)

    def tell_again(self, broker: str) -> None:
        """The connection was lost, perhaps because the broker crashed: the last commits it confirmed may be gone.

        Without this a queue in which nothing more happens would stay behind for good.
        """
        self._doubt(holding for holding in self._holdings if holding.queue.broker == broker)

    def _doubt(self, holdings: Iterable[Holding]) -> None:
        for holding in holdings:
            self._table.doubt(holding.queue)

    def get(self, queue: MessageQueue) -> QueueOffset | None:
        return self._table.get(queue)

    async def commit_all(self) -> None:
        """Reports everything that moved; one queue's trouble does not stop the others'."""
        for holding in self._holdings:
            self._look(holding)
        if self._local is not None:
            self._save()
            return
        dirty = self._table.dirty()
        changed = (each for each in self._holdings if each.queue in dirty or each.finished != each.finished_reported)
        await asyncio.gather(*map(self._try_commit, changed))

    async def commit(self, holding: Holding) -> None:
        """Reports one queue and waits until the broker has it, or raises."""
        if holding.moving is not None:
            self._record_move(holding, holding.moving)
            await self.move_to(holding, holding.moving)
            return
        self._look(holding)
        if self._local is not None:
            self._save()
        elif holding.queue in self._table.dirty() or holding.finished != holding.finished_reported:
            await self._commit(holding)

    async def move_to(self, holding: Holding, offset: QueueOffset) -> None:
        """Sets the group's offset by name: the broker said that the old one does not exist, or a person did."""
        if self._local is not None:
            self._local.save({holding.queue: offset})
        else:
            await self._calls.commit(holding.queue, offset, holding.epoch)
        self.begin(holding, Start(offset))

    def _record_move(self, holding: Holding, offset: QueueOffset) -> None:
        """A queue that leaves in the middle of a move leaves from its new place; its handlers have ended."""
        queue, history = holding.queue, self._options.history
        if history.on:
            place = Place(group_in_history(self._options, self._calls.client_id), queue.topic, queue.queue_id, offset)
            history.reset(place, "it is given up on the way to another offset", epoch=holding.epoch)

    def _look(self, holding: Holding) -> None:
        """The newest progress; nothing of a queue that is not ours any more (A99)."""
        if holding.released:
            return
        progress = holding.station.scheduler.progress(holding.queue)
        if progress is not None:
            offset, finished = progress
            self._table.advance(holding.queue, offset, increase_only=False)
            holding.finished = finished.lowest(MAX_RANGES) if holding.epoch else NOTHING_FINISHED

    def _save(self) -> None:
        assert self._local is not None
        dirty = self._table.dirty()
        if dirty:
            self._local.save(dirty)
            self._table.persisted(dirty)

    async def _try_commit(self, holding: Holding) -> None:
        if holding.released or holding.moving is not None:
            return
        try:
            await self._commit(holding)
        except LeaseLost:
            pass  # told to everybody by _commit
        except LaneError as error:
            log.warning("offset of %s could not be committed, trying again: %s", holding, error)

    async def _commit(self, holding: Holding) -> None:
        queue, offset, epoch = holding.queue, self._table.get(holding.queue), holding.epoch
        finished = holding.finished
        if offset is None:
            return
        history = self._options.history
        asked = history.now()
        place = Place(self._options.group, queue.topic, queue.queue_id, offset)
        try:
            taken = await self._calls.commit(queue, offset, Epoch(epoch), finished)
        except LeaseLost as error:
            if history.on:
                history.commit_refused(place, str(error), epoch=epoch, asked=asked)
            self._lose(holding, f"the broker refused its offset: {error}")
            raise
        if history.on and taken:
            history.committed(place, epoch=epoch, asked=asked)
        self._table.persisted({queue: offset})
        holding.finished_reported = finished


def _local_offsets(options: ConsumerOptions) -> LocalOffsets:
    folder = options.offsets_folder
    return MemoryOffsets() if folder is None else FileOffsets(folder, options.group)
