"""From a send call to a request: encoding messages, building RocketMQ's send requests.

Mistakes of the caller are raised here, at call time: a missing key, a value that cannot be encoded, a text that UTF-8
cannot hold, a body that no broker takes. Later the message holds a sequence number, and its failure would affect the
messages behind it. So everything is validated and encoded here, and building a request cannot fail.

Invariant: a message means the same to every RocketMQ client. Its properties are those that RocketMQ's own producer
sets, plus LaneMQ's stamp. A request is built once per batch, and a repetition sends the same bytes, so that the broker
recognises it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypedDict

import msgspec

from lanemq._fast import compiled
from lanemq.client.codec import BytesCodec, JsonCodec, SendArgument, codec_named
from lanemq.client.identity import new_message_ids
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.waiters import NO_WAITER, BatchWaiter, Waiter
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.core.sending.sharding import Selector
from lanemq.model.checks import check_callable, check_kind
from lanemq.model.errors import CodecError, InvalidOption, MessageTooLarge
from lanemq.model.keys import Key, check_key_text, is_unicode, key_text
from lanemq.model.names import DEFAULT_TOPIC, INNER_PRODUCER_GROUP
from lanemq.model.queue import MessageQueue
from lanemq.model.wording import shown
from lanemq.wire.batch import BATCH_FRAME_BYTES, BATCH_HEAD, BATCH_LENGTH
from lanemq.wire.bodies import HeartbeatData, ProducerData
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib
from lanemq.wire.lane_fields import LANE_CLIENT
from lanemq.wire.properties import (
    LANE_STAMP,
    PropertyName,
    append_properties,
    check_properties_size,
    find_property,
)

COMPRESS_ABOVE = 4096
"""Bytes from which a single body is compressed with zlib (RocketMQ's DefaultMQProducer). Batches are not."""

MESSAGE_OVERHEAD = 100
"""Bytes that a message takes in a batch besides its body and properties: sizes, flags and stamp, rounded up."""

MAX_DELAY_LEVEL = 18
"""Delay levels 1 to 18 stand for 1 s to 2 h (MessageStoreConfig.messageDelayLevel); 0 means no delay."""

MAX_QUICK_TEXT, MAX_QUICK_KEY = 8000, 7800
"""Characters of properties, and of a key, that fit into a message's properties in any case, stamp included. The size of
longer ones is checked."""

CHUNK_MESSAGES, CHUNK_BYTES = 500, 1024 * 1024
"""How much `send_many` hands over at once: enough to fill batches, little enough to let other callers in between. At
most a quarter of the buffer, so that the next chunk is packed while one is under way."""

GATHERED_PER_QUEUE = 128
"""Messages per queue of a topic that `send_many` hands over at once, where that is more than a chunk. A request costs
far more than a message."""

STAMP_BYTES = 128
"""Room that the properties leave for the stamp, which is added when the message gets its sequence number."""

_RESERVED = frozenset(
    {
        PropertyName.KEYS,
        PropertyName.TAGS,
        PropertyName.WAIT,
        PropertyName.DELAY,
        PropertyName.UNIQUE_ID,
        PropertyName.KEY,
        LANE_STAMP,
    }
)


class PendingMessage(msgspec.Struct, gc=False):
    """One encoded message on its way to the broker. `RequestBuilder` adds the stamp.

    Nothing it refers to refers back, so the garbage collector need not track it.
    """

    body: bytes
    properties: str
    message_id: str
    key: str | None = None
    sys_flag: int = 0
    alone: bool = False
    """It cannot share a batch, because it is compressed or delayed."""
    sender_waits: bool = True
    """The sender learns of a failure before it sends anything else, or does not want to know (`send_oneway`). False for
    `submit`, and for `send_many`, which hands over more messages before it returns."""
    waiter: Waiter = NO_WAITER
    index: int = 0
    """Its number among the messages of its call."""
    size: int = 0
    """Bytes in the buffer and in a batch, including `MESSAGE_OVERHEAD`."""


class Outgoing(SendArgument, frozen=True):
    """A message for `send_many` that is more than a key and a value."""

    value: Any
    key: Key | None = None
    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] | None = None


Many: TypeAlias = Iterable[tuple[Key | None, Any] | Outgoing]
"""What `send_many` takes."""


