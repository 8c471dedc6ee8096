"""What a coordinator knows of the cluster's queues: which exist, and in which it may grant a lease.

Queues stay known while their broker is away: leases do not depend on masters. A lease is granted to a *new* owner only
while the coordinator holds Apache's own lock of the queue, at the broker's present master, for the whole group, and
after it has seen there that the group's consumption is disabled. So no stock member gets the queue beside it. Whoever
has a lease keeps it while a new master is being locked.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lanemq.broker.group_queues import no_such_queue
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.core.brokering.cluster.confirmed_queues import ConfirmedQueues
from lanemq.model.errors import BrokerRefused, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.wire.codes import ResponseCode

MAX_TOPICS = 10_000
"""Topics that members may ask for; each costs a request every half minute."""
APACHE_LOCK_MS = Millis(45_000)
"""How long a lock counts after the request for it. Apache's brokers keep it for 60 s after they got the request."""
NO_END = 2**63 - 1
"""The end of a queue, which a coordinator does not know."""


class HeldLock(NamedTuple):
    """Apache's lock of a queue."""

    master: Address
    until: Millis


class ClusterQueues:
    """The `GroupQueues` of a coordinator. `ClusterWatch` fills it. Used on the event loop only."""

    def __init__(self, clock: Clock, confirmed: ConfirmedQueues | None = None) -> None:
        self._clock = clock
        self.confirmed = confirmed or ConfirmedQueues()
        self._queues: dict[str, dict[MessageQueue, None]] = {}
        """By topic, every queue that was ever in its route."""
        self._masters: dict[str, Address] = {}
        self._locks: dict[tuple[str, MessageQueue], HeldLock] = {}
        self._topics: dict[str, None] = {}
        """Topics that a request named, whether or not they exist."""
        self.grants_from = Millis(0)
        """New owners wait until then: the store has gone back, and a member may have a lease that is lost there. 0 if
        they need not wait."""
        self.epochs_left: Callable[[], bool] = lambda: True
        """Whether epochs may be granted: they stay below the limit that name servers have."""
        self.changed = asyncio.Event()
        """Set when a topic is asked for that is not known."""

    # for handlers

    def named(self, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
        if not broker:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of {topic} is not named completely: a coordinator needs the broker's name",
            )
        return MessageQueue(topic, broker, queue_id)

    def existing(self, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
        queue = self.named(topic, broker, queue_id)
        if not self.has(queue):
            self._check_topic(topic)
            raise no_such_queue(queue, len(self.of_topic(topic)))
        return queue

    def has(self, queue: MessageQueue) -> bool:
        known = self._queues.get(queue.topic)
        if known is None:
            self.ask_for((queue.topic,))
        return known is not None and queue in known

    def of_topic(self, topic: str) -> Sequence[MessageQueue]:
        return sorted(self._queues.get(topic, ()))

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        self._check_topic(topic)
        return self.of_topic(topic)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._queues:
            self.ask_for((topic,))
            raise TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} is not known to the coordinator yet")

    def grantable(self, group: str, queue: MessageQueue) -> bool:
        lock = self._locks.get((group, queue))
        if queue not in self.confirmed or self._clock.now() < self.grants_from or not self.epochs_left():
            return False
        return lock is not None and lock.until > self._clock.now() and lock.master == self._masters.get(queue.broker)

    def lacks_retry_topic(self, group: str) -> bool:
        return False

    def ensure_retry_topic(self, group: str, queues: int = 1) -> None:
        """Apache's brokers create it with the first message that is sent back."""

    # for the watch

    def ask_for(self, topics: Iterable[str]) -> None:
        """Keep these topics in view."""
        for topic in topics:
            if topic not in self._topics and len(self._topics) < MAX_TOPICS:
                self._topics[topic] = None
                self.changed.set()

    @property
    def topics(self) -> Sequence[str]:
        return tuple(self._topics)

    def found(self, topic: str, route: TopicRoute | None) -> bool:
        """Enter a route; None if the topic does not exist, which is asked for again when a member names it.

        Returns whether its queues are confirmed, because the topic was never seen before.
        """
        if route is None:
            self._topics.pop(topic, None)
            return False
        self._queues.setdefault(topic, {}).update(dict.fromkeys(route.subscribe))
        return self.confirmed.see(topic, (*route.subscribe, *route.publish))

    def unconfirmed(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that wait for a confirmation."""
        return [queue for queue in self.of_topic(topic) if queue not in self.confirmed]

    def remember(self, queues: Iterable[MessageQueue]) -> None:
        """Enter queues that had owners before a restart: these renew their leases before a route is known."""
        for queue in queues:
            self._queues.setdefault(queue.topic, {})[queue] = None

    def masters_are(self, masters: Mapping[str, Address]) -> None:
        self._masters = dict(masters)

    @property
    def masters(self) -> Mapping[str, Address]:
        return self._masters

    def locked(self, group: str, master: Address, queues: Iterable[MessageQueue], *, asked_at: Millis) -> None:
        for queue in queues:
            self._locks[group, queue] = HeldLock(master, Millis(asked_at + APACHE_LOCK_MS))

    def unlocked(self, group: str, queues: Iterable[MessageQueue] | None = None) -> None:
        """Grant no more leases in these queues, or in any of the group."""
        gone = [key for key in self._locks if key[0] == group] if queues is None else [(group, each) for each in queues]
        for key in gone:
            self._locks.pop(key, None)


class RemoteLog:
    """The `QueueLog` of a coordinator: the messages are at the brokers, and it does not ask for them.

    The end of a queue is not needed to accept what its owner reports: the owner has pulled it.
    """

    has_records = False

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return 0, NO_END

    def record(self, queue: MessageQueue, offset: int) -> bytes | None:
        return None

    def offset_at(self, queue: MessageQueue, time: int) -> int:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER, f"a coordinator has no messages: name the offset of {queue} to reset to"
        )

    def stored_before(self, queue: MessageQueue, offset: int) -> int:
        return 0

    def left_out(self, queue: MessageQueue, start: int, end: int, tags: frozenset[int]) -> Iterator[list[int]]:
        return iter(())

    def is_young(self, queue: MessageQueue) -> bool:
        return False
