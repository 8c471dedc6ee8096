"""From a send call to a parcel and its queue: everything that is decided before a message takes its place.

Mistakes of the caller end here, at call time: a missing key, a value that cannot be encoded, a body that no
broker takes. Afterwards a message holds a sequence number, and a failure would hold up the ones behind it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgspec

from lanemq._fast import compiled
from lanemq.client.codec import BytesCodec, JsonCodec, codec_named
from lanemq.client.identity import new_message_ids
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.requests import (
    NO_EXTRAS,
    PARCEL_OVERHEAD,
    Extras,
    Parcel,
    extras_of,
    maybe_compressed,
    properties_text,
)
from lanemq.client.producer.waiters import UNHEARD, Crowd, Ticket
from lanemq.client.routing import TopicRoute
from lanemq.core.sending.sharding import Selector, pick_queue, round_robin
from lanemq.model.errors import InvalidOption, MessageTooLarge, MissingKey, NotAllowed, TopicNotFound
from lanemq.model.names import NOT_SENDABLE, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.wire.codes import ResponseCode


class Outgoing(msgspec.Struct, frozen=True):
    """A message for `send_many` that is more than a key and a value."""

    value: Any
    key: str | int | None = None
    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] | None = None


RUN_MESSAGES, RUN_BYTES = 500, 1024 * 1024
"""How much `send_many` hands over at once: enough to fill batches, little enough to let others in between. Of a small
buffer no more than a quarter, so that the next run is packed while one is under way."""

MOST_QUICK_KEY = 7800
"""Longer keys may need a look at how long their properties get."""

KNOWN_KEYS = 16_384
"""Keys whose queue is remembered; beyond that they are forgotten all at once."""

Many = Iterable[tuple[str | int | None, Any] | Outgoing]

Keyed: TypeAlias = tuple[str | int | None, Parcel]

NOTHING: Any = object()
"""No message; None could be one that a caller passed by mistake."""

Tools: TypeAlias = tuple[
    Callable[[object], bytes], Callable[[], str], Callable[[int], NoReturn], type[Parcel], Any, tuple[int, int, bool]
]
"""Of `pack_pairs`: encode, next id, refuse a body, what to make, `NOTHING`; most messages, most bytes, bytes pass."""


@compiled
def pack_pairs(
    tools: Tools, source: Iterator[Any], ticket: Crowd, index: int, run: list[Keyed], room: int
) -> tuple[Any, Keyed | None, int]:
    """Packs pairs of a key and a value into `run`, until it is full, the source ends or something has failed.

    Says where it stopped: at a message that is no such pair, or at one that is packed and has no room any more. The
    last number is the room left. All steps in one loop, without a call per message: it is half of a producer's work.
    """
    encode, next_id, refuse, make, nothing, (most_messages, most_body, as_it_is) = tools
    errors = ticket.errors
    while len(run) < most_messages and not errors:
        message = next(source, nothing)
        if message is nothing:
            break
        if type(message) is not tuple or len(message) != 2:
            return message, None, room
        key, value = message
        if type(key) is not str or not 0 < len(key) <= MOST_QUICK_KEY or "\x01" in key or "\x02" in key:
            return message, None, room
        body = value if as_it_is and type(value) is bytes else encode(value)
        if type(body) is not bytes:
            return message, None, room
        size = len(body)
        if size > most_body:
            refuse(size)
        message_id = next_id()
        text = f"__SHARDINGKEY\x01{key}\x02UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
        weight = size + len(text) + PARCEL_OVERHEAD
        keyed = key, make(body, text, message_id, key, 0, False, False, ticket, index, weight)
        index += 1
        room -= size
        if room < 0:
            return nothing, keyed, room
        run.append(keyed)
    return nothing, None, room


class Packer:
    """Encodes values and names messages."""

    def __init__(self, options: ProducerOptions) -> None:
        codec = codec_named(options.codec)
        self.encode = codec.encode
        self.next_id = new_message_ids().next
        self._max_body_bytes = options.max_body_bytes
        self._compress_above = options.compress_above
        self.as_it_is = type(codec) in (BytesCodec, JsonCodec)
        """The codec leaves bytes alone."""
        self._run_bytes = min(RUN_BYTES, options.buffer_bytes // 4)
        limits = RUN_MESSAGES, options.max_body_bytes, self.as_it_is
        self._tools: Tools = self.encode, self.next_id, self._refuse_large, Parcel, NOTHING, limits

    def one(self, value: object, key: str | int | None, extras: Extras) -> Parcel:
        """A parcel of its own: it may be compressed or delayed."""
        parcel = self.plain(value, key, extras)
        if len(parcel.body) >= self._compress_above:
            parcel.body, parcel.sys_flag = maybe_compressed(parcel.body)
        if parcel.sys_flag or extras.delay_level:
            parcel.alone = True
        return parcel

    def plain(
        self,
        value: object,
        key: str | int | None,
        extras: Extras = NO_EXTRAS,
        ticket: Ticket = UNHEARD,
        index: int = 0,
    ) -> Parcel:
        """A parcel that may share a batch."""
        body = self.encode(value)
        if len(body) > self._max_body_bytes:
            self._refuse_large(len(body))
        message_id = self.next_id()
        text = key if key is None or isinstance(key, str) else str(key)
        properties = properties_text(text, message_id, extras)
        size = len(body) + len(properties) + PARCEL_OVERHEAD
        return Parcel(body, properties, message_id, text, 0, False, ticket is UNHEARD, ticket, index, size)

    def _refuse_large(self, size: int) -> NoReturn:
        raise MessageTooLarge(
            f"the body has {size} bytes, the limit is {self._max_body_bytes}: "
            f"keep large data elsewhere and send where it is"
        )

    def runs(self, messages: Many, ticket: Crowd) -> Iterator[list[Keyed]]:
        """Keys and parcels, numbered for the ticket that collects their receipts, some hundred at a time.

        Ends at the first failure: nothing is read any more, and what was read and not handed over is not sent.
        """
        source, run, room, before = iter(messages), list[Keyed](), self._run_bytes, 0
        while not ticket.errors:
            other, late, room = pack_pairs(self._tools, source, ticket, before + len(run), run, room)
            if other is not NOTHING:
                late = self._from(other, ticket, before + len(run))
                room -= len(late[1].body)
                if room >= 0:
                    run.append(late)
                    late = None
            elif late is None and len(run) < RUN_MESSAGES:
                break
            if late is not None or len(run) == RUN_MESSAGES:
                if run:
                    yield run
                before += len(run)
                run = [] if late is None else [late]
                room = self._run_bytes - sum([len(parcel.body) for _, parcel in run])
        if run and not ticket.errors:
            yield run

    def _from(self, message: tuple[str | int | None, Any] | Outgoing, ticket: Ticket, index: int) -> Keyed:
        if not isinstance(message, Outgoing):
            key, value = message
            return key, self.plain(value, key, NO_EXTRAS, ticket, index)
        extras = extras_of(message.tag, message.keys, message.properties, 0)
        return message.key, self.plain(message.value, message.key, extras, ticket, index)


class Choice(NamedTuple):
    """A send call's own wish where its message goes."""

    selector: Selector | None = None
    arg: object = None
    queue: int | MessageQueue | None = None


