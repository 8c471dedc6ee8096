"""How a queue leaves this member, in a fixed order:

1. stop pulling;
2. drain: running handlers end, no new turn starts;
3. commit, and wait until the broker has it;
4. unlock, naming the lease;
5. forget.

So the next owner starts exactly where this one stopped. A handler that does not end keeps the queue here: the
lease is renewed and the next round tries the hand-over again. Invariant: a queue is never unlocked while a handler
runs. Other queues are not affected.
"""

import asyncio
import itertools

from lanemq.background_log import ClientLog
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.rebalance import QueueEvent, QueueStage, Step
from lanemq.model.errors import LaneError, LeaseLost
from lanemq.model.units import to_millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = ClientLog(__name__)

LAST_COMMIT_BACKOFF = Backoff(0.1, 2.0, 1)
"""Between attempts to report a last offset; a broker that restarts is back within a few seconds."""

_UNFINISHED = {QueueStage.DRAINING: Step.DRAIN, QueueStage.COMMITTING: Step.COMMIT}


class HandOver:
    """Gives queues up."""

    def __init__(
        self,
        options: ConsumerOptions,
        assignment: Assignment,
        leases: LeaseKeeper,
        progress: QueueReporter,
    ) -> None:
        self._options = options
        self._assignment = assignment
        self._leases = leases
        self._progress = progress
        self._clock = options.clock
        self._rate_limited = RateLimitedLog(log, options.clock)

    async def give_up(self, assigned: AssignedQueue, timeout_ms: int) -> bool:
        """Takes the queue through the steps of `core/consuming/rebalance`; false if it must stay for now."""
        step = assigned.lifecycle.happened(QueueEvent.UNWANTED, now=self._clock.now())
        # Continue where an earlier round stopped.
        step = _UNFINISHED.get(assigned.lifecycle.stage, step)
        while True:
            match step:
                case Step.DRAIN:
                    event = await self._drain(assigned, timeout_ms)
                case Step.COMMIT:
                    event = await self._commit(assigned)
                case Step.UNLOCK:
                    event = await self._unlock(assigned)
                case Step.FORGET:
                    self._assignment.remove(assigned)
                    log.info("%s is given up", assigned)
                    return True
                case _:
                    return assigned.released
            if event is None or (assigned.released and event is not QueueEvent.UNLOCKED):
                return assigned.released
            step = assigned.lifecycle.happened(event, now=self._clock.now())

    async def give_up_finally(self, assigned: AssignedQueue) -> bool:
        """Gives a queue up when the consumer stops. No later round will report the offset, so this one retries."""
        deadline = self._clock.now() + to_millis(self._options.stop_timeout)
        for failures in itertools.count(1):
            if await self.give_up(assigned, max(0, deadline - self._clock.now())):
                break
            pause = LAST_COMMIT_BACKOFF.delay(failures)
            if assigned.lifecycle.stage is not QueueStage.COMMITTING:
                log.warning("%s is left behind with its handler running; its lease ends by itself", assigned)
                return False
            if self._clock.now() + pause >= deadline:
                log.error("%s is left behind: its last offset could not be reported, the rest repeats", assigned)
                return False
            await asyncio.sleep(pause / 1000)
        return True

    def call_off(self, assigned: AssignedQueue) -> None:
        """Keeps a queue that is wanted again before it left."""
        if assigned.lifecycle.happened(QueueEvent.WANTED, now=self._clock.now()) is Step.REOPEN:
            with assigned.scheduler as lanes:
                lanes.reopen(assigned.queue)

    async def _drain(self, assigned: AssignedQueue, timeout_ms: int) -> QueueEvent | None:
        await _stop_pulling(assigned)
        scheduler, queue = assigned.scheduler, assigned.queue
        if assigned.lease is None:
            # No lease to protect: messages that still run are delivered again elsewhere.
            return QueueEvent.DRAINED
        if assigned.released:
            return None
        with scheduler as lanes:
            lanes.drain(queue, now=self._clock.now())
        if await scheduler.drained(queue, timeout_ms):
            return QueueEvent.DRAINED
        assigned.lifecycle.expire(now=self._clock.now())
        log.warning("%s stays here: its handler is still running, %d rounds late now", queue, assigned.lifecycle.late)
        return None

    async def _commit(self, assigned: AssignedQueue) -> QueueEvent | None:
        try:
            await self._progress.hand_over(assigned)
        except LeaseLost:
            return None  # the queue is already lost
        except LaneError as error:
            # If the queue were unlocked now, the next owner would repeat what is not reported.
            text = f"{assigned} stays here until its last offset is reported"
            self._rate_limited.failed(str(assigned), text, error)
            return QueueEvent.NOT_COMMITTED
        return QueueEvent.COMMITTED

    async def _unlock(self, assigned: AssignedQueue) -> QueueEvent:
        if self._options.history.on:
            self._options.history.lease_released(self._assignment.lease_in_history(assigned))
        await self._leases.release(assigned)
        return QueueEvent.UNLOCKED


async def _stop_pulling(assigned: AssignedQueue) -> None:
    puller = assigned.puller
    if puller is not None:
        assigned.puller = None
        puller.cancel()
        await asyncio.wait([puller])
