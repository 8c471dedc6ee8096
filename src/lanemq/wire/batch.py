"""Many messages at once: batch bodies, and how a broker seals them.

A batch body holds several messages for one queue; topic, queue and times come from the request:

    total size 4 | magic 4 (0) | CRC 4 (0) | flag 4 | body length 4, body | properties length 2, properties

A batch is taken whole or not at all, so every size must agree with every other before the first message is stored.

Most batches need no look at single messages: our producers send them without tags and delays, with consecutive stamps.
Such a batch stays in one piece (`PlainBatch`) until it is in the log.
"""

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from lanemq._fast import compiled
from lanemq.model.errors import RemoteProtocolError
from lanemq.wire.record import seal_records

BATCH_HEAD = Struct(">iiiii")
"""Total size, magic, CRC, flag, body length."""
_SIZES = Struct(">i8xii")
"""Of the same: total size, flag, body length."""
BATCH_LENGTH = Struct(">h")
"""Of the properties."""
_HEAD_BYTES, _SHORT_BYTES = BATCH_HEAD.size, BATCH_LENGTH.size
BATCH_FRAME_BYTES = _HEAD_BYTES + _SHORT_BYTES

MAX_BATCH_MESSAGES = 10_000
"""Messages of a batch that a broker takes. RocketMQ counts only bytes; but a batch is stored in one step, during which
the broker does nothing else."""


class BatchColumns(NamedTuple):
    """The messages of a batch as columns; the properties are valid UTF-8, as received."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]


def split_batch_raw(body: bytes, most: int = MAX_BATCH_MESSAGES) -> BatchColumns:
    """The messages of a batch body. The properties stay bytes, because a broker stores them as they are.

    Of a batch with more than `most` messages, it reads `most + 1`, by which the caller recognises such a batch.
    """
    return BatchColumns(*batch_parts(body, most))


@compiled
def batch_parts(body: bytes, most: int) -> tuple[list[int], list[bytes], list[bytes]]:
    """Flags, bodies and properties of a batch; of a batch with more messages, `most + 1` of each."""
    flags: list[int] = []
    bodies: list[bytes] = []
    texts: list[bytes] = []
    add_flag, add_body, add_text = flags.append, bodies.append, texts.append
    head, short = _SIZES.unpack_from, BATCH_LENGTH.unpack_from
    position, end = 0, len(body)
    last = end - BATCH_FRAME_BYTES
    while position <= last and len(flags) <= most:
        size, flag, length = head(body, position)
        body_at = position + _HEAD_BYTES
        body_end = body_at + length
        text_at = body_end + _SHORT_BYTES
        next_at = position + size
        if length < 0 or next_at > end or text_at > next_at:
            raise _damaged(position, end, f"size {size}, body length {length}")
        if text_at + short(body, body_end)[0] != next_at:
            raise _damaged(position, end, f"size {size}, but its properties end elsewhere")
        add_flag(flag)
        add_body(body[body_at:body_end])
        add_text(body[text_at:next_at])
        position = next_at
    if (position != end or not flags) and len(flags) <= most:
        raise _damaged(position, end, "the last message is cut off" if flags else "it holds no message")
    if not b"".join(texts).isascii():
        _prove_texts(texts, end)
    return flags, bodies, texts


def scan_batch(body: bytes, most: int) -> tuple[int, int, int, int, bytes]:
    """The number of messages in a batch body, the size of the largest body and of the longest properties, the special
    properties that occur (as `weigh`), and the properties of the first message.

    Refuses what `split_batch_raw` refuses. With more than `most` messages, only the number says something.
    """
    flags, bodies, texts = batch_parts(body, most)
    _, largest, longest, special = weigh(bodies, texts)
    return len(flags), largest, longest, special, texts[0]


@compiled
def all_stamped(body: bytes, prefix: bytes, sequence: int) -> bool:
    """Whether the properties of all messages of a batch end with consecutive stamps from `sequence` on.

    `prefix` is a stamp up to its sequence number, with the separator before it.
    """
    _, _, texts = batch_parts(body, len(body))
    return all(text.endswith(prefix + b"%d\x02" % number) for number, text in enumerate(texts, sequence))


DELAYED, TAGGED, REQUESTING = 1, 2, 4
"""Bits in the result of `weigh`: properties that the broker must look at."""


@compiled
def weigh(bodies: list[bytes], properties: list[bytes]) -> tuple[int, int, int, int]:
    """Total bytes, size of the largest body and of the longest properties, and which special properties occur.

    `DELAYED` if an entry may ask for a delay, `TAGGED` if there is a tag, `REQUESTING` if a message asks for a reply.
    Few messages have any of them, so one search over all properties answers for the whole batch.
    """
    every = b"\x02" + b"\x02".join(properties)
    timed, tagged = (b"\x02TIMER_" in every, b"\x02TAGS\x01" in every) if b"\x02T" in every else (False, False)
    special = DELAYED if timed or b"\x02DELAY\x01" in every else 0
    if tagged:
        special |= TAGGED
    if b"\x02REPLY_TO_CLIENT\x01" in every:
        special |= REQUESTING
    sizes, lengths = list(map(len, bodies)), list(map(len, properties))
    return sum(sizes) + sum(lengths), max(sizes, default=0), max(lengths, default=0), special


def _prove_texts(texts: list[bytes], end: int) -> None:
    """Checks each text alone: joined, two halves of a character in different messages would pass."""
    for number, text in enumerate(texts):
        try:
            text.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError(
                f"message {number} of a batch of {end} bytes: properties are not valid UTF-8"
            ) from None


def _damaged(position: int, end: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"batch message at byte {position} of {end} makes no sense: {what}")


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Messages to store as they arrived: a batch body that `scan_batch` has accepted, without tags."""

    body: bytes
    count: int
    born: int
    sys_flag: int
    reconsume_times: int

    def __len__(self) -> int:
        return self.count

    def records(self) -> list[tuple[bytes, bytes, int, int, int, int, int]]:
        """The same messages one by one, as `seal_records` takes them."""
        shared = self.sys_flag, self.born, self.reconsume_times
        columns = zip(*split_batch_raw(self.body, self.count), strict=True)
        return [(body, text, 0, flag, *shared) for flag, body, text in columns]


@compiled
def seal_batch(
    batch: PlainBatch,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
) -> bytes:
    """The records of `seal_records`, one behind the other in one piece."""
    place = topic, queue_id, queue_offset, position, born_host, store_timestamp, store_host
    return b"".join(seal_records(batch.records(), *place))