def choice_of(selector: Selector | None, arg: object, queue: int | MessageQueue | None) -> Choice | None:
    return None if selector is None and queue is None else Choice(selector, arg, queue)


@compiled
def sort_run(
    queue_of: Callable[[str | int | None], MessageQueue], run: Iterable[Keyed]
) -> dict[MessageQueue, list[Parcel]]:
    """The parcels by queue; a key that is text is asked for once."""
    placed: dict[MessageQueue, list[Parcel]] = {}
    known: dict[str, list[Parcel]] = {}
    for key, parcel in run:
        parcels = known.get(key) if type(key) is str else None
        if parcels is None:
            parcels = placed.setdefault(queue_of(key), [])
            if type(key) is str:
                known[key] = parcels
        parcels.append(parcel)
    return placed


class QueueChooser:
    """Which queue a message goes to."""

    def __init__(self) -> None:
        self._deal = round_robin(itertools.count())
        # The queues of recent keys, and the route they are true for; one tuple, so that both change at once.
        # Text only: 1, 1.0 and True are one key to a dict, and not to the hash.
        self._known: tuple[TopicRoute | None, dict[str, MessageQueue]] = (None, {})

    def choose(self, route: TopicRoute, message: object, key: str | int | None, choice: Choice) -> MessageQueue:
        """By explicit queue, selector, key or in turn, in this order; ordered topics know no "in turn"."""
        selector, arg, queue = choice
        if selector is None and queue is None:
            return self.by_key(route, key)
        self._check_not_moving(route)
        if queue is not None:
            return _named(route, queue)
        assert selector is not None
        chosen = selector(route.publish, message, key if arg is None else arg)
        if chosen not in route.publish:
            raise InvalidOption(f"the selector chose {chosen}, which is no queue of topic {route.topic!r}")
        return chosen

    def by_key(self, route: TopicRoute, key: str | int | None) -> MessageQueue:
        if key is None:
            if route.ordered:
                raise MissingKey(route.topic)
            self._check_writable(route)
            return self._deal(route.publish, None, None)
        of_route, known = self._known
        if of_route is route and type(key) is str:
            return known.get(key) or self._learn(known, key, pick_queue(key, route.publish))
        if route.provisional or not route.publish:
            self._check_not_moving(route)
        else:
            self._known = route, {}
        return pick_queue(key, route.publish)

    def _learn(self, known: dict[str, MessageQueue], key: str, queue: MessageQueue) -> MessageQueue:
        if len(known) >= KNOWN_KEYS:
            known.clear()
        known[key] = queue
        return queue

    def sort_out(self, route: TopicRoute, run: Iterable[Keyed]) -> dict[MessageQueue, list[Parcel]]:
        """The parcels of a run by queue, in order. All queues are chosen before any parcel takes its place."""
        return sort_run(partial(self.by_key, route), run)

    def _check_not_moving(self, route: TopicRoute) -> None:
        """A topic that comes into being on some of several brokers changes its list of queues, and keys move."""
        self._check_writable(route)
        if route.provisional and len(route.brokers) > 1:
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {route.topic!r} does not exist, and created by a send it would not keep keys in one queue "
                f"on {len(route.brokers)} brokers; create it first: lanemq topic create {route.topic} --ordered",
            )

    def _check_writable(self, route: TopicRoute) -> None:
        if not route.publish:
            raise NotAllowed(
                ResponseCode.NO_PERMISSION,
                f"topic {route.topic!r} has no writable queue at the moment: look at its brokers and permissions",
            )


def check_sendable(topic: str) -> str:
    """The name, if messages may be sent there; the broker's own topics are closed."""
    if topic in NOT_SENDABLE:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {topic} belongs to the broker: choose another name")
    return check_topic(topic)


def _named(route: TopicRoute, queue: int | MessageQueue) -> MessageQueue:
    for each in route.publish:
        if each == queue or each.queue_id == queue:
            return each
    raise InvalidOption(f"queue {queue} is none of the {len(route.publish)} queues of topic {route.topic!r}")
