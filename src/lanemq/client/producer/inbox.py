"""The line through which plain messages go to their senders, and in which they wait while the broker is busy.

`send` and `submit` do what their caller must learn at once (encode the value, check the size, assign the id) and leave
the message here, without the producer's lock. Whoever has the lock then moves everything to the senders, in one
`SendEngine.accept`. `send` tries to at once; on an event loop, the next iteration does so for all tasks together.
A message of `submit` that finds earlier ones unanswered would only wait behind them: the next reply moves it, or the
next call that takes the lock.

With many queues, each reply would find a message or two for each of them, and a request costs far more than a message.
So while the broker has many requests to answer, a reply leaves the messages where they are (`is_due`).

A message whose thread finds the lock taken waits here, too (`leave`): by another thread, or by its own, because a
finalizer or a signal handler sends it in the middle of the producer's work. The thread that has the lock moves it.

Invariants: there is one line for all topics, and whoever brings other messages moves the line first, so no message
overtakes another. The inbox is open only while the buffer has room for a full one, so the buffer never overflows. No
message is left behind: a caller that leaves one looks afterwards whether a reply is expected, and a reply is counted
before it looks into the inbox. A thread that leaves a message without such a reply sets `must_move` and then tries the
lock; a thread that releases the lock looks at `must_move` afterwards.
"""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from lanemq._fast import compiled
from lanemq.client.producer.batches import COMPRESS_ABOVE, MESSAGE_OVERHEAD, Packer, PendingMessage, properties_text
from lanemq.client.producer.engine import Actions, SendEngine
from lanemq.client.producer.freezes import Sender
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import NotStored
from lanemq.client.topic_route import TopicRoute
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import Closed
from lanemq.model.keys import Key, is_unicode, key_text

MAX_MESSAGES = 4096
"""In a full inbox, if they are small. Fewer: a caller that is quicker than the replies finds it full more often, and
that call takes the lock. More: so many are handed over at once that the broker waits for them."""

MESSAGES_PER_QUEUE = 64
"""Messages for each queue of a topic, where that is more: a request to a queue is worth its cost then."""

MAX_BODY_BYTES, MAX_KEY = 4096, 250
"""Larger messages do not use the inbox, so that a full one is small beside the buffer."""

_MAX_SIZE = MAX_BODY_BYTES + 4 * MAX_KEY + 2 * MESSAGE_OVERHEAD

MIN_BYTES, MAX_BYTES = 1024 * _MAX_SIZE, 16 * 1024 * 1024
"""Bytes of a full inbox: a quarter of the buffer, but not less and not more than this."""

MIN_FREE_SHARE = 3
"""A buffer that leaves less than three times a full inbox free is used to its end, without the inbox, rather than be
left empty for a good part."""

FEW_REQUESTS = 16
"""While the broker has no more requests to answer than this, every reply empties the inbox."""

MAX_HELD_MS = 100
"""How long messages stay in the inbox at most while replies come in."""

KNOWN_KEYS, KNOWN_TOPICS = 16_384, 256
"""Keys of a topic whose queue is remembered, and topics; when they are more, all are forgotten at once."""


