"""Keeps the leases of the queues this member holds: asks for them, renews them, gives them back.

A shell. When a lease may be used is `core/queue_lease`'s rule, who gets one is the broker's; here is only the
asking, and what follows from the answers:

- granted: the gate in front of the handlers opens until the lease's new end;
- left out of the answer: another member owns the queue, so it is dropped at once, uncommitted;
- no answer: nothing. The lease ends by itself at the time it always would have.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lanemq.client.consumer_calls import ConsumerCalls, Granted
from lanemq.client.consumer_options import ConsumerOptions
from lanemq.client.holding import Holding, Holdings
from lanemq.client.seldom import Seldom
from lanemq.core.queue_lease import Grant, LeaseTimes, QueueLease
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis

log = logging.getLogger(__name__)

FIRST_RENEWAL_MS = Millis(1_000)
"""RocketMQ's ConsumeMessageOrderlyService."""

Gate = Callable[[Holding, Millis], None]
Lose = Callable[[Holding, str], None]


class LockKeeper:
    """One per consumer. Broadcasting and concurrent queues have no lease and never appear here (A25)."""

    def __init__(
        self, options: ConsumerOptions, calls: ConsumerCalls, holdings: Holdings, gate: Gate, lose: Lose
    ) -> None:
        self._calls = calls
        self._clock = options.clock
        self._holdings = holdings
        self._gate = gate
        self._lose = lose
        self._urgent = asyncio.Event()
        self._seldom = Seldom(log, options.clock)
        self.parked: Callable[[Holding, int], None] = lambda holding, serial: None
        """Told with every renewal how the broker's parked lanes stand."""

    async def run(self) -> None:
        """Never ends, whatever a renewal meets: leases that are not renewed are lost (A23)."""
        pause = FIRST_RENEWAL_MS
        while True:
            await self._sleep(pause)
            asked_at = self._clock.now()
            try:
                await self.renew()
            except Exception:
                log.exception("renewing leases failed; the next renewal follows as planned")
            pause = Millis(max(0, asked_at + self._renew_every() - self._clock.now()))

    async def renew(self) -> None:
        """One request per broker, all at once: a slow broker delays nobody else's leases (A26, A28)."""
        brokers = self._holdings.by_broker()
        await asyncio.gather(*(self._renew(broker, held) for broker, held in brokers.items()))

    async def acquire(
        self, broker: str, queues: Sequence[MessageQueue], times: LeaseTimes, *, lane: bool, gaps: bool = False
    ) -> dict[MessageQueue, tuple[QueueLease, Granted]]:
        """Leases of those queues that the broker gave us; the others are for a later round (A48).

        `gaps`: whether we leave out what former owners finished above the offset; else the broker forgets it.
        """
        asked_at = self._clock.now()
        lease_ms = times.broker_lease if lane else None
        granted = await self._calls.lock(broker, queues, lease=lease_ms, gaps=True if gaps else None)
        leases = {}
        for queue in queues:
            answer = granted.get(queue)
            if answer is not None:
                lease = QueueLease(times.client_lease)
                lease.granted(answer.epoch, asked_at=asked_at)
                leases[queue] = (lease, answer)
        return leases

    async def release(self, holding: Holding) -> None:
        """Gives a lease back so that others need not wait for its end (A55)."""
        if holding.lease is None:
            return
        holding.released = True  # before asking: a renewal sent behind the unlock would take it again
        await self.give_back(holding.queue, holding.epoch)

    async def give_back(self, queue: MessageQueue, epoch: Epoch) -> None:
        """The same for a lease that was never used. A failure is only logged: the lease then ends by itself."""
        try:
            await self._calls.unlock(queue, epoch)
        except LaneError as error:
            log.warning("%s could not be unlocked; others wait for the lease's end: %s", queue, error)

    def suspend(self, broker: str) -> None:
        """The connection is gone, and a LaneMQ broker frees leases soon after: nothing starts until renewed."""
        for holding in self._holdings.by_broker().get(broker, ()):
            if holding.lane:
                self._gate(holding, self._clock.now())
        self._urgent.set()

    async def _renew(self, broker: str, held: list[Holding]) -> None:
        asked_at = self._clock.now()
        lease = held[0].times.broker_lease if held[0].lane else None
        try:
            # The gaps are known here already; asking for none at all would make the broker forget them.
            granted = await self._calls.lock(broker, [each.queue for each in held], lease=lease, gaps=False)
        except LaneError as error:
            self._seldom.warn(broker, f"leases at {broker} could not be renewed, they end as planned: {error}")
            return
        for holding in held:
            if not holding.released:
                self._settle(holding, granted.get(holding.queue), asked_at)

    def _settle(self, holding: Holding, answer: Granted | None, asked_at: Millis) -> None:
        lease = holding.lease
        assert lease is not None
        if answer is None:
            lease.refused()
            self._lose(holding, "the broker gave it to another member")
            return
        match lease.granted(answer.epoch, asked_at=asked_at):
            case Grant.RENEWED if lease.usable_until is not None:
                self._gate(holding, lease.usable_until)
                self.parked(holding, answer.parked)
            case Grant.NEW:
                self._lose(holding, "another member may have owned it meanwhile")

    def _renew_every(self) -> Millis:
        return min((each.times.renew_every for each in self._holdings if each.lease), default=FIRST_RENEWAL_MS)

    async def _sleep(self, pause: Millis) -> None:
        try:
            async with asyncio.timeout(pause / 1000):
                await self._urgent.wait()
        except TimeoutError:
            pass
        self._urgent.clear()
