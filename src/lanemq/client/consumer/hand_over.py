"""How a queue leaves this member, in an order that nobody may change:

1. stop pulling;
2. drain: running handlers end, no new turn starts;
3. commit, and wait until the broker has it;
4. unlock, naming the lease;
5. forget.

The next owner then starts exactly where this one stopped. A handler that does not end keeps the queue here (A87):
the lease is renewed on, and the hand-over is tried again in the next round. Nothing ever unlocks under a running
handler (A89), and other queues do not notice (A53).
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

from lanemq.client.consumer.assigned_queue import Holding, Holdings
from lanemq.client.consumer.leases import LockKeeper
from lanemq.client.consumer.offsets import OffsetKeeper
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.rebalance import Event, Stage, Step
from lanemq.history import Lease
from lanemq.model.errors import LaneError, LeaseLost
from lanemq.model.units import to_millis

log = logging.getLogger(__name__)

LAST_COMMIT_BACKOFF = Backoff(0.1, 2.0, 1)
"""Between attempts to report a last offset; a broker that restarts is back within a few seconds."""

_UNFINISHED = {Stage.DRAINING: Step.DRAIN, Stage.COMMITTING: Step.COMMIT}


class HandOver:
    """Gives queues up, and loses them."""

    def __init__(
        self,
        options: ConsumerOptions,
        client_id: str,
        holdings: Holdings,
        keeper: Callable[[], LockKeeper],
        offsets: Callable[[], OffsetKeeper],
        lost: Callable[[], None],
    ) -> None:
        self._options = options
        self._client_id = client_id
        self._holdings = holdings
        self._keeper = keeper
        self._offsets = offsets
        self._lost = lost
        self._clock = options.clock
        self.flush: Callable[[Holding], Awaitable[None]] = _nothing_to_flush
        """Tells the broker what it does not know yet of parked lanes, before the last commit."""

    async def give_up(self, holding: Holding, most_ms: int) -> bool:
        """Walks the queue out, as `core/consuming/rebalance` says; false if it had to stay, to be tried again later."""
        step = holding.life.happened(Event.UNWANTED, now=self._clock.now())
        # An earlier round may have begun it; go on where that one had to leave it.
        step = _UNFINISHED.get(holding.life.stage, step)
        while True:
            match step:
                case Step.DRAIN:
                    event = await self._drain(holding, most_ms)
                case Step.COMMIT:
                    event = await self._commit(holding)
                case Step.UNLOCK:
                    event = await self._unlock(holding)
                case Step.FORGET:
                    self._forget(holding)
                    return True
                case _:
                    return holding.released
            if event is None or (holding.released and event is not Event.UNLOCKED):
                return holding.released
            step = holding.life.happened(event, now=self._clock.now())

    async def give_up_at_last(self, holding: Holding) -> bool:
        """As `give_up`, when everything ends: no later round will report the offset, so it is tried again here."""
        deadline = self._clock.now() + to_millis(self._options.stop_timeout)
        for failures in itertools.count(1):
            if await self.give_up(holding, max(0, deadline - self._clock.now())):
                break
            pause = LAST_COMMIT_BACKOFF.delay(failures)
            if holding.life.stage is not Stage.COMMITTING:
                log.warning("%s is left behind with its handler running; its lease ends by itself", holding)
                return False
            if self._clock.now() + pause >= deadline:
                log.error("%s is left behind: its last offset could not be reported, the rest repeats", holding)
                return False
            await asyncio.sleep(pause / 1000)
        return True

    def call_off(self, holding: Holding) -> None:
        """The queue is wanted here again before it left."""
        if holding.life.happened(Event.WANTED, now=self._clock.now()) is Step.REOPEN:
            holding.station.scheduler.reopen(holding.queue)

    def lose(self, holding: Holding, why: str) -> None:
        """The queue is another member's: dropped at once, nothing committed."""
        if not self._holdings.forget(holding):
            return
        log.warning("%s is lost: %s", holding, why)
        holding.life.happened(Event.LEASE_LOST, now=self._clock.now())
        if holding.lease is not None:
            holding.lease.lost()
            if self._options.history.on:
                self._options.history.lease_expired(self._lease(holding))
        self._drop(holding)
        self._lost()

    async def _drain(self, holding: Holding, most_ms: int) -> Event | None:
        await _stop_pulling(holding)
        scheduler, queue = holding.station.scheduler, holding.queue
        if holding.lease is None:
            return Event.DRAINED  # nobody competes for it; what still runs is delivered again elsewhere (A88)
        if holding.released:
            return None
        scheduler.drain(queue)
        if await scheduler.drained(queue, most_ms):
            return Event.DRAINED
        holding.life.expire(now=self._clock.now())
        log.warning("%s stays here: its handler runs on, %d rounds late now", queue, holding.life.late)
        return None

    async def _commit(self, holding: Holding) -> Event | None:
        try:
            await self.flush(holding)
            await self._offsets().commit(holding)
        except LeaseLost:
            return None  # lost already; there is nothing left to give
        except LaneError as error:
            # Unlocked now, the next owner would repeat what is not reported; the lease ends by itself at worst.
            log.warning("%s stays here until its last offset is reported: %s", holding, error)
            return Event.NOT_COMMITTED
        return Event.COMMITTED

    async def _unlock(self, holding: Holding) -> Event:
        if self._options.history.on:
            self._options.history.lease_released(self._lease(holding))
        await self._keeper().release(holding)
        return Event.UNLOCKED

    def _forget(self, holding: Holding) -> None:
        self._holdings.forget(holding)
        self._drop(holding)
        log.info("%s is given up", holding)

    def _drop(self, holding: Holding) -> None:
        if holding.puller is not None and holding.puller is not asyncio.current_task():
            holding.puller.cancel()
        holding.station.scheduler.drop(holding.queue)
        self._offsets().forget(holding.queue)

    def _lease(self, holding: Holding) -> Lease:
        queue = holding.queue
        return Lease(self._options.group, queue.topic, queue.queue_id, self._client_id, holding.epoch)


async def _nothing_to_flush(_: Holding) -> None:
    """Where nobody keeps parked lanes."""


async def _stop_pulling(holding: Holding) -> None:
    puller = holding.puller
    if puller is not None:
        holding.puller = None
        puller.cancel()
        await asyncio.wait([puller])
