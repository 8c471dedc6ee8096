"""The driver as a member of a consumer group: heartbeats, allocation, leases, hand-over.

A shell around `holdings`. A thread renews leases and looks for changes while Spark plans and runs batches; it is
started by the first question, never by the constructor, because readers are also built (and pickled) where no
query runs. Every request is made under one lock, so thread and driver never speak at once.
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
from lanemq.spark.group.holdings import Claim, Holdings
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.offsets import Positions
from lanemq.spark.options import ReadOptions

log = logging.getLogger(__name__)

ROUND_MS = 1_000
HEARTBEAT_MS = 30_000
"""RocketMQ's ClientConfig.heartbeatBrokerInterval."""


class Membership:
    """One query's place in its group."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._calls = MemberCalls(
            options.servers, options.pull_group, options.tags, self._clock, security=options.security
        )
        self._holdings = Holdings()
        self._topics: tuple[str, ...] = ()
        self._wanted: frozenset[MessageQueue] = frozenset()
        self._allocated = False
        """The last round saw every topic's members."""
        self._left: Positions = {}
        """What a former run left to others in the queues granted so far; 0 once that is taken into account."""
        self._troubles: dict[str, str] = {}
        """By what they are about; each is told once, not in every round."""
        self._heartbeat_due: dict[Address, int] = {}
        self._renew_due: dict[Address, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def client_id(self) -> str:
        return self._calls.client_id

    def join(self, topics: Collection[str]) -> None:
        """Takes part from now on, with these topics; the first call starts the thread."""
        with self._lock:
            if tuple(sorted(topics)) != self._topics:
                self._topics = tuple(sorted(topics))
                self._heartbeat_due.clear()
                self._round()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lanemq-spark-member", daemon=True)
            self._thread.start()

    def settle(self, most: Millis) -> str | None:
        """Waits until every queue of this member's share is owned; says what is missing when the time is over."""
        until = self._clock.now() + most
        while True:
            with self._lock:
                self._round()
                missing = self._missing()
            if missing is None or self._clock.now() >= until:
                return missing
            self._ended.wait(0.1)

    def _missing(self) -> str | None:
        if not self._allocated:
            return "it is not known which queues are this query's share"
        others = sorted(self._wanted - self._holdings.usable(now=self._clock.now()).keys())
        if not others:
            return None
        return f"{', '.join(map(str, others))}: not this query's yet (another member works there, or no broker answers)"

    def usable(self) -> Positions:
        """The queues this query may read now, each with the group's offset when it was taken.

        Not yet those where a former run may have left something out: `batch_done` says first where they begin.
        """
        with self._lock:
            found = self._holdings.usable(now=self._clock.now())
            return {queue: floor for queue, floor in found.items() if not self._left.get(queue)}

    def take(self, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, Claim]:
        """Those of the queues that the next batch may read; they stay ours until it is done, if time allows."""
        with self._lock:
            claims = self._holdings.take(queues, now=self._clock.now())
            # A repeated batch that was left out before reads the left part itself.
            self._left.update(dict.fromkeys(claims, QueueOffset(0)))
            return claims

    def leave_to_others(self, ends: Positions) -> None:
        """Notes at the broker that a batch is not read here up to these ends, before Spark can note it as done.

        The checkpoint will say that the messages are done. Without the note a query that is stopped before its
        next batch would believe it, and if the others leave too, nobody reads them.
        """
        with self._lock:
            for queue, until in ends.items():
                try:
                    address = self._master(queue)
                    if max(self._calls.committed(address, queue), self._calls.left_until(address, queue)) < until:
                        self._calls.note_left(address, queue, until)
                except LaneError as error:
                    raise LeaseLost(
                        f"{queue}: another member owns it, and the broker could not note that this batch leaves it "
                        f"to that member: {error}. Start the query again; once the other is past {until} it goes on"
                    ) from error
                self._left[queue] = QueueOffset(0)

    def batch_done(self, positions: Positions) -> Positions:
        """Every batch up to these positions is finished: store them, then give back what others wait for.

        Except, and that is the answer, queues where a former run left out what nobody has done since: they begin
        at the group's offset.
        """
        with self._lock:
            self._holdings.finished()
            behind = self._holdings.behind(positions, self._left)
            self._left.update(dict.fromkeys(self._holdings.queues(), QueueOffset(0)))
            done = {queue: at for queue, at in positions.items() if queue not in behind}
            for queue, offset in self._holdings.to_store(done).items():
                self._store(queue, offset)
            self._give_back()
            return behind

    def leave(self) -> None:
        """Ends the membership; idle queues are given back, the others when the broker misses us."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        with self._lock:
            try:
                self._holdings.want(())
                self._give_back()
                self._calls.unregister()
            except LaneError as error:
                log.info("group %s: could not say goodbye: %s", self._options.group, error)
            self._calls.close()

    def _run(self) -> None:
        """Never ends by an error: leases that are not renewed are lost."""
        while not self._ended.wait(ROUND_MS / 1000):
            try:
                with self._lock:
                    self._round()
            except Exception:
                log.exception("group %s: a round failed; the next one follows as planned", self._options.group)

    def _round(self) -> None:
        """Looks at every topic once. A broker that does not answer leaves things as they are: leases end by time."""
        wanted: set[MessageQueue] = set()
        self._allocated = True
        for topic in self._topics:
            try:
                wanted |= self._share_of(topic)
                self._troubles.pop(topic, None)
            except LaneError as error:
                if self._is_gone(topic):
                    self._forget(topic)
                    continue
                self._warn(topic, f"topic {topic}: queues stay as they are: {error}")
                wanted |= {queue for queue in self._wanted if queue.topic == topic}
                self._allocated = False
        self._wanted = frozenset(wanted)
        self._holdings.want(self._wanted)
        self._give_back()
        self._renew()

    def _share_of(self, topic: str) -> set[MessageQueue]:
        route = self._calls.route(topic)
        now = self._clock.now()
        members: list[str] = []
        for broker in sorted({queue.broker for queue in route.subscribe}):
            address = route.master(broker)
            if now >= self._heartbeat_due.get(address, 0) or not self._calls.connected(address):
                self._calls.heartbeat(address, self._topics)
                self._heartbeat_due[address] = now + HEARTBEAT_MS
                self._renew_due.pop(address, None)
            members = members or self._calls.members(address)
        return set(averagely(route.subscribe, members, self._calls.client_id))

    def _renew(self) -> None:
        """Asks for everything held or wanted, one request per broker. What fails for one queue costs no other."""
        brokers: dict[tuple[Address, bool], list[MessageQueue]] = {}
        for queue in sorted({*self._wanted, *self._holdings.queues()}):
            try:
                route = self._calls.route(queue.topic)
                brokers.setdefault((route.master(queue.broker), route.is_lane(queue.broker)), []).append(queue)
            except LaneError as error:
                self._warn(str(queue), f"the lease of {queue} ends as planned: {error}")
        for (address, lane), queues in brokers.items():
            missing = any(queue not in self._holdings for queue in queues)
            if missing or self._clock.now() >= self._renew_due.get(address, 0):
                try:
                    self._lease(address, queues, LANE_TIMES if lane else ROCKETMQ_TIMES, lane=lane)
                    self._troubles.pop(str(address), None)
                except LaneError as error:
                    self._warn(str(address), f"leases at {address} end as planned: {error}")

    def _lease(self, address: Address, queues: list[MessageQueue], times: LeaseTimes, *, lane: bool) -> None:
        asked_at = self._clock.now()
        # A batch is planned seldom and takes long: no keep-alives, and the broker waits for the lease's end here.
        lease, timeout = (times.broker_lease_ms, times.client_lease_ms) if lane else (None, None)
        granted = self._calls.lock(address, queues, lease, timeout)
        for queue in queues:
            answer = granted.get(queue)
            if answer is None:
                self._refused(queue)
                continue
            self._troubles.pop(str(queue), None)
            # Read under the lease, so it is what the former owner left.
            floor = answer.offset if answer.offset is not None else self._floor(address, queue)
            if queue not in self._left:
                self._left[queue] = self._calls.left_until(address, queue)
            grant = self._holdings.granted(queue, answer.epoch, floor, times, asked_at=asked_at)
            if grant is Grant.NEW:
                log.info("group %s: this query owns %s, epoch %s", self._options.group, queue, answer.epoch)
        self._renew_due[address] = asked_at + times.renew_every_ms

    def _refused(self, queue: MessageQueue) -> None:
        """Another member owns it, or its topic was deleted: a broker answers both alike."""
        if queue in self._holdings and self._is_gone(queue.topic):
            self._forget(queue.topic)
        else:
            self._holdings.refused(queue)

    def _is_gone(self, topic: str) -> bool:
        ours = {*self._wanted, *self._holdings.queues()}
        return self._calls.is_gone(topic, {queue.broker for queue in ours if queue.topic == topic})

    def _forget(self, topic: str) -> None:
        self._warn(topic, f"topic {topic} was deleted; its queues are no longer read")
        self._wanted = frozenset(queue for queue in self._wanted if queue.topic != topic)
        self._holdings.gone(topic)

    def _warn(self, about: str, trouble: str) -> None:
        if self._troubles.get(about) != trouble:
            self._troubles[about] = trouble
            log.warning("group %s: %s", self._options.group, trouble)

    def _floor(self, address: Address, queue: MessageQueue) -> QueueOffset:
        """An Apache broker does not say with the lock where the group stands; only a first grant needs to know."""
        return QueueOffset(0) if queue in self._holdings else self._calls.committed(address, queue)

    def _store(self, queue: MessageQueue, offset: QueueOffset) -> None:
        try:
            self._calls.commit(self._master(queue), queue, offset, self._holdings.epoch(queue))
            self._holdings.stored(queue, offset)
        except LeaseLost as error:
            raise LeaseLost(f"{queue}: {error}; another copy of this query or another member is at work") from error
        except LaneError as error:
            # The checkpoint is the truth; the broker is told again after the next batch.
            log.warning("group %s: offset %s of %s is not stored yet: %s", self._options.group, offset, queue, error)

    def _give_back(self) -> None:
        for queue in self._holdings.leaving():
            try:
                self._calls.unlock(self._master(queue), queue, self._holdings.epoch(queue))
            except LaneError as error:
                log.warning("%s could not be unlocked; others wait for the lease's end: %s", queue, error)
            self._holdings.drop(queue)

    def _master(self, queue: MessageQueue) -> Address:
        return self._calls.route(queue.topic).master(queue.broker)
