"""Which queue each message goes to: the one its caller names, its selector's, its key's, or the next in turn.

All queues of a chunk are chosen before any of its messages takes its place in line, so a refused chunk has sent
nothing.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from lanemq._fast import compiled
from lanemq.client.producer.batches import PendingMessage, QueueChoice, text_of
from lanemq.client.routing import no_such_topic
from lanemq.client.topic_route import TopicRoute, keys_would_move
from lanemq.core.sending.sharding import pick_queue, round_robin
from lanemq.model.errors import InvalidOption, MissingKey, NotAllowed
from lanemq.model.keys import Key
from lanemq.model.names import NOT_SENDABLE, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.wire.codes import ResponseCode

KNOWN_KEYS = 16_384
"""Keys whose queue is remembered; when they are more, all are forgotten at once."""


class QueueChooser:
    """Chooses the queue of each message."""

    def __init__(self, missing: Callable[[str], object]) -> None:
        """`missing` is called with the name of a topic that does not exist, before its message is refused."""
        self._missing = missing
        self._deal = round_robin(itertools.count())
        # The queues of recent keys, and the route they are true for; one tuple, so that both change at once.
        self._known: tuple[TopicRoute | None, dict[str, MessageQueue]] = (None, {})

    def choose(self, route: TopicRoute, message: object, key: Key | None, choice: QueueChoice | None) -> MessageQueue:
        """Chooses by explicit queue, selector, key, or round robin, in this order. An ordered topic needs a key.

        A selector gets the key as its caller gave it. Not called under the producer's lock: a selector is the caller's
        code.
        """
        if choice is None:
            return self.by_key(route, text_of(key))
        selector, arg, queue = choice
        self._check_exists(route, has_key=key is not None)
        if queue is not None:
            return _named(route, queue)
        assert selector is not None
        self._check_keys_stay(route)
        chosen = selector(route.publish, message, key if arg is None else arg)
        if chosen not in route.publish:
            raise InvalidOption(
                f"the selector chose {chosen}, which is not a queue of topic {route.topic!r}: it must return one of "
                f"the queues that it is given"
            )
        return chosen

    def by_key(self, route: TopicRoute, key: str | None) -> MessageQueue:
        if key is None:
            if route.ordered:
                raise MissingKey(route.topic)
            self._check_writable(route)
            return self._deal(route.writable or route.publish, None, None)
        of_route, known = self._known
        if of_route is route:
            return known.get(key) or self._learn(known, key, pick_queue(key, route.publish))
        if route.provisional or not route.publish or route.moved:
            self._check_exists(route, has_key=True)
            self._check_keys_stay(route)
        else:
            self._known = route, {}
        return pick_queue(key, route.publish)

    def sort_out(self, route: TopicRoute, chunk: Iterable[PendingMessage]) -> dict[MessageQueue, list[PendingMessage]]:
        """The messages of a chunk by queue, in order. All queues are chosen before any message takes its place."""
        of_route, known = self._known
        return sort_chunk(known if of_route is route else {}, partial(self.by_key, route), chunk)

    def _learn(self, known: dict[str, MessageQueue], key: str, queue: MessageQueue) -> MessageQueue:
        if len(known) >= KNOWN_KEYS:
            known.clear()
        known[key] = queue
        return queue

    def _check_keys_stay(self, route: TopicRoute) -> None:
        if route.moved:
            raise keys_would_move(route)

    def _check_exists(self, route: TopicRoute, *, has_key: bool) -> None:
        """Refuses a topic that a send would create, if order matters: it would not be ordered, and on several brokers
        its queues change, so that keys move."""
        self._check_writable(route)
        if route.provisional and (has_key or len(route.brokers) > 1):
            self._missing(route.topic)
            raise no_such_topic(route.topic, f", or declare it: Producer(..., create=[{route.topic!r}])")

    def _check_writable(self, route: TopicRoute) -> None:
        if not route.publish:
            raise NotAllowed(
                ResponseCode.NO_PERMISSION,
                f"topic {route.topic!r} has no writable queue at the moment: look at its brokers and permissions",
            )


@compiled
def sort_chunk(
    known: Mapping[str, MessageQueue],
    queue_of: Callable[[str | None], MessageQueue],
    chunk: Iterable[PendingMessage],
) -> dict[MessageQueue, list[PendingMessage]]:
    """The messages by queue. Calls `queue_of` once for each key that is not `known`, and for messages without one."""
    by_queue: dict[MessageQueue, list[PendingMessage]] = {}
    by_key: dict[str, list[PendingMessage]] = {}
    for message in chunk:
        key = message.key
        messages = None if key is None else by_key.get(key)
        if messages is None:
            queue = None if key is None else known.get(key)
            messages = by_queue.setdefault(queue_of(key) if queue is None else queue, [])
            if key is not None:
                by_key[key] = messages
        messages.append(message)
    return by_queue


def check_sendable(topic: str) -> str:
    """Returns the name if messages may be sent there; the broker's own topics are refused."""
    if topic in NOT_SENDABLE:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {topic} belongs to the broker: choose another name")
    return check_topic(topic)


def _named(route: TopicRoute, queue: int | MessageQueue) -> MessageQueue:
    for each in (*route.publish, *route.writable):
        if each == queue or each.queue_id == queue:
            return each
    raise InvalidOption(
        f"queue {queue} is none of the {len(route.publish)} queues of topic {route.topic!r}: pass the number of one, "
        f"counted from 0, or its MessageQueue"
    )
