"""The message that a handler gets, parsed on demand.

A consumer creates hundreds of thousands of messages a second and reads few fields of each, so a message is only a
position in the bytes of a pull. The fields that the scheduler needs (`queue_offset`, `size`) are read at once, the
others when they are accessed. `MessageBase` has those that nearly every handler reads; its compiled twin takes them
straight from the bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from struct import Struct
from typing import Any, TypeVar

from lanemq._fast import compiled
from lanemq.client.codec import Codec, codec_named
from lanemq.clock import wall_time
from lanemq.model.checks import check_kind, check_text, check_whole
from lanemq.model.errors import CodecError, InvalidOption, RemoteProtocolError, Undecodable
from lanemq.model.keys import Key, is_unicode, key_text
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Epoch, QueueOffset
from lanemq.model.wording import shown
from lanemq.wire.compression import decompress, decompress_start
from lanemq.wire.properties import PropertyName, encode_properties, find_property, find_stamp
from lanemq.wire.record import (
    BORN_HOST_V6,
    COMPRESSED,
    HEAD_BYTES,
    MAGIC_V1,
    NO_HOST,
    STORE_HOST_V6,
    RecordView,
    body_crc,
    build_tail,
    encode_offset_id,
    record_starts,
    seal_record,
)

T = TypeVar("T")

_SIZE_AND_OFFSET = Struct(">i16xq").unpack_from
_INT = Struct(">i").unpack_from
_SHORT = Struct(">h").unpack_from
_KEY_NAME = PropertyName.KEY.encode() + b"\x01"
_ENTRY_END = 2
_PLAIN_MAGIC = MAGIC_V1 & 0xFF
_V6_HOSTS = BORN_HOST_V6 | STORE_HOST_V6
_UNREAD: Any = object()
MAX_FAKE_NUMBER = 2**31 - 1
"""The largest queue, offset and attempt of a fake message."""


class MessageSource:
    """What all messages share that were read from one queue under one lease."""

    __slots__ = ("codec", "epoch", "group", "in_order", "is_retry", "overtaken", "queue")

    def __init__(
        self,
        queue: MessageQueue,
        codec: Codec,
        epoch: Epoch,
        *,
        group: str = "",
        in_order: bool = False,
        overtaken: bool = False,
    ) -> None:
        self.queue = queue
        self.codec = codec
        self.epoch = epoch
        self.group = group
        """Empty if no consumer read them."""
        self.in_order = in_order
        """Whether the handler gets the messages of a key one after the other."""
        self.overtaken = overtaken
        """Whether they come from a lane that was set aside when an owner that does not know lanes had the queue."""
        self.is_retry = queue.topic.startswith(RETRY_PREFIX)

    def of_overtaken_lane(self) -> "MessageSource":
        """The same source, for messages of a lane whose newer messages may have run before."""
        return MessageSource(
            self.queue, self.codec, self.epoch, group=self.group, in_order=self.in_order, overtaken=True
        )


@compiled
class MessageProperties(Mapping[str, str]):
    """The properties of a message. The compiled twin finds a single one without decoding the others."""

    __slots__ = ("_record",)

    def __init__(self, record: RecordView) -> None:
        self._record = record

    def __getitem__(self, name: str) -> str:
        return self._record.properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._record.properties)

    def __len__(self) -> int:
        return len(self._record.properties)

    def __repr__(self) -> str:
        return repr(self._record.properties)


@compiled
class MessageBase:
    """A position in the bytes of a pull, and the fields that lanes and most handlers need."""

    __slots__ = ("_buffer", "_key", "_source", "_start", "_view", "queue_offset", "retried_here", "size")

    def __init__(self, source: MessageSource, buffer: bytes, start: int) -> None:
        self.size, self.queue_offset = _SIZE_AND_OFFSET(buffer, start)
        self.retried_here = 0
        self._source = source
        self._buffer = buffer
        self._start = start
        self._view: RecordView | None = None
        self._key: str | None = _UNREAD

    @property
    def key(self) -> str | None:
        """The key, which decides its lane; None if it was sent without one."""
        if self._key is _UNREAD:
            self._key = find_key(self._buffer, self._start)
        return self._key

    @property
    def offset(self) -> QueueOffset:
        """Its offset in the queue."""
        return QueueOffset(self.queue_offset)

    @property
    def queue(self) -> MessageQueue:
        return self._source.queue

    @property
    def body(self) -> bytes:
        """The bytes as the producer sent them, decompressed."""
        record = self.record
        flag, body = record.sys_flag, record.body
        return decompress(flag, body) if flag & COMPRESSED else body

    @property
    def properties(self) -> Mapping[str, str]:
        return MessageProperties(self.record)

    @property
    def record(self) -> RecordView:
        """The stored record itself, for fields that have no property here."""
        view = self._view
        if view is None:
            view = self._view = RecordView(self._buffer, self._start)
        return view


class Message(MessageBase):
    """One message of one queue."""

    __slots__ = ()

    @classmethod
    def fake(
        cls,
        value: object = None,
        *,
        key: Key | None = None,
        topic: str = "test",
        queue: int = 0,
        offset: int = 0,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        attempt: int = 1,
        group: str = "",
        codec: str | Codec = "json",
        sent_at: datetime | None = None,
        broker: str = "fake",
    ) -> "Message":
        """A message as a consumer would get it, for tests of handlers. No broker is involved.

        `value` is encoded by the codec, as `Producer.send` does. `sent_at` is the time of sending and storing. To
        `once`, messages with another `broker` are from another queue: tests that share a database use a name each.
        """
        check_text("group", group)
        check_text("broker", broker)
        for name, number, least in (("queue", queue, 0), ("offset", offset, 0), ("attempt", attempt, 1)):
            check_whole(name, number, least)
            if number > MAX_FAKE_NUMBER:
                raise InvalidOption(f"{name}={number} is too large for a message: use at most {MAX_FAKE_NUMBER}")
        check_kind("keys", keys, Sequence, "text, or a list of texts")
        keys = (keys,) if isinstance(keys, str) else keys
        check_kind("properties", properties or {}, Mapping, "a mapping of names to texts")
        for name, texts in (
            ("topic", [topic]),
            ("tag", [tag or ""]),
            ("keys", keys),
            ("property", [*(properties or {}).values()]),
        ):
            for each in texts:
                check_text(name, each)
                if not is_unicode(each):
                    raise InvalidOption(
                        f"{name}={shown(each)} contains half of a surrogate pair: UTF-8 cannot encode it"
                    )
        if sent_at is not None:
            check_kind("sent_at", sent_at, datetime, "a datetime")
        text = None if key is None else key_text(key)
        named = {PropertyName.KEY: text, PropertyName.TAGS: tag, PropertyName.KEYS: " ".join(keys) or None}
        all_properties = {**(properties or {}), **{name: entry for name, entry in named.items() if entry is not None}}
        all_properties.setdefault(PropertyName.UNIQUE_ID, f"FAKE{queue:04X}{offset:024X}")
        using = codec_named(codec)
        body = using.encode(value)
        at = 0 if sent_at is None else round(sent_at.timestamp() * 1000)
        tail = build_tail(body, topic.encode(), encode_properties(all_properties).encode())
        record = seal_record(
            tail, body_crc(body), queue, 0, offset, offset * 1024, 0, at, NO_HOST, at, NO_HOST, attempt - 1
        )
        source = MessageSource(MessageQueue(topic, broker, queue), using, Epoch(1), group=group, in_order=True)
        return cls(source, record, 0)

    def decoded_by(self, codec: Codec) -> "Message":
        """The same message with another codec."""
        old = self._source
        source = MessageSource(old.queue, codec, old.epoch, group=old.group, in_order=old.in_order)
        return Message(source, self._buffer, self._start)

    @property
    def topic(self) -> str:
        """The topic it was sent to, also if it is redelivered through the group's retry topic."""
        if self._source.is_retry:
            return find_property(self.record.properties_text, PropertyName.RETRY_TOPIC) or self._source.queue.topic
        return self._source.queue.topic

    @property
    def source(self) -> MessageSource:
        """What it shares with all messages of its queue."""
        return self._source

    @property
    def group(self) -> str:
        """The group whose consumer read it; empty if none did."""
        return self._source.group

    @property
    def stored_body(self) -> bytes:
        """The bytes as the broker stores them, compressed or not."""
        return self.record.body

    def value(self, wanted: type[T] | Any = Any) -> Any:
        """The body decoded by the consumer's codec. Raises `Undecodable`, which names the message."""
        try:
            return self._source.codec.decode(self.body, wanted)
        except CodecError as error:
            raise Undecodable(f"{self}: {error}") from error

    @property
    def tag(self) -> str | None:
        return find_property(self.record.properties_text, PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Words under which the message can be searched; not the key that orders it."""
        return tuple((find_property(self.record.properties_text, PropertyName.KEYS) or "").split())

    @property
    def properties_text(self) -> str:
        return self.record.properties_text

    @property
    def message_id(self) -> str:
        """The id that the producer gave it; the broker's id if an old producer gave none."""
        return find_property(self.record.properties_text, PropertyName.UNIQUE_ID) or self.stored_id

    @property
    def stored_id(self) -> str:
        """The broker's id, which says where it is stored, as RocketMQ's tools write it."""
        host, _, port = self.record.store_host.rpartition(":")
        return encode_offset_id(host.strip("[]"), int(port), self.record.position)

    @property
    def stamp(self) -> Stamp | None:
        """The producer stamp, by which repeats and gaps are recognised."""
        return find_stamp(self.record.properties_text)

    @property
    def epoch(self) -> Epoch:
        """The epoch of the lease under which it was read. A sink that keeps the highest can refuse a stale owner."""
        return self._source.epoch

    @property
    def reconsume_times(self) -> int:
        """Failed attempts so far: those that the broker counted, and those of this process."""
        return self.record.reconsume_times + self.retried_here

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.reconsume_times + 1

    @property
    def born_at(self) -> datetime:
        return wall_time(self.record.born_timestamp)

    @property
    def stored_at(self) -> datetime:
        return wall_time(self.record.store_timestamp)

    def __str__(self) -> str:
        return f"message {self.queue}@{self.queue_offset} key={self.key!r}"

    def __repr__(self) -> str:
        return f"Message({self.queue}@{self.queue_offset}, key={self.key!r}, id={self.message_id})"


def body_start(message: Message, most: int) -> bytes:
    """The first bytes of the body, for a list. A few kilobytes may hold 64 MiB, and no more than this is expanded.

    A body that claims to be compressed and is not is shown as it is stored.
    """
    stored = message.stored_body
    try:
        return decompress_start(message.record.sys_flag, stored, most)
    except RemoteProtocolError:
        return stored[:most]


@compiled
def find_key(buffer: bytes, start: int) -> str | None:
    """The key of the record at `start`, read from the bytes, because lanes need it of every message.

    Equal to `find_property` on the record's properties, which handles records with another layout (RocketMQ's V2 magic,
    IPv6 hosts) and keys that do not begin an entry.
    """
    if buffer[start + 7] == _PLAIN_MAGIC and not buffer[start + 39] & _V6_HOSTS:
        topic = start + HEAD_BYTES + 4 + _INT(buffer, start + HEAD_BYTES)[0]
        first = topic + 3 + buffer[topic]
        before, name, after = buffer[first : first + _SHORT(buffer, first - 2)[0]].rpartition(_KEY_NAME)
        if not name:
            return None
        if not before or before[-1] == _ENTRY_END:
            value = after.partition(b"\x02")[0]
            if value:
                return value.decode("utf-8", "replace")
    return find_property(RecordView(buffer, start).properties_text, PropertyName.KEY)


def read_messages(source: MessageSource, body: bytes) -> list[Message]:
    """The messages of a pull's body, in the order of their offsets."""
    return make_messages(Message, source, body)


def read_waiting(source: MessageSource, body: bytes) -> list[Message]:
    """As `read_messages`, for messages that go into lanes. They leave the package only by `take_runs`."""
    return make_messages(Message, source, body, True)


@compiled
def make_messages(kind: type[Message], source: MessageSource, body: bytes, waiting: bool = False) -> list[Message]:
    """One message of class `kind` per record.

    The compiled twin hides `waiting` messages from the garbage collector until `take_runs` takes them. Otherwise each
    collection visits the thousands that wait, which costs more than it takes to make them.
    """
    return [kind(source, body, start) for start in record_starts(body)]
