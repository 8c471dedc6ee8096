"""Messages as transitions have them: rows of one queue, the event that a step is given, and the message that waits.

`decode=` turns bodies into values. Whatever it raises makes the message poison and never fails the query. An empty
body is not JSON, but it is how Kafka's tombstones arrive, so where JSON is expected it becomes the value None. A
missing body (null) is poison for every decoder.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, get_origin

import msgspec
import pyarrow as pa

from lanemq.client.codec import JsonCodec, decoder_for
from lanemq.clock import wall_time
from lanemq.model.errors import InvalidOption
from lanemq.pipelines.stages.queue_borders import queue_borders
from lanemq.pipelines.stages.transitions.timers import PendingTimer, StepContext, Timer

COLUMNS = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "key",
    "tags",
    "value",
    "message_id",
    "store_timestamp",
    "stamp",
)
"""Columns of the source that transitions read."""


SHARD = "_shard"
"""The column with the shard of a row's key, if shards are not queues."""

Stamps: TypeAlias = list[tuple[str, int, int] | None]


class Event(msgspec.Struct, frozen=True, gc=False):
    """One message, as a step sees it. A msgspec struct, because one is made per message and its fields are set in C."""

    key: str | None
    """Never None for a step: a message without a key is a dead letter."""
    value: Any
    """The body as `decode` made it."""
    topic: str
    broker: str
    queue_id: int
    offset: int
    tags: str | None
    stored_ms: int
    """`stored_at` in milliseconds since 1970, as the columns have it."""
    message_id: str | None
    attempt: int
    """1, and one more after each time the step failed on it."""
    late: bool = False
    """Whether it is a redriven dead letter: newer events of its key may have been applied before it."""

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it. The only time that is the same in a repeated batch."""
        return wall_time(self.stored_ms)


Row: TypeAlias = Mapping[str, object]
Step: TypeAlias = (
    Callable[[Any, Event], tuple[Any, Iterable[Row]]] | Callable[[Any, Event, StepContext], tuple[Any, Iterable[Row]]]
)
"""`step(state, event) -> (state, rows)`, or `step(state, event, context)`. The state of a new key is None; a step that
returns None as state forgets the key, and its timers but for those that this call set. With `sequence=` its number is
still kept, to recognise repeats, see `StateLimits(forget_numbers_after)`.

It must depend on its arguments only, because a repeated batch calls it again.
"""
OnTimer: TypeAlias = (
    Callable[[Any, Timer], tuple[Any, Iterable[Row]]] | Callable[[Any, Timer, StepContext], tuple[Any, Iterable[Row]]]
)
"""`on_timer(state, timer) -> (state, rows)`, or `on_timer(state, timer, context)`: a step for a timer that is due."""


class WaitingMessage(msgspec.Struct, array_like=True, gc=False):
    """A message as it waits in its lane: not decoded, so that a corrected decoder can still read it."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    tags: str | None
    stored: int
    message_id: str | None
    value: bytes | None
    late: bool = False
    """A redriven dead letter whose number, if it has one, the lane does not wait for."""
    watermark: int = 0
    """The shard's watermark when the message came, so that timers are called before the same messages as without the
    wait."""
    arrived: int = 0
    """Wall time of the unit of work in which it came, for the same reason."""
    timer: PendingTimer | None = None
    """The timer that failed, or is tried again, in place of a message. All other fields then mean nothing."""
    noticed: bool = False
    """Whether a dead letter says already that it cannot be decoded and waits."""

    def event(self, key: str | None, value: object, attempt: int) -> Event:
        """The event for the step."""
        return Event(
            key,
            value,
            self.topic,
            self.broker,
            self.queue_id,
            self.offset,
            self.tags,
            self.stored,
            self.message_id,
            attempt,
            self.late,
        )


def timer_message(timer: PendingTimer) -> WaitingMessage:
    """A timer as it waits in its lane, in place of a message."""
    return WaitingMessage("", "", -1, -1, None, 0, f"timer {timer.name}", None, timer=timer)


Decode: TypeAlias = Callable[[bytes], Any]


