"""Keeps the leases of the queues this member holds: asks for them, renews them, gives them back.

A shell. When a lease may be used is `core/consuming/queue_lease`'s rule, who gets one is the broker's; here is only the
asking, and what follows from the answers:

- granted: the gate in front of the handlers opens until the lease's new end;
- left out of the answer: another member owns the queue, so it is dropped at once, uncommitted;
- no answer: nothing. The lease ends by itself at the time it always would have.

Between renewals, small keep-alive requests move the deadline before which turns start, where the broker waits for it.
Without an answer turns pause and nothing is lost or logged. Each broker has its own loop, so a slow one does not make
turns on other brokers pause (A28). A broker that is slow for more than a moment is
told of a longer keep-alive timeout, or turns would pause between its answers for as long as it is slow.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lanemq.client.consumer.assigned_queue import Holding, Holdings
from lanemq.client.consumer.calls import ConsumerCalls, Granted
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.core.consuming.queue_lease import Grant, LeaseTimes, QueueLease
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

FIRST_RENEWAL_MS = Millis(1_000)
"""RocketMQ's ConsumeMessageOrderlyService."""

ANSWERS_IN_A_TIMEOUT = 3
"""One is on its way, one is missing its moment, and one is to spare."""

Gate = Callable[[Holding, Millis], None]
Lose = Callable[[Holding, str], None]


