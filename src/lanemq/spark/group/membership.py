"""The driver as a member of a consumer group: heartbeats, allocation, leases, hand-over.

A thread renews leases and follows changes of the group while Spark plans and runs batches. The first call of `join`
starts it, not the constructor, because Spark also creates (and pickles) readers where no query runs. One lock covers
every request, so thread and driver never use the connections at the same time.
"""

import logging
import threading
from collections.abc import Collection, Mapping

from lanemq.clock import Clock, SystemClock
from lanemq.core.consuming.allocation import averagely
from lanemq.core.consuming.queue_lease import LANE_TIMES, ROCKETMQ_TIMES, Grant, LeaseTimes
from lanemq.model.errors import LaneError, LeaseLost
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address
from lanemq.spark.group.assigned_queues import AssignedQueues, BatchClaim
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.offsets import Positions
from lanemq.spark.options import ReadOptions

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
KEEP_ALIVE_MS = 1_000
HEARTBEAT_MS = 30_000
"""RocketMQ's ClientConfig.heartbeatBrokerInterval."""


class DriverMembership:
    """One query's membership in its group."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._calls = MemberCalls(
            options.servers, options.pull_group, options.tags, self._clock, security=options.security
        )
        self._assigned = AssignedQueues()
        self._topics: tuple[str, ...] = ()
        self._wanted: frozenset[MessageQueue] = frozenset()
        self._share_known = False
        """Whether the last round could read the members of every topic."""
        self._left: Positions = {}
        """By granted queue: the end of what a former run left to others; 0 once that is handled."""
        self._warned: dict[str, str] = {}
        """The last warning about each subject, so that it is logged once and not in every round."""
        self._heartbeat_due: dict[Address, int] = {}
        self._keep_alive_due: dict[Address, int] = {}
        """The LaneMQ brokers of the topics, which remove a member that is silent."""
        self._renew_due: dict[Address, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def client_id(self) -> str:
        return self._calls.client_id

    def join(self, topics: Collection[str]) -> None:
        """Joins the group with these topics; the first call starts the thread."""
        with self._lock:
            if tuple(sorted(topics)) != self._topics:
                self._topics = tuple(sorted(topics))
                self._heartbeat_due.clear()
                self._round()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lanemq-spark-member", daemon=True)
            self._thread.start()

    def wait_for_share(self, timeout: Millis) -> str | None:
        """Waits until this member owns all queues of its share; returns what is missing after the timeout."""
        until = self._clock.now() + timeout
        while True:
            with self._lock:
                self._round()
                missing = self._missing()
            if missing is None or self._clock.now() >= until:
                return missing
            self._ended.wait(0.1)

    def _missing(self) -> str | None:
        if not self._share_known:
            return "it is unknown which queues belong to this query's share"
        others = sorted(self._wanted - self._assigned.usable(now=self._clock.now()).keys())
        if not others:
            return None
        return f"{', '.join(map(str, others))}: not owned by this query (another member owns it, or no broker answers)"

    def usable(self) -> Positions:
        """The queues that this query may read now, each with the group's offset when it was granted.

        Queues in which a former run left messages to others are missing until `batch_done` has decided where they
        begin.
        """
        with self._lock:
            found = self._assigned.usable(now=self._clock.now())
            return {queue: offset for queue, offset in found.items() if not self._left.get(queue)}

    def take(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, BatchClaim]:
        """Claims those of the queues that the next batch may read. They are not given back before the batch is done."""
        with self._lock:
            claims = self._assigned.take(queues, now=self._clock.now())
            # A repeated batch that was left to others before is now read here.
            self._left.update(dict.fromkeys(claims, QueueOffset(0)))
            return claims

    def leave_to_others(self, ends: Positions) -> None:
        """Notes at the broker that this query does not read a batch up to these ends, before Spark records it as done.

        The checkpoint will say that the messages are done. Without the note, a query that stops before its next batch
        would rely on that; if the other members leave too, the messages would never be read.
        """
        with self._lock:
            for queue, until in ends.items():
                try:
                    address = self._master(queue)
                    if max(self._calls.committed(address, queue), self._calls.left_until(address, queue)) < until:
                        self._calls.note_left(address, queue, until)
                except LaneError as error:
                    raise LeaseLost(
                        f"{queue}: another member owns it, and the broker could not note that this batch leaves it to "
                        f"that member: {error}. Start the query again; it continues once the group is past {until}"
                    ) from error
                self._left[queue] = QueueOffset(0)

    def batch_done(self, positions: Positions) -> Positions:
        """Every batch up to these positions is finished: stores them, then gives back queues of other members' shares.

        Returns the queues in which a former run left messages to others that are still undone, with the group's offset,
        where reading must begin. Their positions are not stored.
        """
        with self._lock:
            self._assigned.batch_finished()
            undone = self._assigned.undone(positions, self._left)
            self._left.update(dict.fromkeys(self._assigned.queues(), QueueOffset(0)))
            done = {queue: at for queue, at in positions.items() if queue not in undone}
            for queue, offset in self._assigned.to_store(done).items():
                self._store(queue, offset)
            self._give_back()
            return undone

    def leave(self) -> None:
        """Leaves the group. Queues without a running batch are given back; the leases of the others expire."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        with self._lock:
            try:
                self._assigned.want(())
                self._give_back()
                self._calls.unregister()
            except LaneError as error:
                log.info("group %s: could not leave: %s", self._options.group, error)
            self._calls.close()

    def _run(self) -> None:
        """The thread's loop. It survives errors, because leases that are not renewed are lost."""
        while not self._ended.wait(ROUND_SECONDS):
            try:
                with self._lock:
                    self._round()
            except Exception:
                log.exception("group %s: an update failed; the next one follows in a second", self._options.group)

    def _round(self) -> None:
        """Updates the share of every topic once. If a broker does not answer, nothing changes: its leases expire."""
        wanted: set[MessageQueue] = set()
        self._share_known = True
        for topic in self._topics:
            try:
                wanted |= self._share_of(topic)
                self._warned.pop(topic, None)
            except LaneError as error:
                if self._is_deleted(topic):
                    self._forget(topic)
                    continue
                self._warn(topic, f"topic {topic}: its queues stay unchanged: {error}")
                wanted |= {queue for queue in self._wanted if queue.topic == topic}
                self._share_known = False
        self._wanted = frozenset(wanted)
        self._assigned.want(self._wanted)
        self._give_back()
        self._renew()
        self._keep_alive()

    def _share_of(self, topic: str) -> set[MessageQueue]:
        route = self._calls.route(topic)
        now = self._clock.now()
        members: list[str] = []
        for broker in sorted({queue.broker for queue in route.subscribe}):
            address = route.master(broker)
            if route.is_lanemq(broker):
                self._keep_alive_due.setdefault(address, now + KEEP_ALIVE_MS)
            if now >= self._heartbeat_due.get(address, 0) or not self._calls.connected(address):
                self._join(address)
                self._renew_due.pop(address, None)
            if not members:
                members = self._calls.members(address, topic)
                if self._calls.client_id not in members:  # it was silent for too long
                    self._join(address)
                    members = self._calls.members(address, topic)
        return set(averagely(route.subscribe, members, self._calls.client_id))

    def _join(self, address: Address) -> None:
        expiry = LANE_TIMES.broker_lease_ms if address in self._keep_alive_due else None
        self._calls.heartbeat(address, self._topics, expiry)
        self._heartbeat_due[address] = self._clock.now() + HEARTBEAT_MS

    def _keep_alive(self) -> None:
        """Shows brokers that got no lock request that this member is alive, and joins again where it was removed."""
        for address, due in list(self._keep_alive_due.items()):
            if self._clock.now() < due:
                continue
            self._keep_alive_due[address] = self._clock.now() + KEEP_ALIVE_MS
            try:
                if not self._calls.keep_alive(address):
                    self._join(address)
            except LaneError as error:
                del self._keep_alive_due[address]  # the next round adds it again if a topic is still there
                self._warn(f"keep-alive {address}", f"no keep-alive to {address}: {error}")
            else:
                self._warned.pop(f"keep-alive {address}", None)

    def _renew(self) -> None:
        """Requests the leases of all owned and wanted queues, one request per broker; failures stay separate."""
        brokers: dict[tuple[Address, bool], list[MessageQueue]] = {}
        for queue in sorted({*self._wanted, *self._assigned.queues()}):
            try:
                route = self._calls.route(queue.topic)
                brokers.setdefault((route.master(queue.broker), route.is_lanemq(queue.broker)), []).append(queue)
            except LaneError as error:
                self._warn(str(queue), f"the lease of {queue} cannot be renewed: {error}")
        for (address, lane), queues in brokers.items():
            missing = any(queue not in self._assigned for queue in queues)
            if missing or self._clock.now() >= self._renew_due.get(address, 0):
                try:
                    self._lease(address, queues, LANE_TIMES if lane else ROCKETMQ_TIMES, lane=lane)
                    self._warned.pop(str(address), None)
                except LaneError as error:
                    self._warn(str(address), f"leases at {address} cannot be renewed: {error}")

    def _lease(self, address: Address, queues: list[MessageQueue], times: LeaseTimes, *, lane: bool) -> None:
        asked_at = self._clock.now()
        # No keep-alives between renewals: a batch takes long, so the broker waits for the end of the lease.
        lease, keep_alive = (times.broker_lease_ms, times.client_lease_ms) if lane else (None, None)
        granted, member = self._calls.lock(address, queues, lease, keep_alive)
        if lane:
            self._keep_alive_due[address] = self._clock.now() + KEEP_ALIVE_MS
            if not member:
                self._join(address)
        for queue in queues:
            answer = granted.get(queue)
            if answer is None:
                self._refused(queue)
                continue
            self._warned.pop(str(queue), None)
            # Read under the lease, so it is the last offset that the former owner stored.
            offset = answer.offset if answer.offset is not None else self._group_offset(address, queue)
            if queue not in self._left:
                self._left[queue] = self._calls.left_until(address, queue)
            grant = self._assigned.granted(queue, answer.epoch, offset, times, asked_at=asked_at)
            if grant is Grant.NEW:
                log.info("group %s: this query owns %s, epoch %s", self._options.group, queue, answer.epoch)
        self._renew_due[address] = asked_at + times.renew_every_ms

    def _refused(self, queue: MessageQueue) -> None:
        """Another member owns the queue, or its topic was deleted; the broker's answer is the same."""
        if queue in self._assigned and self._is_deleted(queue.topic):
            self._forget(queue.topic)
        else:
            self._assigned.refused(queue)

    def _is_deleted(self, topic: str) -> bool:
        known = {*self._wanted, *self._assigned.queues()}
        return self._calls.is_deleted(topic, {queue.broker for queue in known if queue.topic == topic})

    def _forget(self, topic: str) -> None:
        self._warn(topic, f"topic {topic} was deleted; its queues are no longer read")
        self._wanted = frozenset(queue for queue in self._wanted if queue.topic != topic)
        self._assigned.topic_deleted(topic)

    def _warn(self, subject: str, warning: str) -> None:
        if self._warned.get(subject) != warning:
            self._warned[subject] = warning
            log.warning("group %s: %s", self._options.group, warning)

    def _group_offset(self, address: Address, queue: MessageQueue) -> QueueOffset:
        """The group's offset, for Apache brokers, which do not return it with the lock. Only a first grant needs it."""
        return QueueOffset(0) if queue in self._assigned else self._calls.committed(address, queue)

    def _store(self, queue: MessageQueue, offset: QueueOffset) -> None:
        try:
            self._calls.commit(self._master(queue), queue, offset, self._assigned.epoch(queue))
            self._assigned.stored(queue, offset)
        except LeaseLost as error:
            raise LeaseLost(
                f"{queue}: {error}; another member, or another copy of this query, owns the queue now"
            ) from error
        except LaneError as error:
            # The checkpoint has the offset, and the next batch stores it again.
            log.warning("group %s: offset %s of %s is not stored yet: %s", self._options.group, offset, queue, error)

    def _give_back(self) -> None:
        for queue in self._assigned.to_give_back():
            try:
                self._calls.unlock(self._master(queue), queue, self._assigned.epoch(queue))
            except LaneError as error:
                log.warning("%s could not be unlocked; other members wait until the lease ends: %s", queue, error)
            self._assigned.given_back(queue)

    def _master(self, queue: MessageQueue) -> Address:
        return self._calls.route(queue.topic).master(queue.broker)