def decoder(decode: object) -> Decode:
    """`"json"`, `"text"`, `"bytes"`, a type for JSON, or a function.

    Types are those of handlers: msgspec Struct, dataclass, TypedDict, Pydantic model, `list[...]` and unions of these.
    Raises `InvalidOption` for a type that JSON cannot be decoded into.
    """
    match decode:
        case "json":
            return msgspec.json.Decoder().decode
        case "text":
            return _text
        case "bytes":
            return _same
        case _ if _is_type(decode):
            return _json_decoder(decode)
        case _ if callable(decode):
            return decode
        case _:
            raise InvalidOption(f"decode={decode!r} is unknown: use 'json', 'text', 'bytes', a type or a function")


def _json_decoder(wanted: object) -> Decode:
    try:
        return decoder_for(JsonCodec(), wanted)
    except InvalidOption as error:
        raise InvalidOption(f"decode: {error}; decode= takes such a codec as a function of the bytes") from error


def empty_decoder(decode: object) -> Callable[[bytes | None], Any]:
    """The decoder for empty and missing bodies."""
    if decode == "json" or (_is_type(decode) and decode is not bytes):
        return decode_empty_as_none
    decoded = decoder(decode)
    return lambda body: decoded(_present(body))


def _is_type(decode: object) -> bool:
    """Whether it is a class, or an annotation such as `list[Payment]` or `Paid | Refunded`."""
    return isinstance(decode, type) or get_origin(decode) is not None


def decode_empty_as_none(body: bytes | None) -> None:
    """None for an empty body; raises for a missing one."""
    _present(body)


def _present(body: bytes | None) -> bytes:
    if body is None:
        raise ValueError("there is no body, or it could not be unpacked")
    return body


def _text(body: bytes) -> str:
    return body.decode()


def _same(body: bytes) -> bytes:
    return body


# rows of a queue


class QueueSlice(NamedTuple):
    """Consecutive messages of one queue; one list per column, each converted once from Arrow."""

    topic: str
    broker: str
    queue_id: int
    offsets: list[int]
    keys: list[str | None]
    values: list[bytes | None]
    tags: list[str | None]
    stored: list[int]
    ids: list[str | None]
    stamps: Stamps | None = None
    """Producer, epoch and sequence of each message; None if none of them has a stamp."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    def without(self, dropped: set[int]) -> "QueueSlice":
        """The slice without the messages at these indices, and without stamps."""
        kept = [index for index in range(len(self.offsets)) if index not in dropped]
        columns = ([column[index] for index in kept] for column in self[3:9])
        return QueueSlice(self.topic, self.broker, self.queue_id, *columns)  # type: ignore[arg-type]


def queue_slices(batch: pa.RecordBatch) -> Iterator[tuple[str, QueueSlice]]:
    """The shard and the messages of each slice of a batch, in the order of the rows."""
    names = ["topic", "broker", "queue_id", *([SHARD] if SHARD in batch.schema.names else [])]
    for begin, end in pairwise(queue_borders(batch, names)):
        part = batch.slice(begin, end - begin)
        found = _queue_slice(part)
        yield (found.queue if len(names) == 3 else f"keys-{part.column(SHARD)[0].as_py()}"), found


def _queue_slice(part: pa.RecordBatch) -> QueueSlice:
    return QueueSlice(
        topic=part.column("topic")[0].as_py(),
        broker=part.column("broker")[0].as_py(),
        queue_id=part.column("queue_id")[0].as_py(),
        offsets=part.column("queue_offset").to_numpy().tolist(),
        keys=part.column("key").to_pylist(),
        values=part.column("value").to_pylist(),
        tags=_optional(part, "tags"),
        stored=_millis(part.column("store_timestamp")),
        ids=_optional(part, "message_id"),
        stamps=_stamps(part),
    )


def _optional(part: pa.RecordBatch, name: str) -> list[Any]:
    """A column that only the user's step may read; Nones if the source leaves it out."""
    if name not in part.schema.names:
        return [None] * part.num_rows
    found: list[Any] = part.column(name).to_pylist()
    return found


def _millis(column: pa.Array) -> list[int]:
    times: list[int] = (column.cast(pa.int64()).fill_null(0).to_numpy() // 1_000).tolist()
    return times


def _stamps(part: pa.RecordBatch) -> Stamps | None:
    if "stamp" not in part.schema.names:
        return None
    column = part.column("stamp")
    if column.null_count == len(column):
        return None
    producers, epochs, sequences = (each.to_pylist() for each in column.flatten())
    return [
        None if producer is None else (producer, epoch, sequence)
        for producer, epoch, sequence in zip(producers, epochs, sequences, strict=True)
    ]
