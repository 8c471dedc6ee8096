"""What a handler is given: one message, read on demand.

A consumer creates hundreds of thousands of these a second and looks at few fields of each, so a message is a
place in the bytes of a pull and nothing more. Only what the scheduler asks for (`queue_offset`, `size`) is read
at once; everything else is parsed when somebody looks, and kept where that pays.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from struct import Struct
from types import MappingProxyType
from typing import Any, TypeVar

from lanemq._fast import compiled
from lanemq.client.codec import Codec
from lanemq.model.errors import CodecError, Undecodable
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Epoch, QueueOffset
from lanemq.wire.compression import decompress
from lanemq.wire.properties import PropertyName, find_property, find_stamp
from lanemq.wire.record import (
    BORN_HOST_V6,
    HEAD_BYTES,
    MAGIC_V1,
    STORE_HOST_V6,
    RecordView,
    encode_offset_id,
    record_starts,
)

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A compressed body that unfolds to more than this is refused: it is no message but an attack."""

_SIZE_AND_OFFSET = Struct(">i16xq").unpack_from
_INT = Struct(">i").unpack_from
_SHORT = Struct(">h").unpack_from
_KEY_NAME = PropertyName.KEY.encode() + b"\x01"
_ENTRY_END = 2
_PLAIN_MAGIC = MAGIC_V1 & 0xFF
_V6_HOSTS = BORN_HOST_V6 | STORE_HOST_V6
_UNREAD: Any = object()


class Source:
    """What all messages of one holding of a queue share."""

    __slots__ = ("codec", "epoch", "is_retry", "queue")

    def __init__(self, queue: MessageQueue, codec: Codec, epoch: Epoch) -> None:
        self.queue = queue
        self.codec = codec
        self.epoch = epoch
        self.is_retry = queue.topic.startswith(RETRY_PREFIX)


@compiled
class Laid:
    """Where a message lies in the bytes of a pull, and what lanes ask of it."""

    __slots__ = ("_buffer", "_key", "_source", "_start", "_view", "queue_offset", "retried_here", "size")

    def __init__(self, source: Source, buffer: bytes, start: int) -> None:
        self.size, self.queue_offset = _SIZE_AND_OFFSET(buffer, start)
        self.retried_here = 0
        self._source = source
        self._buffer = buffer
        self._start = start
        self._view: RecordView | None = None
        self._key: str | None = _UNREAD

    @property
    def key(self) -> str | None:
        """What decides its lane; None if it was sent without."""
        if self._key is _UNREAD:
            self._key = find_key(self._buffer, self._start)
        return self._key


class Message(Laid):
    """One message of one queue. Reading it never changes it."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes back through the group's retry topic."""
        if self._source.is_retry:
            return find_property(self.record.properties_text, PropertyName.RETRY_TOPIC) or self._source.queue.topic
        return self._source.queue.topic

    @property
    def queue(self) -> MessageQueue:
        return self._source.queue

    @property
    def offset(self) -> QueueOffset:
        """Its place in the queue."""
        return QueueOffset(self.queue_offset)

    @property
    def body(self) -> bytes:
        """The bytes as the producer gave them."""
        return decompress(self.record.sys_flag, self.record.body, MAX_BODY_BYTES)

    @property
    def stored_body(self) -> bytes:
        """The bytes as the broker keeps them, compressed or not."""
        return self.record.body

    def value(self, wanted: type[T] | Any = Any) -> Any:
        """The body decoded by the consumer's codec; `Undecodable` says which message could not be."""
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
    def properties(self) -> Mapping[str, str]:
        return MappingProxyType(self.record.properties)

    @property
    def properties_text(self) -> str:
        return self.record.properties_text

    @property
    def message_id(self) -> str:
        """The producer's id of it; the broker's, where an old producer gave none."""
        return find_property(self.record.properties_text, PropertyName.UNIQUE_ID) or self.stored_id

    @property
    def stored_id(self) -> str:
        """Where the broker keeps it, as RocketMQ's tools write it."""
        host, _, port = self.record.store_host.rpartition(":")
        return encode_offset_id(host.strip("[]"), int(port), self.record.position)

    @property
    def stamp(self) -> Stamp | None:
        """The producer's mark on it, by which repeats and gaps are recognised."""
        return find_stamp(self.record.properties_text)

    @property
    def epoch(self) -> Epoch:
        """The lease under which it was read. A sink that remembers the highest one can refuse a stale owner."""
        return self._source.epoch

    @property
    def reconsume_times(self) -> int:
        """Failed attempts so far: those the broker knows of and those of this process."""
        return self.record.reconsume_times + self.retried_here

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.reconsume_times + 1

    @property
    def born_at(self) -> datetime:
        return datetime.fromtimestamp(self.record.born_timestamp / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        return datetime.fromtimestamp(self.record.store_timestamp / 1000, UTC)

    @property
    def record(self) -> RecordView:
        """The stored record itself, for what has no name here."""
        view = self._view
        if view is None:
            view = self._view = RecordView(self._buffer, self._start)
        return view

    def __str__(self) -> str:
        return f"message {self.queue}@{self.queue_offset} key={self.key!r}"

    def __repr__(self) -> str:
        return f"Message({self.queue}@{self.queue_offset}, key={self.key!r}, id={self.message_id})"


@compiled
def find_key(buffer: bytes, start: int) -> str | None:
    """The key of the record at `start`, straight from the bytes: lanes ask it of every message.

    The same as `find_property` on the record's properties, which also serves records that are laid out otherwise
    (RocketMQ's V2 magic, IPv6 hosts) and keys that do not begin an entry.
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


def read_messages(source: Source, body: bytes) -> list[Message]:
    """The messages of a pull's body, in the order of their offsets."""
    return lay_messages(Message, source, body)


@compiled
def lay_messages(kind: type[Message], source: Source, body: bytes) -> list[Message]:
    """One of `kind` per record."""
    return [kind(source, body, start) for start in record_starts(body)]
