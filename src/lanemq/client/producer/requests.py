"""Messages to RocketMQ's send requests: 310 for one message, 320 for a batch.

The rule guarded here: a message means the same to every RocketMQ client, so the properties are those that
RocketMQ's own producer sets, and LaneMQ adds one, the stamp. Requests are built once per batch; a repetition
sends the same bytes, or the broker could not recognise it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lanemq._fast import compiled
from lanemq.client.producer.waiters import UNHEARD, Ticket
from lanemq.model.errors import InvalidOption
from lanemq.model.names import DEFAULT_TOPIC, INNER_PRODUCER_GROUP
from lanemq.model.queue import MessageQueue
from lanemq.wire.batch import BATCH_FRAME_BYTES, BATCH_HEAD, BATCH_LENGTH
from lanemq.wire.bodies import HeartbeatData, ProducerData
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib
from lanemq.wire.lane_fields import LANE_CLIENT
from lanemq.wire.properties import LANE_STAMP, PropertyName, append_properties, check_properties_size

MAX_DELAY_LEVEL = 18
"""The levels 1 to 18 stand for 1 s to 2 h (MessageStoreConfig.messageDelayLevel); 0 means no delay."""

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


class Parcel(msgspec.Struct, gc=False):
    """One message, encoded and on its way. Only its stamp is still missing: that is the lane's to give.

    Nothing it refers to refers back, so the garbage collector need not look at the millions of them.
    """

    body: bytes
    properties: str
    message_id: str
    key: str | None = None
    sys_flag: int = 0
    alone: bool = False
    """It cannot share a batch: compressed or delayed."""
    told: bool = True
    """Its sender hears of a failure before sending anything else, or does not want to. Of a `Crowd` it is false:
    its call goes on handing over messages until it ends."""
    ticket: Ticket = UNHEARD
    index: int = 0
    size: int = 0
    """Bytes in the buffer and in a batch, sizes, flags and stamp included."""


PARCEL_OVERHEAD = 100


@compiled
def total_size(parcels: Iterable[Parcel]) -> int:
    return sum([parcel.size for parcel in parcels])


@compiled
def batch_weights(parcels: Iterable[Parcel], too_large: int) -> list[int]:
    """What each takes of a batch. One that cannot share is declared larger than a batch: it then travels alone."""
    return [too_large if parcel.alone else parcel.size for parcel in parcels]


class Extras(msgspec.Struct, frozen=True):
    """The optional parts of a send call."""

    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] | None = None
    delay_level: int = 0


NO_EXTRAS = Extras()


def extras_of(
    tag: str | None, keys: Sequence[str] | str, properties: Mapping[str, str] | None, delay_level: int
) -> Extras:
    if tag is None and not keys and not properties and not delay_level:
        return NO_EXTRAS
    return Extras(tag, keys, properties, delay_level)


def properties_text(key: str | None, message_id: str, extras: Extras = NO_EXTRAS) -> str:
    """A message's properties as RocketMQ's producer sets them, without the stamp."""
    if key is None:
        text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    elif "\x01" in key or "\x02" in key or not key:
        raise InvalidOption(f"key {key!r} is not allowed: it is empty or contains 0x01 or 0x02")
    else:
        text = f"__SHARDINGKEY\x01{key}\x02UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
    if extras is NO_EXTRAS:
        if len(text) > MAX_QUICK_TEXT:
            check_properties_size(text)
        return text
    text = append_properties(text, _extra_properties(extras))
    check_properties_size(text)
    return text


MAX_QUICK_TEXT = 8000
"""Shorter text fits whatever it takes in UTF-8, the stamp included."""


def _extra_properties(extras: Extras) -> dict[str, str]:
    properties = dict(extras.properties or {})
    taken = _RESERVED & properties.keys()
    if taken:
        raise InvalidOption(f"property {min(taken)} is set by LaneMQ: use the argument made for it, or another name")
    if extras.tag is not None:
        properties[PropertyName.TAGS] = extras.tag
    if extras.keys:
        keys = extras.keys
        properties[PropertyName.KEYS] = keys if isinstance(keys, str) else " ".join(keys)
    if not 0 <= extras.delay_level <= MAX_DELAY_LEVEL:
        raise InvalidOption(f"delay_level is {extras.delay_level}, use 0 (none) to {MAX_DELAY_LEVEL} (2 hours)")
    if extras.delay_level:
        properties[PropertyName.DELAY] = str(extras.delay_level)
    return properties


def maybe_compressed(body: bytes) -> tuple[bytes, int]:
    """Body and sys flag to send; compressed only where that makes it smaller."""
    packed = compress_zlib(body)
    return (packed, ZLIB_SYS_FLAG) if len(packed) < len(body) else (body, 0)


class RequestBuilder:
    """Send requests of one producer."""

    def __init__(self, group: str, client_id: str, producer_id: str) -> None:
        self._group = group
        self._client_id = client_id
        self._producer_id = producer_id

    def send(
        self,
        queue: MessageQueue,
        parcels: Sequence[Parcel],
        *,
        epoch: int,
        sequence: int,
        born: int,
        creates: bool = True,
    ) -> Command:
        """One request for parcels with consecutive sequences; if several, none of them is `alone`.

        `creates`: the topic may come into being by it. Not where the topic is known to exist: if it was deleted
        meanwhile, an ordered one would come back unordered, and nobody would notice.
        """
        stamp = f"{LANE_STAMP}\x01{self._producer_id}.{epoch}."
        if len(parcels) == 1:
            parcel = parcels[0]
            text = f"{parcel.properties}{stamp}{sequence}\x02"
            ext = self._ext(queue, parcel.sys_flag, born, text, creates)
            return Command(RequestCode.SEND_MESSAGE_V2, 0, ext=ext, body=parcel.body)
        body = batch_body(parcels, stamp, sequence)
        ext = self._ext(queue, 0, born, "", creates)  # each has its own; what stands here is added to all
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
def batch_body(parcels: Sequence[Parcel], stamp: str, sequence: int) -> bytes:
    """The same bytes as `encode_batch` would make, straight from the parcels and with their stamps."""
    parts: list[bytes] = []
    frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # most messages are as long as another one
    for number, parcel in enumerate(parcels, sequence):
        body, text = parcel.body, f"{parcel.properties}{stamp}{number}\x02".encode()
        sizes = len(body), len(text)
        frame = frames.get(sizes)
        if frame is None:
            frame = frames[sizes] = _frame(*sizes)
        parts += (frame[0], body, frame[1], text)
    return b"".join(parts)


def _frame(size: int, length: int) -> tuple[bytes, bytes]:
    """What stands before a body of this size, and between it and properties of this length."""
    return BATCH_HEAD.pack(BATCH_FRAME_BYTES + size + length, 0, 0, 0, size), BATCH_LENGTH.pack(length)


def heartbeat(client_id: str, group: str) -> Command:
    """Tells a broker that this producer lives; RocketMQ's clients always name the inner producer too."""
    groups = [ProducerData(group_name=group), ProducerData(group_name=INNER_PRODUCER_GROUP)]
    body = HeartbeatData(client_id=client_id, producer_data_set=groups).encode()
    return Command(RequestCode.HEART_BEAT, 0, body=body)
