"""What both producers are made of, and what they do alike: how messages are packed, placed, dropped and looked after.

The shells add what carries it all, threads and sockets or tasks on an event loop. Whatever touches the engine or the
inbox does so under `_lock`; on an event loop nobody else can come in between, and it is none.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from lanemq.client.identity import new_client_id, new_producer_id
from lanemq.client.producer.engine import SendEngine
from lanemq.client.producer.freezes import Frozen
from lanemq.client.producer.inbox import SendInbox
from lanemq.client.producer.options import ProducerSettings, producer_options
from lanemq.client.producer.packing import Choice, Packer, QueueChooser
from lanemq.client.producer.requests import Extras, Parcel, RequestBuilder, heartbeat
from lanemq.client.producer.waiters import Sole, Ticket
from lanemq.client.producer.work import HEARTBEAT_MILLIS, TICK_SECONDS, EngineLane, Work
from lanemq.client.routing import TopicRoute
from lanemq.clock import Clock, SystemClock
from lanemq.model.queue import MessageQueue
from lanemq.wire.command import Command

Told: TypeAlias = tuple[Ticket, bool]
"""Whom to tell, and whether they hear of a failure before they send anything else."""


class ProducerBase(ABC):
    """Without a connection to anything."""

    def __init__(
        self,
        lock: AbstractContextManager[object],
        new_future: Callable[[], Any],
        clock: Clock | None,
        settings: ProducerSettings,
    ) -> None:
        self._lock = lock
        self._clock = clock or SystemClock()
        self._client_id = new_client_id()
        self._options = producer_options(self._clock, self._client_id, **settings)
        self._security = self._options.security
        self._packer = Packer(self._options)
        self._chooser = QueueChooser()
        builder = RequestBuilder(self._options.group, self._client_id, new_producer_id())
        self._engine = SendEngine(self._options, builder, self._clock)
        self._inbox = SendInbox(self._options, self._packer, new_future, self._empty_inbox)
        self._take = self._inbox.take
        self._unanswered = 0
        self._closing = self._closed = False
        self._next_heartbeat = 0

    # calls

    def drop(self, topic: str, *, key: str | int) -> int:
        """Gives up what waits of a key, and opens the key; how many messages. What is under way is settled as usual."""
        self._empty_inbox()
        with self._lock:
            outcomes = self._engine.drop(topic, str(key))
        self._finish(Work(outcomes=outcomes))
        return sum(len(outcome.parcels) for outcome in outcomes)

    def frozen_keys(self, topic: str | None = None) -> list[Frozen]:
        """What is frozen, since when and why; an entry without a key is a queue that is frozen as a whole."""
        with self._lock:
            return self._engine.frozen(topic)

    def _resume(self, route: TopicRoute, key: str | int | None, queue: int | MessageQueue | None) -> None:
        everywhere = key is None and queue is None
        chosen = None if everywhere else self._chooser.choose(route, None, key, Choice(queue=queue))
        self._empty_inbox()
        with self._lock:
            self._engine.resume(route.topic, None if key is None else str(key), chosen)

    # taking parcels in

    def _packed(self, value: object, key: str | int | None, extras: Extras, told: Told) -> Parcel:
        parcel = self._packer.one(value, key, extras)
        parcel.ticket, parcel.told = told
        return parcel

    def _queue_for(
        self, route: TopicRoute, value: object, key: str | int | None, choice: Choice | None
    ) -> MessageQueue:
        """Not under the lock: a selector is the caller's own code."""
        return self._chooser.choose(route, value, key, choice) if choice else self._chooser.by_key(route, key)

    def _offer(self, route: TopicRoute, queue: MessageQueue, parcel: Parcel) -> EngineLane:
        """With the lock held."""
        stamps, creates = route.is_lane(queue.broker), route.provisional
        lane = self._engine.offer(queue, (parcel,), checks_stamps=stamps, creates=creates, hurry=parcel.told)
        self._inbox.know(route)
        return lane

    def _leave(self, ticket: Sole) -> None:
        """A `send` was interrupted: its caller will not hear what becomes of the message."""
        with self._lock:
            self._engine.send_left(ticket)

    @abstractmethod
    def _empty_inbox(self) -> None:
        """Gives what `submit` left there its place. Before anything that may not pass it."""

    @abstractmethod
    def _finish(self, work: Work) -> None:
        """Everything the engine wants done, but for requests: those are on their way."""

    # looking after it all

    def _pause(self) -> float:
        """How many seconds nothing has to be looked after."""
        with self._lock:
            wake = self._engine.next_wake()
        return TICK_SECONDS if wake is None else min(TICK_SECONDS, max(0, wake - self._clock.now()) / 1000)

    def _heartbeat(self) -> Command:
        return heartbeat(self._client_id, self._options.group)

    def _heartbeat_is_due(self) -> bool:
        """True once per interval."""
        now = self._clock.now()
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + HEARTBEAT_MILLIS
        return True