class _Pace:
    """What the loop of one broker goes by."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.urgent = False
        """The connection was lost: renew at once."""
        self.keep_alive_every: Millis | None = None
        """None: no lease there needs keep-alives."""
        self._timeout = self._before = Millis(0)

    def answered(self, after: Millis) -> bool:
        """Records how long an answer took; true if two slow ones in a row call for a longer keep-alive timeout.

        It only grows: the broker goes by what it was told last, and cannot know until when less counts here.
        """
        slow, self._before = min(after, self._before), after
        grown = Millis(ANSWERS_IN_A_TIMEOUT * slow)
        more, self._timeout = grown > self._timeout, max(grown, self._timeout)
        return more

    def keep_alive_timeout(self, times: LeaseTimes) -> Millis:
        """For how long turns start after a request to this broker."""
        return min(times.client_lease_ms, max(times.keep_alive_timeout_ms, self._timeout))


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
        self._paces: dict[str, _Pace] = {}
        self._new_broker = asyncio.Event()
        self._rate_limited = RateLimitedLog(log, options.clock)
        self.parked: Callable[[Holding, int], None] = lambda holding, serial: None
        """Told with every renewal how the broker's parked lanes stand."""

    async def run(self) -> None:
        """Never ends, whatever a renewal meets: leases that are not renewed are lost (A23)."""
        kept: set[str] = set()
        async with asyncio.TaskGroup() as loops:
            while True:
                self._new_broker.clear()
                for broker in self._paces.keys() - kept:
                    kept.add(broker)
                    loops.create_task(self._keep(broker, self._paces[broker]))
                await self._new_broker.wait()

    async def renew(self) -> None:
        """One request per broker, all at once: a slow broker delays nobody else's leases (A26, A28)."""
        brokers = self._holdings.by_broker()
        await asyncio.gather(*(self._renew(broker, held) for broker, held in brokers.items()))

    async def acquire(
        self, broker: str, queues: Sequence[MessageQueue], times: LeaseTimes, *, lane: bool, finished: bool = False
    ) -> dict[MessageQueue, tuple[QueueLease, Granted]]:
        """Leases of those queues that the broker gave us; the others are for a later round (A48).

        `finished`: whether we leave out what former owners finished above the offset; else the broker forgets it.
        """
        asked_at, timeout = self._clock.now(), self._pace(broker).keep_alive_timeout(times)
        granted = await self._lock(broker, queues, times, timeout, lane=lane, finished=True if finished else None)
        leases = {}
        for queue in queues:
            answer = granted.get(queue)
            if answer is not None:
                lease = QueueLease(times.client_lease_ms)
                lease.granted(answer.epoch, asked_at=asked_at, keep_alive_timeout=timeout, serial=answer.serial)
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
        pace = self._pace(broker)
        pace.urgent = True
        pace.called.set()

    async def _keep(self, broker: str, pace: _Pace) -> None:
        renew_at = Millis(self._clock.now() + FIRST_RENEWAL_MS)
        asked_at = self._clock.now()
        while True:
            due = renew_at if pace.keep_alive_every is None else min(renew_at, Millis(asked_at + pace.keep_alive_every))
            if await self._called(pace, Millis(due - self._clock.now())) and not pace.urgent:
                continue  # there are leases that need keep-alives, or none any more
            asked_at = self._clock.now()
            try:
                if pace.urgent or asked_at >= renew_at or not await self._keep_alive(broker):
                    pace.urgent = False
                    asked_at = self._clock.now()
                    renew_at = Millis(asked_at + self._renew_every())
                    await self._renew(broker, self._holdings.at_broker(broker))
            except Exception:
                log.exception("renewing leases failed; the next renewal follows as planned")

    async def _keep_alive(self, broker: str) -> bool:
        """A keep-alive to a broker; false if leases there must be renewed first."""
        held = self._holdings.at_broker(broker)
        serials = {holding.lease.serial for holding in held if holding.lease is not None}
        if len(serials) != 1 or 0 in serials:
            return not serials
        asked_at, serial = self._clock.now(), serials.pop()
        try:
            if not await self._calls.keep_alive(held[0].queue.topic, broker, serial):
                return False
        except LaneError as error:
            log.debug("no answer to a keep-alive at %s, the renewal follows as planned: %s", broker, error)
            return True
        self._answered(broker, asked_at, held[0].times)
        for holding in held:
            if not holding.released and holding.lease is not None:
                holding.lease.kept_alive(serial, asked_at=asked_at)
                self._gate(holding, holding.usable_until)
        return True

    def _answered(self, broker: str, asked_at: Millis, times: LeaseTimes) -> None:
        pace, after = self._pace(broker), Millis(self._clock.now() - asked_at)
        before = pace.keep_alive_timeout(times)
        if pace.answered(after) and pace.keep_alive_timeout(times) > before:
            log.warning(
                "%s takes %d ms to answer: from the next renewal on turns start within %d ms of a request instead of "
                "%d, and if this member is killed, its queues wait as long",
                broker, after, pace.keep_alive_timeout(times), before,
            )  # fmt: skip

    async def _lock(
        self,
        broker: str,
        queues: Sequence[MessageQueue],
        times: LeaseTimes,
        timeout: Millis,
        *,
        lane: bool,
        finished: bool | None,
    ) -> dict[MessageQueue, Granted]:
        asked_at, lease, told = self._clock.now(), times.broker_lease_ms if lane else None, timeout if lane else None
        granted = await self._calls.lock(broker, queues, lease=lease, keep_alive_timeout=told, finished=finished)
        if granted:
            self._answered(broker, asked_at, times)
            keep_alive_every = times.keep_alive_every_ms if any(each.serial for each in granted.values()) else None
            pace = self._pace(broker)
            if pace.keep_alive_every != keep_alive_every:
                pace.keep_alive_every = keep_alive_every
                pace.called.set()
        return granted

    def _pace(self, broker: str) -> _Pace:
        if broker not in self._paces:
            self._paces[broker] = _Pace()
            self._new_broker.set()
        return self._paces[broker]

    async def _renew(self, broker: str, held: list[Holding]) -> None:
        if not held:
            return
        queues, first = [each.queue for each in held], held[0]
        asked_at, timeout = self._clock.now(), self._pace(broker).keep_alive_timeout(first.times)
        try:
            # The finished ranges are known here already; asking for none at all would make the broker forget them.
            granted = await self._lock(broker, queues, first.times, timeout, lane=first.lane, finished=False)
        except LaneError as error:
            self._rate_limited.warn(broker, f"leases at {broker} could not be renewed, they end as planned: {error}")
            return
        for holding in held:
            if not holding.released:
                self._settle(holding, granted.get(holding.queue), asked_at, timeout)

    def _settle(self, holding: Holding, answer: Granted | None, asked_at: Millis, timeout: Millis) -> None:
        lease = holding.lease
        assert lease is not None
        if answer is None:
            lease.refused()
            self._lose(holding, "the broker gave it to another member")
            return
        match lease.granted(answer.epoch, asked_at=asked_at, keep_alive_timeout=timeout, serial=answer.serial):
            case Grant.RENEWED if lease.usable_until is not None:
                self._gate(holding, lease.usable_until)
                self.parked(holding, answer.parked)
            case Grant.NEW:
                self._lose(holding, "another member may have owned it meanwhile")

    def _renew_every(self) -> Millis:
        return min((each.times.renew_every_ms for each in self._holdings if each.lease), default=FIRST_RENEWAL_MS)

    async def _called(self, pace: _Pace, most: Millis) -> bool:
        """Waits at most so long; whether somebody called."""
        try:
            async with asyncio.timeout(max(0, most) / 1000):
                await pace.called.wait()
        except TimeoutError:
            return False
        pace.called.clear()
        return True
