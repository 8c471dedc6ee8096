"""Acquires, renews and releases the leases of the assigned queues.

`core/consuming/queue_lease` decides until when a lease may be used, and the broker decides who gets one. This module
sends the requests and acts on the answers:

- granted: turns may start until the lease's new end;
- left out of the answer: another member owns the queue, so it is dropped at once, without a commit;
- no answer: nothing. The lease ends at the time at which it would have ended anyway.

Between renewals, small keep-alive requests move the deadline before which turns start, where the broker waits for it.
Without an answer turns pause, and nothing is lost or logged. Each broker has its own loop, so a slow one does not make
turns on other brokers pause. A broker that is slow twice in a row is given a longer keep-alive timeout, or turns
would pause between its answers.

The broker removes a member whose keep-alives stay away for as long as its leases last, and gives its share to the
others. So a member that owns no queue sends keep-alives too. One that was removed, because it was frozen or cut off,
learns it from the next answer and joins again. If the broker answers nothing for as long as a lease lasts, the
connection is taken for dead and closed, and the next request dials again: TCP would notice much later.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls, Granted
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.assigned_queue import NANOS, AssignedQueue, Assignment
from lanemq.core.consuming.queue_lease import LANE_TIMES, Grant, LeaseTimes, QueueLease
from lanemq.model.errors import ConnectFailed, LaneError, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.address import Address
from lanemq.net.rate_limited_log import RateLimitedLog

log = ClientLog(__name__)

FIRST_RENEWAL_MS = Millis(1_000)
"""RocketMQ's ConsumeMessageOrderlyService."""

DEAD_MS = Millis(10_000)
"""How long a broker answers nothing before its connection is closed, if its leases last longer."""

MAX_SILENCE_MS = Millis(1_000)
KEEP_ALIVES_IN_A_LEASE = 5
"""A member without queues sends a keep-alive this often while a lease lasts, and at least once a second."""

MIN_UNANSWERED = 2
"""Requests without an answer, one after the other, before a connection may count as dead. One may have been sent just
before this process was frozen, and its answer may wait in the socket."""

ANSWERS_IN_A_TIMEOUT = 3
"""A keep-alive timeout has room for this many answers: one on its way, one late, and one to spare."""


AWAKE_EVERY_MS, AWAKE_MS = Millis(200), Millis(600)
"""Apache brokers get no keep-alives. Every 200 ms the event loop lets turns of their queues start for 600 ms more, so
that none starts in a process that was frozen, before it has read what happened to its connections."""