class SendInbox:
    """The inbox of one producer. All methods but `take`, `leave` and `forget` are called under the engine's lock."""

    must_move = False
    """Messages are in line for which perhaps no reply will come."""

    def __init__(
        self,
        options: ProducerOptions,
        engine: SendEngine,
        packer: Packer,
        new_future: Callable[[], Any],
    ) -> None:
        max_body = min(MAX_BODY_BYTES, COMPRESS_ABOVE - 1, options.max_body_bytes)
        max_bytes = max(MIN_BYTES, min(MAX_BYTES, options.buffer_bytes // 4))
        self._engine = engine
        self._intake = Intake(packer.encode, packer.next_id, new_future, max_body, packer.passes_bytes)
        self._intake.max_bytes = max_bytes - _MAX_SIZE
        self._free = options.buffer_bytes - max_bytes
        self.full_at = self._free if self._free >= MIN_FREE_SHARE * max_bytes else options.buffer_bytes
        """Bytes in the buffer at which calls that send one message wait. Above it the inbox is closed, and every
        message would need the lock; so the last part of a large buffer is left to the inbox."""
        self.take = self._intake.take
        # What `move` hands to the engine, until the engine has it.
        self._moving: dict[Sender, Sequence[PendingMessage]] = {}
        # Requests to answer at which a reply empties the inbox, and when it was emptied last.
        self._few, self._moved_at = FEW_REQUESTS, 0

    def __len__(self) -> int:
        return len(self._intake)

    @property
    def bytes(self) -> int:
        """Of the messages in line. Not exact if threads meet here."""
        return self._intake.bytes

    def leave(self, sender: Sender, message: PendingMessage) -> None:
        """Puts any message in line, without the lock; the caller sees to it that it is moved."""
        self._intake.put(sender, message)

    def adjust(self, may_open: bool, buffered_bytes: int) -> None:
        """Opens the inbox if it may be and the buffer has room for a full one, else closes it."""
        self._intake.open = may_open and buffered_bytes <= self._free

    def forget(self, topic: str) -> None:
        """A broker contradicted the route of this topic: its next message asks for the route. Without the lock."""
        self._intake.topics.pop(topic, None)

    def learn(self, route: TopicRoute) -> None:
        """Lets later messages of this topic in, unless it does not exist yet, has no queue, or keys would move.

        Called for messages that did not use the inbox.
        """
        topics = self._intake.topics
        known = topics.get(route.topic)
        if route.provisional or not route.publish or route.moved:
            topics.pop(route.topic, None)
        elif known is None or known.route is not route:
            if len(topics) >= KNOWN_TOPICS:
                topics.clear()
            topics[route.topic] = KeySenders(route, self._engine)
            most_queues = max([len(senders.route.publish) for senders in topics.values()])
            self._intake.max_messages = max(MAX_MESSAGES, MESSAGES_PER_QUEUE * most_queues)

    def forget_old(self, cached: Callable[[str], TopicRoute | None]) -> None:
        """Removes topics whose route has to be asked for again, which only a call without the inbox does."""
        topics = self._intake.topics
        for topic in [topic for topic, senders in topics.items() if cached(topic) is not senders.route]:
            del topics[topic]

    def is_due(self, unanswered: int, now: Callable[[], int]) -> bool:
        """Whether a reply empties the inbox, with so many requests left to answer.

        It does not while the broker still has to answer most of the requests that the last emptying made: more messages
        gather here, and the next requests are larger. Every one of those requests is answered or fails, so the inbox
        does not wait in vain.
        """
        if not self:
            return False
        return unanswered <= self._few or now() - self._moved_at >= MAX_HELD_MS

    def move(self, others: Mapping[Sender, Sequence[PendingMessage]], now: int) -> Actions:
        """Hands everything in line to the engine, and these messages behind it."""
        self.must_move = False
        moving = self._moving = self._intake.take_out()
        for sender, messages in others.items():
            moving[sender] = [*moving[sender], *messages] if sender in moving else messages
        actions = self._engine.accept(moving)
        self._moving = {}
        self._few, self._moved_at = max(FEW_REQUESTS, len(actions.requests) // 4), now
        return actions

    def left_over(self, in_senders: Container[int] = ()) -> list[NotStored]:
        """Messages whose move was interrupted, except those that a sender has, given by `id`; and those in line."""
        moving, self._moving = self._moving, {}
        taken = [each for line in (moving, self._intake.take_out()) for messages in line.values() for each in messages]
        left = [*{id(each): each for each in taken if id(each) not in in_senders}.values()]
        error = Closed("the producer was interrupted before it sent the message, and closed: it is not stored")
        return [NotStored(left, error)] if left else []


@compiled
class Intake:
    """The line of messages itself. `take` needs no lock: appending to the line is one step."""

    def __init__(
        self,
        encode: Callable[[object], bytes],
        next_id: Callable[[], str],
        new_future: Callable[[], Any],
        max_body: int,
        passes_bytes: bool,
    ) -> None:
        self.topics: dict[str, KeySenders] = {}
        self.open = False
        self.max_messages, self.max_bytes = MAX_MESSAGES, MIN_BYTES
        self._encode, self._next_id, self._new_future = encode, next_id, new_future
        self._max_body, self._passes_bytes = max_body, passes_bytes
        self._line: deque[tuple[Sender, PendingMessage]] = deque()
        self.bytes = 0
        """Of the line. Not exact if threads meet here; it begins anew whenever the line is taken out."""

    def take(self, topic: str, key: Key, value: object, waiter: Any = None) -> Any:
        """The waiter of a message that is in the line now, a new future if none is given; None if it cannot use the
        inbox."""
        if type(key) is not str:
            key = key_text(key)
        senders = self.topics.get(topic) if type(topic) is str else None
        if senders is None or not self.open or len(self._line) >= self.max_messages or self.bytes > self.max_bytes:
            return None
        sender = senders.get(key) or senders.find(key)
        body = value if self._passes_bytes and type(value) is bytes else self._encode(value)
        if sender is None or type(body) is not bytes or len(body) > self._max_body:
            return None
        if waiter is None:
            waiter = self._new_future()
        message_id = self._next_id()
        text = properties_text(key, message_id)
        size = len(body) + len(text) + MESSAGE_OVERHEAD
        self.put(sender, PendingMessage(body, text, message_id, key, 0, False, False, waiter, 0, size))
        return waiter

    def put(self, sender: Sender, message: PendingMessage) -> None:
        """Puts any message in line."""
        self._line.append((sender, message))
        self.bytes += message.size

    def __len__(self) -> int:
        return len(self._line)

    def take_out(self) -> dict[Sender, Sequence[PendingMessage]]:
        """Everything in the line, by sender and in order. For one thread at a time."""
        by_sender: dict[Sender, Any] = {}
        self.bytes = 0
        for _ in range(len(self._line)):
            sender, message = self._line.popleft()
            by_sender.setdefault(sender, []).append(message)
        return by_sender


class KeySenders(dict[str, Sender]):
    """The senders of a topic's keys, valid for one route. Unusual keys have none."""

    def __init__(self, route: TopicRoute, engine: SendEngine) -> None:
        super().__init__()
        self.route = route
        self._by_queue = {queue: engine.sender_for(queue, route) for queue in route.publish}

    def find(self, key: str) -> Sender | None:
        """The sender of a key that is not known yet; None if the key does not fit the inbox."""
        if not 0 < len(key) <= MAX_KEY or "\x01" in key or "\x02" in key or not is_unicode(key):
            return None
        if len(self) >= KNOWN_KEYS:
            self.clear()
        sender = self[key] = self._by_queue[pick_queue(key, self.route.publish)]
        return sender