class MessageArguments(TypedDict, total=False):
    """The optional parts of a message."""

    tag: str | None
    """A word by which consumers can filter."""
    keys: Sequence[str] | str
    """Words under which the message can be searched; not the key that orders it."""
    properties: Mapping[str, str] | None
    """Any further names and values."""


class SendArguments(MessageArguments, total=False):
    """The optional arguments of `send`, `submit` and `send_oneway`, besides `key`."""

    message_id: str | None
    """The id of a message that has one already, because a program passes it on. Brokers do not compare ids."""

    delay_level: int
    """1 to 18 delays delivery by 1 s to 2 h, as RocketMQ's levels do; 0 does not."""
    selector: Selector | None
    """Chooses the queue instead of the key's hash."""
    arg: object
    """Passed to the selector; the key if it is None."""
    queue: int | MessageQueue | None
    """The queue itself; wins over selector and key."""


class QueueChoice(NamedTuple):
    """A send call's own choice of a queue."""

    selector: Selector | None = None
    arg: object = None
    queue: int | MessageQueue | None = None


class Extras(msgspec.Struct, frozen=True):
    """The optional parts of a message, complete."""

    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    message_id: str | None = None


NO_EXTRAS = Extras()


def extras_of(
    tag: str | None,
    keys: Sequence[str] | str,
    properties: Mapping[str, str] | None,
    delay_level: int,
    message_id: str | None = None,
) -> Extras:
    if tag is None and not keys and not properties and not delay_level and message_id is None:
        return NO_EXTRAS
    return Extras(tag, keys, properties, delay_level, message_id)


def split_arguments(
    tag: str | None = None,
    keys: Sequence[str] | str = (),
    properties: Mapping[str, str] | None = None,
    delay_level: int = 0,
    selector: Selector | None = None,
    arg: object = None,
    queue: int | MessageQueue | None = None,
    message_id: str | None = None,
) -> tuple[Extras, QueueChoice | None]:
    """The arguments of a send call: those of the message, and those that choose its queue."""
    if selector is not None:
        check_callable("selector", selector)
    choice = None if selector is None and queue is None else QueueChoice(selector, arg, queue)
    return extras_of(tag, keys, properties, delay_level, message_id), choice


def _checked(arguments: SendArguments) -> tuple[Extras, QueueChoice | None]:
    unknown = sorted(arguments.keys() - SendArguments.__optional_keys__)
    if unknown:
        known = ", ".join(sorted(SendArguments.__optional_keys__))
        raise InvalidOption(f"a send call has no argument {unknown[0]!r}: there are key, {known}")
    return split_arguments(**arguments)


_NO_ARGUMENTS: tuple[Extras, QueueChoice | None] = NO_EXTRAS, None


def delay_of(message: PendingMessage) -> int:
    """The delay level of a message; 0 for none."""
    return int(find_property(message.properties, PropertyName.DELAY) or 0) if message.alone else 0


def refuse_delay(route: TopicRoute, message: PendingMessage) -> None:
    """Raises `InvalidOption` for a delayed message to an ordered topic: later messages of its key would overtake it."""
    if route.ordered and delay_of(message):
        raise InvalidOption(
            f"topic {route.topic!r} is ordered: later messages of key {message.key!r} would overtake a delayed one; "
            f"send it without delay_level, or to a topic that is not ordered"
        )


@compiled
def total_size(messages: Iterable[PendingMessage]) -> int:
    return sum([message.size for message in messages])


def batch_weights(messages: Iterable[PendingMessage], too_large: int) -> list[int]:
    """What each message takes of a batch. One that cannot share weighs more than a batch, so it travels alone."""
    return [too_large if message.alone else message.size for message in messages]


# encoding

NOTHING: Any = object()
"""No message. None will not do: a caller may pass it by mistake."""

PackingTools: TypeAlias = tuple[
    Callable[[object], bytes],
    Callable[[], str],
    Callable[[int], NoReturn],
    type[PendingMessage],
    Any,
    tuple[int, int, bool],
]
"""What `pack_pairs` needs: encode, next id, refuse a body, message class, `NOTHING`; and (max messages, max body bytes,
whether bytes are sent as they are)."""