class _Pace:
    """When the loop of one broker sends requests, and how long the broker takes to answer them."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.urgent = False
        """The connection was lost: renew at once."""
        self.keep_alive_every: Millis | None = None
        """None: no lease of this broker needs keep-alives."""
        self.max_silence: Millis | None = None
        """Without leases; None: not a LaneMQ broker."""
        self.topic = ""
        """A topic of this broker."""
        self.master: Address | None = None
        """The master that granted leases last."""
        self.times = LANE_TIMES
        self._timeout = self._last_answer = Millis(0)
        self._unanswered = 0
        self._unanswered_since = Millis(0)

    def unanswered(self, asked_at: Millis, now: Millis) -> Millis:
        """Records that a request got no answer; how long the broker has answered nothing, 0 if that is not certain."""
        if not self._unanswered:
            self._unanswered_since = asked_at
        self._unanswered += 1
        return Millis(now - self._unanswered_since if self._unanswered >= MIN_UNANSWERED else 0)

    def reached(self) -> None:
        """Records that the broker was reached, or that a new connection is needed: the silence is over."""
        self._unanswered = 0

    def answered(self, after: Millis) -> bool:
        """Records how long an answer took; true if two slow ones in a row call for a longer keep-alive timeout.

        The timeout never shrinks: the broker goes by the last one it received, and cannot know when a shorter one
        takes effect here.
        """
        slow, self._last_answer = min(after, self._last_answer), after
        grown = Millis(ANSWERS_IN_A_TIMEOUT * slow)
        more, self._timeout = grown > self._timeout, max(grown, self._timeout)
        return more

    def every(self) -> Millis | None:
        """Interval of keep-alives."""
        return min((each for each in (self.keep_alive_every, self.max_silence) if each is not None), default=None)

    def keep_alive_timeout(self, times: LeaseTimes) -> Millis:
        """How long turns may start after a request to this broker."""
        return min(times.client_lease_ms, max(times.keep_alive_timeout_ms, self._timeout))


class LeaseKeeper:
    """The leases of one consumer. Broadcasting and concurrent queues have none: they need no single owner.

    `on_parked` is called after each renewal with the version of the broker's parked lanes, `on_removed` when a broker
    does not have this member in its list, `on_moved` with the offset of a reset.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        assignment: Assignment,
        on_parked: Callable[[AssignedQueue, int], None],
        on_removed: Callable[[Address], Awaitable[None]],
        on_moved: Callable[[AssignedQueue, QueueOffset], None],
    ) -> None:
        self._calls = calls
        self._clock = options.clock
        self._history = options.history
        self._assignment = assignment
        self._on_parked = on_parked
        self._on_removed = on_removed
        self._on_moved = on_moved
        self._paces: dict[str, _Pace] = {}
        self._suspended: set[str] = set()
        """Brokers whose connection was lost, until their leases are renewed."""
        self._new_broker = asyncio.Event()
        self._rate_limited = RateLimitedLog(log, options.clock)

    async def run(self) -> None:
        """Runs one loop per broker until cancelled. A failed renewal does not end them: leases would be lost."""
        started: set[str] = set()
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._stay_awake())
            while True:
                self._new_broker.clear()
                for broker in self._paces.keys() - started:
                    started.add(broker)
                    loops.create_task(self._keep(broker, self._paces[broker]))
                await self._new_broker.wait()

    def stay_member(self, topic: str, broker: str, times: LeaseTimes) -> None:
        """Sends keep-alives to a LaneMQ broker from now on, also while this member owns none of its queues."""
        pace = self._pace(broker)
        pace.topic, pace.times = topic, times
        if pace.max_silence is None:
            pace.max_silence = min(MAX_SILENCE_MS, Millis(times.broker_lease_ms // KEEP_ALIVES_IN_A_LEASE))
            pace.changed.set()

    async def acquire(
        self, broker: str, queues: Sequence[MessageQueue], times: LeaseTimes, *, lane: bool, finished: bool = False
    ) -> dict[MessageQueue, tuple[QueueLease, Granted]]:
        """Asks for leases and returns those that the broker granted; a later round asks for the others.

        `finished`: the member skips what former owners finished above the offset; otherwise the broker forgets it.
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

    async def renew(self) -> None:
        """Renews all leases now, one request per broker, all at once."""
        brokers = self._assignment.by_coordinator()
        await asyncio.gather(*(self._renew(broker, queues) for broker, queues in brokers.items()))

    def is_leased(self, assigned: AssignedQueue) -> bool:
        """Whether a queue that needs a lease is this member's at this moment; if not, renews the leases there soon.

        Not if the lease is over, as after this process was frozen, nor between a lost connection and the renewal.
        """
        broker, lease = assigned.coordinator, assigned.lease
        if lease is not None and lease.usable(now=self._clock.now()) and broker not in self._suspended:
            return True
        self.renew_soon(broker)
        return False

    def suspend(self, broker: str) -> None:
        """Pauses the queues of a broker until they are renewed: the connection is lost, and leases may be over.

        A LaneMQ broker ends them. An Apache broker that was killed has forgotten them, and so has the replica that
        becomes the master; another member may be first to ask it.
        """
        for assigned in self._assignment.leased_by(broker):
            self._set_usable_until(assigned, self._clock.now())
        self._suspended.add(broker)
        self.renew_soon(broker)

    def renew_soon(self, broker: str) -> None:
        """Renews the leases of a broker, or says that this member is alive, as soon as no request is under way."""
        pace = self._pace(broker)
        pace.urgent = True
        pace.changed.set()

    async def release(self, assigned: AssignedQueue) -> None:
        """Gives a lease back, so that others need not wait for its end."""
        if assigned.lease is None:
            return
        assigned.released = True  # before the request: a renewal sent after the unlock would lock the queue again
        await self.unlock(assigned.queue, assigned.epoch)

    async def unlock(self, queue: MessageQueue, epoch: Epoch) -> None:
        """Unlocks a queue. A failure is only logged: the lease then ends by itself."""
        try:
            await self._calls.unlock(queue, epoch)
        except LaneError as error:
            text = f"{queue} could not be unlocked; others wait for the lease's end"
            self._rate_limited.failed(str(queue), text, error)

    async def _stay_awake(self) -> None:
        """Limits for how long turns at Apache brokers may start while the event loop does not run.

        A new master has no locks and gives the queues of a frozen member to others. The frozen one learns of its lost
        connection when it wakes up; its workers may be faster than its event loop.
        """
        while True:
            await asyncio.sleep(AWAKE_EVERY_MS / 1000)
            for _ in range(3):  # let the loop handle lost connections first, which takes it more than one iteration
                await asyncio.sleep(0)
            until = Millis(self._clock.now() + AWAKE_MS)
            for assigned in self._assignment:
                if assigned.lease is not None and not assigned.epoch and assigned.coordinator not in self._suspended:
                    with assigned.scheduler as lanes:
                        lanes.set_usable_until(assigned.queue, min(until, assigned.usable_until))

    # the loop of one broker

    async def _keep(self, broker: str, pace: _Pace) -> None:
        renew_at = Millis(self._clock.now() + FIRST_RENEWAL_MS)
        asked_at = self._clock.now()
        while True:
            every = pace.every()
            due = renew_at if every is None else min(renew_at, Millis(asked_at + every))
            if await self._changed(pace, Millis(due - self._clock.now())) and not pace.urgent:
                continue  # keep-alives have become necessary or unnecessary
            asked_at = self._clock.now()
            try:
                if not self._assignment.leased_by(broker):
                    pace.urgent = False
                    renew_at = Millis(asked_at + FIRST_RENEWAL_MS)
                    await self._keep_alive_without_leases(broker, pace)
                elif pace.urgent or asked_at >= renew_at or not await self._keep_alive(broker):
                    pace.urgent = False
                    asked_at = self._clock.now()
                    renew_at = Millis(asked_at + self._renew_every())
                    await self._renew(broker, self._assignment.leased_by(broker))
            except Exception:
                log.exception("renewing leases failed; the next renewal follows as planned")

    async def _changed(self, pace: _Pace, timeout: Millis) -> bool:
        """Waits until the pace changes; false after `timeout`."""
        try:
            async with asyncio.timeout(max(0, timeout) / 1000):
                await pace.changed.wait()
        except TimeoutError:
            return False
        pace.changed.clear()
        return True

    async def _keep_alive(self, broker: str) -> bool:
        """Sends a keep-alive to a broker; false if its leases must be renewed first."""
        queues = self._assignment.leased_by(broker)
        serials = {assigned.lease.serial for assigned in queues if assigned.lease is not None}
        if len(serials) != 1 or 0 in serials:
            return not serials
        asked_at, serial = self._clock.now(), serials.pop()
        topic = queues[0].queue.topic
        try:
            kept = await self._calls.keep_alive(topic, broker, serial)
        except LaneError as error:
            log.debug("no answer to a keep-alive at %s, the renewal follows as planned: %s", broker, error)
            self._failed(error, topic, broker, asked_at, queues[0].times)
            return True
        self._pace(broker).reached()
        if kept.leases:
            self._answered(broker, asked_at, queues[0].times)
            for assigned in queues:
                if not assigned.released and assigned.lease is not None:
                    assigned.lease.kept_alive(serial, asked_at=asked_at)
                    self._set_usable_until(assigned, assigned.usable_until)
        if not kept.member:
            await self._removed(topic, broker)
        return kept.leases

    async def _keep_alive_without_leases(self, broker: str, pace: _Pace) -> None:
        if pace.max_silence is None:
            return
        asked_at = self._clock.now()
        try:
            kept = await self._calls.keep_alive(pace.topic, broker, 0)
        except LaneError as error:
            log.debug("no answer to a keep-alive at %s: %s", broker, error)
            self._failed(error, pace.topic, broker, asked_at, pace.times)
            return
        pace.reached()
        if not kept.member:
            await self._removed(pace.topic, broker)

    async def _removed(self, topic: str, broker: str) -> None:
        """The broker has removed this member from its list. Without a route, its next answer says so again."""
        try:
            address = self._calls.address(topic, broker)
        except ConnectFailed:
            return  # the topic was deleted while the answer was on its way
        await self._on_removed(address)

    async def _renew(self, broker: str, queues: list[AssignedQueue]) -> None:
        if not queues:
            return
        names, first = [each.queue for each in queues], queues[0]
        asked_at, timeout = self._clock.now(), self._pace(broker).keep_alive_timeout(first.times)
        try:
            # False, not None: the finished ranges are known here, and the broker must not forget them.
            granted = await self._lock(broker, names, first.times, timeout, lane=first.epoch > 0, finished=False)
        except LaneError as error:
            self._rate_limited.failed(broker, f"leases at {broker} could not be renewed, they end as planned", error)
            self._failed(error, names[0].topic, broker, asked_at, first.times)
            return
        self._pace(broker).reached()
        self._suspended.discard(broker)
        for assigned in queues:
            if not assigned.released:
                self._renewed(assigned, granted.get(assigned.queue), asked_at, timeout)

    def _failed(self, error: LaneError, topic: str, broker: str, asked_at: Millis, times: LeaseTimes) -> None:
        """Closes the connection if it is dead: the broker has answered nothing for as long as a lease lasts, or 10 s.

        Until then a broker that is only slow may answer, and the member still has leases there to lose.
        """
        pace = self._pace(broker)
        if not isinstance(error, RequestTimedOut):
            pace.reached()  # the broker refused, or a connection could not be made: there is none to close
        elif pace.unanswered(asked_at, self._clock.now()) >= (silence := min(times.broker_lease_ms, DEAD_MS)):
            with contextlib.suppress(ConnectFailed):  # the route has no master any more: nothing to close
                self._calls.close_silent(topic, broker, silence)

    def _renewed(self, assigned: AssignedQueue, answer: Granted | None, asked_at: Millis, timeout: Millis) -> None:
        lease = assigned.lease
        assert lease is not None
        if answer is None:
            self._assignment.lose(assigned, "the broker gave it to another member")
            return
        match lease.granted(answer.epoch, asked_at=asked_at, keep_alive_timeout=timeout, serial=answer.serial):
            case Grant.RENEWED if lease.usable_until is not None:
                self._set_usable_until(assigned, lease.usable_until)
                self._on_parked(assigned, answer.parked)
                if answer.moved is not None and assigned.moving_to is None and asked_at > assigned.moved_at:
                    self._on_moved(assigned, answer.moved)
            case Grant.NEW:
                self._assignment.lose(assigned, "another member may have owned it in between")

    def _set_usable_until(self, assigned: AssignedQueue, until: Millis) -> None:
        # The history comes first: a worker may start a turn as soon as the scheduler knows. A time in the past comes
        # from a lost connection and is not a renewal.
        if self._history.on and until > self._clock.now():
            lease = self._assignment.lease_in_history(assigned)
            self._history.lease_renewed(lease, until=until * NANOS, asked=assigned.asked_ns)
        with assigned.scheduler as lanes:
            lanes.set_usable_until(assigned.queue, until)
        assigned.wake.set()

    # requests

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
        asked_at = self._clock.now()
        granted, member = await self._calls.lock(
            broker,
            queues,
            lease=times.broker_lease_ms if lane else None,
            keep_alive_timeout=timeout if lane else None,
            finished=finished,
        )
        if granted:
            self._answered(broker, asked_at, times, lane=lane)
            self._note_master(queues[0].topic, broker)
            keep_alive_every = times.keep_alive_every_ms if any(each.serial for each in granted.values()) else None
            pace = self._pace(broker)
            if pace.keep_alive_every != keep_alive_every:
                pace.keep_alive_every = keep_alive_every
                pace.changed.set()
        if not member:
            await self._removed(queues[0].topic, broker)
        return granted

    def _answered(self, broker: str, asked_at: Millis, times: LeaseTimes, *, lane: bool = True) -> None:
        """Only a LaneMQ broker gets keep-alives, so their timeout means nothing elsewhere."""
        pace, after = self._pace(broker), Millis(self._clock.now() - asked_at)
        before = pace.keep_alive_timeout(times)
        if pace.answered(after) and lane and pace.keep_alive_timeout(times) > before:
            log.warning(
                "%s takes %d ms to answer: from the next renewal on turns start within %d ms of a request instead of "
                "%d, and if this member is killed, its queues wait as long",
                broker, after, pace.keep_alive_timeout(times), before,
            )  # fmt: skip

    def _note_master(self, topic: str, broker: str) -> None:
        """Logs that queues continue at another master, after a fail-over or a move."""
        with contextlib.suppress(ConnectFailed):  # the master that has just answered is gone again
            pace, master = self._pace(broker), self._calls.address(topic, broker)
            if pace.master not in (None, master):
                log.warning(
                    "the queues of %s continue at its new master %s, instead of %s", broker, master, pace.master
                )
            pace.master = master

    def _pace(self, broker: str) -> _Pace:
        if broker not in self._paces:
            self._paces[broker] = _Pace()
            self._new_broker.set()
        return self._paces[broker]

    def _renew_every(self) -> Millis:
        return min((each.times.renew_every_ms for each in self._assignment if each.lease), default=FIRST_RENEWAL_MS)
