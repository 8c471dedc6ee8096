"""The two ends of a mirror: reading queues on either side, and sending to the target without repeating anything."""

import contextlib
from collections.abc import Iterator
from typing import Self, Unpack

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.identity import new_client_id
from lanemq.client.message import Message
from lanemq.client.producer.batches import PendingMessage, RequestBuilder, heartbeat
from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import SecuritySettings, security_of
from lanemq.client.topic_route import TopicRoute
from lanemq.client.topics import checked
from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import GroupNotFound, LaneError, OrderError, RequestTimedOut, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import parse_addresses
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.admin_headers import CreateTopicHeader
from lanemq.wire.codes import LATE_CODES, STORED_CODES, RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import OffsetResponse, QueueHeader
from lanemq.wire.route_bodies import KVTable
from lanemq.wire.stats_bodies import ProducerConnection

PAGE = 1000
HEARTBEAT_MS = Millis(20_000)
"""Shorter than RocketMQ's 30 s: a broker that hears nothing for two minutes closes the connection."""
SEND_SECONDS = 15.0
"""How long a send may take. Short: a slow broker costs a new session, which reads the target's ends again."""


class BrokersAway(OrderError):
    """Brokers that have queues of the topic are away: what was read would look complete and is not."""


class Side:
    """One side of a mirror, for reading: its queues, offsets and messages. Not thread-safe."""

    def __init__(self, servers: str, group: str, **protection: Unpack[SecuritySettings]) -> None:
        self.servers = servers
        self.group = group
        self.protection = protection
        self.admin = Admin(servers, **protection)
        self._pull = PullConsumer(servers, group=group, codec="bytes", **protection)
        self._routes = BlockingRoutes(parse_addresses(servers), security=security_of(**protection))
        self._assigned: set[MessageQueue] = set()

    def route(self, topic: str) -> TopicRoute:
        """The topic's route; raises `TopicNotFound` if the topic does not exist."""
        return self._routes.get(topic)

    def full_route(self, topic: str) -> TopicRoute:
        """The topic's route if all of its brokers are there.

        Raises `BrokersAway` otherwise: the queues of a broker that is away are not in the list of those to read, and
        would be left out without a word.
        """
        route = self.route(topic)
        if route.away:
            names = ", ".join(sorted(route.away))
            raise BrokersAway(
                f"topic {topic!r} at {self.servers} has queues on brokers without a master at the moment: {names}. "
                f"What they hold cannot be read or counted: start them, then try again"
            )
        return route

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset that is kept, and the next one to be written."""
        return self.admin.min_offset(queue), self.admin.max_offset(queue)

    def committed(self, queue: MessageQueue) -> int | None:
        """The mirror's own offset. Apache brokers answer 0 for a queue without one."""
        return self.admin.committed(self.group, queue)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commits the mirror's own offset of one queue."""
        self.admin.commit(self.group, queue, offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Reads the queue from `offset` on."""
        if queue not in self._assigned:
            self._assigned.add(queue)
            self._pull.assign(self._assigned)
        self._pull.seek(queue, offset)

    def position(self, queue: MessageQueue) -> int:
        return self._pull.position(queue)

    def read(self, queue: MessageQueue, limit: int = PAGE) -> list[Message]:
        """The next messages of a queue; none at its end."""
        return self._pull.read(queue, limit)

    def read_one(self, queue: MessageQueue, offset: int) -> Message | None:
        """The message at an offset; None if it is not there any more."""
        self.seek(queue, offset)
        return next((message for message in self.read(queue, 1)[:1] if message.queue_offset == offset), None)

    def read_range(self, queue: MessageQueue, first: int, end: int) -> Iterator[Message]:
        """Messages from `first` up to, but not including, `end`; those deleted by retention are skipped.

        Raises `RequestTimedOut` if the broker gives none although the queue continues: a replica that is behind, or
        messages that are stored and not readable yet. A range that ends early would look complete.
        """
        self.seek(queue, first)
        while self.position(queue) < end:
            page = self.read(queue)
            if not page and self.position(queue) < end:
                raise RequestTimedOut(
                    f"{queue} at {self.servers} has messages up to offset {end}, and none can be read from offset "
                    f"{self.position(queue)} on: try again, and look whether its master and replicas are up"
                )
            yield from (message for message in page if message.queue_offset < end)

    def close(self) -> None:
        self._pull.close()
        self._routes.close()
        self.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TargetLink:
    """One connection to a broker of the target, registered as a producer of the mirror.

    It repeats nothing and does not reconnect: after an error it is unknown what is stored, and only reading tells.
    """

    def __init__(self, route: TopicRoute, broker: str, group: str, side: Side, clock: Clock | None = None) -> None:
        self.broker = broker
        self.is_lanemq = route.is_lanemq(broker)
        self._group = group
        self._clock = clock or SystemClock()
        self._client_id = new_client_id()
        self._marks = MessageQueue(group, broker, 0)
        self._link = BlockingConnection(route.master(broker), security=security_of(**side.protection))
        self._beaten_at = self._clock.now()
        try:
            self._beat()
        except BaseException:
            self._link.close()
            raise

    @property
    def client_id(self) -> str:
        return self._client_id

    def send(self, command: Command) -> Command:
        """The broker's answer to a send, whatever its code."""
        return self._link.request(command, SEND_SECONDS)

    def keep_alive(self) -> None:
        """Sends a heartbeat if it is time."""
        if self._clock.now() - self._beaten_at >= HEARTBEAT_MS:
            self._beat()

    def others(self) -> list[str]:
        """Other connections under the mirror's producer group: a mirror that runs, or what is left of a dead one."""
        reply = self._ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": self._group})
        listed = ProducerConnection.decode(reply.body).connection_set
        if self._client_id not in {each.client_id for each in listed}:
            raise GroupNotFound(ResponseCode.SYSTEM_ERROR, f"{self.broker} does not list this mirror as a producer")
        return [f"{each.client_id} at {each.client_addr}" for each in listed if each.client_id != self._client_id]

    def runtime(self) -> dict[str, str]:
        """The broker's figures about itself."""
        return KVTable.decode(self._ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}).body).table

    def mark(self) -> int | None:
        """Stores a marker in a topic of the mirror's own; its offset, or None if its confirmation was late.

        Creates the topic, which has the name of the mirror's group at the target, if it does not exist.
        """
        reply = self.send(self._marker())
        if isinstance(error_for(reply.code, reply.remark), TopicNotFound):
            header = CreateTopicHeader(topic=self._marks.topic, read_queue_nums=1, write_queue_nums=1)
            self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
            reply = self.send(self._marker())
        if reply.code in LATE_CODES:
            return None
        if reply.code not in STORED_CODES:
            raise error_for(reply.code, reply.remark)
        return int(reply.ext["queueOffset"])

    def marked_end(self) -> int:
        """The end of the marker queue for readers."""
        return self.ends(self._marks)[0]

    def ends(self, queue: MessageQueue) -> tuple[int, int]:
        """The queue's end for readers, and the end that includes what is stored and not readable yet.

        Many brokers give the first for both, RocketMQ 5.3.3 among them.
        """
        readable, stored = (
            OffsetResponse.from_ext(
                self._ask(
                    RequestCode.GET_MAX_OFFSET,
                    QueueHeader(topic=queue.topic, queue_id=queue.queue_id, committed=committed).to_ext(),
                ).ext
            ).offset
            for committed in (True, False)
        )
        return max(0, readable), stored

    def close(self) -> None:
        with contextlib.suppress(LaneError):
            self._link.close()

    def _marker(self) -> Command:
        now = self._clock.wall()
        marker = PendingMessage(b"mark", "", "", None, 0, True, size=4)
        builder = RequestBuilder(self._group, self._client_id, self._client_id)
        return builder.send(self._marks, [marker], epoch=now, sequence=0, born=now, creates=False)

    def _beat(self) -> None:
        self._beaten_at = self._clock.now()
        checked(self._link.request(heartbeat(self._client_id, self._group), SEND_SECONDS))

    def _ask(self, code: RequestCode, ext: dict[str, str]) -> Command:
        return checked(self._link.request(Command(code, 0, ext=ext), SEND_SECONDS))