class Packer:
    """Encodes values and gives messages their ids."""

    def __init__(self, options: ProducerOptions) -> None:
        codec = codec_named(options.codec)
        self.encode = codec.encode
        self.next_id = new_message_ids().next
        self._max_body_bytes = options.max_body_bytes
        self.passes_bytes = type(codec) in (BytesCodec, JsonCodec)
        """The codec returns bytes unchanged."""
        self._chunk_bytes = min(CHUNK_BYTES, options.buffer_bytes // 4)
        limits = CHUNK_MESSAGES, options.max_body_bytes, self.passes_bytes
        self._tools: PackingTools = self.encode, self.next_id, self._refuse_large, PendingMessage, NOTHING, limits

    def one(
        self, value: object, key: Key | None, arguments: SendArguments, waiter: Waiter, *, sender_waits: bool
    ) -> tuple[PendingMessage, QueueChoice | None]:
        """The message of a call that sends one (it may be compressed or delayed), and how the call chose a queue."""
        extras, choice = _checked(arguments) if arguments else _NO_ARGUMENTS
        body, message_id, text = self._encode(value), _id_of(extras) or self.next_id(), text_of(key)
        properties = properties_text(text, message_id, extras)
        size, sys_flag = len(body) + len(properties) + MESSAGE_OVERHEAD, 0
        if len(body) >= COMPRESS_ABOVE:
            body, sys_flag = maybe_compressed(body)
        alone = bool(sys_flag or extras.delay_level)
        return PendingMessage(
            body, properties, message_id, text, sys_flag, alone, sender_waits, waiter, 0, size
        ), choice

    def of_many(
        self, value: object, key: Key | None, extras: Extras, waiter: BatchWaiter, index: int
    ) -> PendingMessage:
        """A message of `send_many`; it shares a batch with others."""
        body, message_id, text = self._encode(value), self.next_id(), text_of(key)
        properties = properties_text(text, message_id, extras)
        size = len(body) + len(properties) + MESSAGE_OVERHEAD
        return PendingMessage(body, properties, message_id, text, 0, False, False, waiter, index, size)

    def _encode(self, value: object) -> bytes:
        body = self.encode(value)
        if type(body) is not bytes:
            body = _as_bytes(body)
        if len(body) > self._max_body_bytes:
            self._refuse_large(len(body))
        return body

    def chunks(self, messages: Many, waiter: BatchWaiter) -> Iterator[list[PendingMessage]]:
        """The messages of `send_many`, encoded, some hundred at a time, numbered for their waiter.

        Ends at the first failure: nothing more is read, and messages read but not yet yielded are not sent.
        """
        if not isinstance(messages, Iterable):
            raise InvalidOption(f"the messages of send_many are {_form_of(messages)}")
        source, chunk, room, before = iter(messages), list[PendingMessage](), self._chunk_bytes, 0
        while not waiter.errors:
            other, late, room = pack_pairs(self._tools, source, waiter, before + len(chunk), chunk, room)
            if other is not NOTHING:
                late = self._from(other, waiter, before + len(chunk))
                room -= len(late.body)
                if room >= 0:
                    chunk.append(late)
                    late = None
            elif late is None and len(chunk) < CHUNK_MESSAGES:
                break
            if late is not None or len(chunk) == CHUNK_MESSAGES:
                if chunk:
                    yield chunk
                before += len(chunk)
                chunk = [] if late is None else [late]
                room = self._chunk_bytes - sum([len(message.body) for message in chunk])
        if chunk and not waiter.errors:
            yield chunk

    def _from(self, given: object, waiter: BatchWaiter, index: int) -> PendingMessage:
        if isinstance(given, Outgoing):
            extras = extras_of(given.tag, given.keys, given.properties, 0)
            return self.of_many(given.value, given.key, extras, waiter, index)
        if isinstance(given, tuple | list) and len(given) == 2:
            key, value = given
            return self.of_many(value, key, NO_EXTRAS, waiter, index)
        raise InvalidOption(f"message {index} of send_many is {_form_of(given)}")

    def _refuse_large(self, size: int) -> NoReturn:
        raise MessageTooLarge(
            f"the body has {size} bytes, the limit is {self._max_body_bytes}: "
            f"keep large data elsewhere and send where it is"
        )


def gathered(
    chunks: Iterator[list[PendingMessage]],
    waiter: BatchWaiter,
    wanted: Callable[[], int],
    max_bytes: int,
    max_ms: Callable[[], int],
    clock: Clock,
) -> Iterator[list[PendingMessage]]:
    """Joins chunks until they have `wanted` messages or `max_bytes`, or until `max_ms` have passed.

    With many queues, one chunk would have a message or two for each of them. If reading fails, what was read before is
    still yielded; after a failed message, nothing is.
    """
    whole, size, began = list[PendingMessage](), 0, clock.now()
    while True:
        try:
            chunk = next(chunks, None)
        except BaseException:
            if whole:
                yield whole
            raise
        if chunk is None:
            break
        whole += chunk
        size += total_size(chunk)
        if len(whole) >= wanted() or size >= max_bytes or clock.now() - began >= max_ms():
            yield whole
            whole, size, began = [], 0, clock.now()
    if whole and not waiter.errors:
        yield whole


@compiled
def pack_pairs(
    tools: PackingTools, source: Iterator[Any], waiter: BatchWaiter, index: int, chunk: list[PendingMessage], room: int
) -> tuple[Any, PendingMessage | None, int]:
    """Packs pairs of a key and a value into `chunk` until it is full, the source ends or a message has failed.

    Returns where it stopped: at an item that is not such a pair, or at a packed message that no longer fits; the last
    number is the room left. One loop without a call per message, because it is half of a producer's work.
    """
    encode, next_id, refuse, make, nothing, (max_messages, max_body, passes_bytes) = tools
    errors = waiter.errors
    while len(chunk) < max_messages and not errors:
        given = next(source, nothing)
        if given is nothing:
            break
        if type(given) is not tuple or len(given) != 2:
            return given, None, room
        key, value = given
        if type(key) is not str and key is not None:
            key = key_text(key)
        if key is None or not 0 < len(key) <= MAX_QUICK_KEY or "\x01" in key or "\x02" in key or not is_unicode(key):
            return given, None, room
        body = value if passes_bytes and type(value) is bytes else encode(value)
        if type(body) is not bytes:
            return given, None, room
        size = len(body)
        if size > max_body:
            refuse(size)
        message_id = next_id()
        text = properties_text(key, message_id)
        weight = size + len(text) + MESSAGE_OVERHEAD
        message = make(body, text, message_id, key, 0, False, False, waiter, index, weight)
        index += 1
        room -= size
        if room < 0:
            return nothing, message, room
        chunk.append(message)
    return nothing, None, room


def text_of(key: Key | None) -> str | None:
    """The normal form of a key; a text is checked with the other properties."""
    return key if key is None or type(key) is str else key_text(key)


def properties_text(key: str | None, message_id: str, extras: Extras = NO_EXTRAS) -> str:
    """A message's properties as RocketMQ's producer sets them, without the stamp."""
    if key is None:
        text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    else:
        check_key_text(key)
        text = f"__SHARDINGKEY\x01{key}\x02UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    if extras is NO_EXTRAS:
        if len(text) > MAX_QUICK_TEXT:
            check_properties_size(text, STAMP_BYTES)
        return text
    text = append_properties(text, _extra_properties(extras))
    check_properties_size(text, STAMP_BYTES)
    return text


def _id_of(extras: Extras) -> str | None:
    """The id that the message has already."""
    if extras.message_id is not None:
        _check_texts("message_id", (extras.message_id,))
    return extras.message_id


def _extra_properties(extras: Extras) -> dict[str, str]:
    if extras.properties is not None:
        check_kind("properties", extras.properties, Mapping, "a mapping of names to texts")
    properties = dict(extras.properties or {})
    taken = _RESERVED & properties.keys()
    if taken:
        raise InvalidOption(f"property {min(taken)} is set by LaneMQ: use the argument made for it, or another name")
    _check_texts("property", (*properties, *properties.values()))
    if extras.tag is not None:
        _check_texts("tag", (extras.tag,))
        properties[PropertyName.TAGS] = extras.tag
    if extras.keys:
        check_kind("keys", extras.keys, Iterable, "text, or a list of texts")
        keys = (extras.keys,) if isinstance(extras.keys, str) else tuple(extras.keys)
        _check_texts("keys", keys)
        properties[PropertyName.KEYS] = " ".join(keys)
    delay = extras.delay_level
    if type(delay) is not int or not 0 <= delay <= MAX_DELAY_LEVEL:
        raise InvalidOption(f"delay_level is {shown(delay)}, use 0 (none) to {MAX_DELAY_LEVEL} (2 hours)")
    if delay:
        properties[PropertyName.DELAY] = str(delay)
    return properties


def _check_texts(what: str, texts: Iterable[object]) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise InvalidOption(f"{what} {shown(text)} is not text: pass str(...) of it")
        if (what == "tag" and not text) or (what != "property" and ("\x01" in text or "\x02" in text)):
            raise InvalidOption(f"{what} {shown(text)} is not allowed: it is empty or contains 0x01 or 0x02")
        if not is_unicode(text):
            raise InvalidOption(
                f"{what} {shown(text)} is not allowed: it contains half of a surrogate pair, which UTF-8 cannot encode"
            )


def _as_bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise CodecError(f"the codec returned {type(body).__name__} for a value: its encode must return bytes")


def _form_of(given: object) -> str:
    """What a message of `send_many` is instead of a pair, and how to write it."""
    if isinstance(given, Mapping):
        first = next(iter(given), "id")
        right = f"send_many(topic, [(row[{first!r}], row) for row in rows])"
    else:
        right = "send_many(topic, [(key, value), ...])"
    return f"{type(given).__name__!r}, not a pair of key and value: write {right}, or Outgoing(value, key=...)"


def maybe_compressed(body: bytes) -> tuple[bytes, int]:
    """Body and sys flag to send: compressed if that is smaller."""
    packed = compress_zlib(body)
    return (packed, ZLIB_SYS_FLAG) if len(packed) < len(body) else (body, 0)


# building requests


class RequestBuilder:
    """Builds the send requests of one producer: 310 for one message, 320 for a batch."""

    def __init__(self, group: str, client_id: str, producer_id: str) -> None:
        self._group = group
        self._client_id = client_id
        self._producer_id = producer_id

    def send(
        self,
        queue: MessageQueue,
        messages: Sequence[PendingMessage],
        *,
        epoch: int,
        sequence: int,
        born: int,
        creates: bool = True,
    ) -> Command:
        """One request for messages with consecutive sequences. If there are several, none of them is `alone`.

        `creates`: the broker may create the topic. False if the topic is known to exist: had it been deleted, an
        ordered topic would silently come back unordered.
        """
        stamp = f"{LANE_STAMP}\x01{self._producer_id}.{epoch}."
        if len(messages) == 1:
            message = messages[0]
            text = f"{message.properties}{stamp}{sequence}\x02"
            ext = self._ext(queue, message.sys_flag, born, text, creates)
            return Command(RequestCode.SEND_MESSAGE_V2, 0, ext=ext, body=message.body)
        body = batch_body(messages, stamp, sequence)
        ext = self._ext(queue, 0, born, "", creates)  # properties here would be added to every message
        ext["m"] = "true"
        return Command(RequestCode.SEND_BATCH_MESSAGE, 0, ext=ext, body=body)

    def _ext(self, queue: MessageQueue, sys_flag: int, born: int, properties: str, creates: bool) -> dict[str, str]:
        return {
            "a": self._group,
            "b": queue.topic,
            "c": DEFAULT_TOPIC if creates else "",
            "d": "4",
            "e": str(queue.queue_id),
            "f": str(sys_flag),
            "g": str(born),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "n": queue.broker,
            LANE_CLIENT: self._client_id,
        }


@compiled
def batch_body(messages: Sequence[PendingMessage], stamp: str, sequence: int) -> bytes:
    """The body of a batch request: each message with its stamp."""
    parts: list[bytes] = []
    frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # most messages have the same sizes as another one
    for number, message in enumerate(messages, sequence):
        body, text = message.body, f"{message.properties}{stamp}{number}\x02".encode()
        sizes = len(body), len(text)
        frame = frames.get(sizes)
        if frame is None:
            frame = frames[sizes] = _frame(*sizes)
        parts += (frame[0], body, frame[1], text)
    return b"".join(parts)


def _frame(size: int, length: int) -> tuple[bytes, bytes]:
    """What precedes a body of `size` bytes, and what stands between it and properties of `length` bytes."""
    return BATCH_HEAD.pack(BATCH_FRAME_BYTES + size + length, 0, 0, 0, size), BATCH_LENGTH.pack(length)


def heartbeat(client_id: str, group: str) -> Command:
    """The heartbeat of a producer. Like RocketMQ's clients, it names the inner producer group too."""
    groups = [ProducerData(group_name=group), ProducerData(group_name=INNER_PRODUCER_GROUP)]
    body = HeartbeatData(client_id=client_id, producer_data_set=groups).encode()
    return Command(RequestCode.HEART_BEAT, 0, body=body)
