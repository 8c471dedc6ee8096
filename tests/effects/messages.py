"""Messages as a consumer would deliver them, and a clock for cleaning."""

from tests.wire.encoding import encode_record

from lanemq.client.codec import JsonCodec
from lanemq.client.copies import OriginalPlace, producer_id
from lanemq.client.message import Message, MessageSource, read_messages
from lanemq.mirror.origin import copied_properties
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.wire.properties import LANE_STAMP, encode_properties

HOUR = 3_600_000
QUEUE = MessageQueue("payments", "lanemq", 3)


def delivered(
    offset: int,
    key: str | None = "k",
    *,
    epoch: int = 1,
    group: str = "shop",
    queue: MessageQueue = QUEUE,
    in_order: bool = True,
    overtaken: bool = False,
    position: int | None = None,
    stored_ms: int | None = None,
    message_id: str = "",
    sent_to: str = "",
    copied_from: OriginalPlace | None = None,
) -> Message:
    """A message whose position in the log and time of storage follow from its offset, unless they are given.

    `copied_from` makes it a copy of a mirror.
    """
    properties = {"__SHARDINGKEY": key or "", "UNIQ_KEY": message_id or f"ID{offset}", "RETRY_TOPIC": sent_to}
    record = encode_record(
        topic=queue.topic,
        body=b"{}",
        properties_text=_copied(
            encode_properties({name: value for name, value in properties.items() if value}), copied_from
        ),
        queue_id=queue.queue_id,
        queue_offset=offset,
        position=offset * 1000 if position is None else position,
        store_timestamp=offset * 10 if stored_ms is None else stored_ms,
    )
    source = MessageSource(queue, JsonCodec(), Epoch(epoch), group=group, in_order=in_order, overtaken=overtaken)
    (message,) = read_messages(source, record)
    return message


def _copied(text: str, place: OriginalPlace | None) -> str:
    if place is None:
        return text
    text = copied_properties(text, "move", 0, place)
    return text + encode_properties({LANE_STAMP: f"{producer_id('move', place.queue)}.1.0"})


class JumpingClock:
    """Clocks that the test sets."""

    def __init__(self) -> None:
        self.running_ms, self.wall_ms = 5_000_000, 1_800_000_000_000

    def now(self) -> Millis:
        return Millis(self.running_ms)

    def wall(self) -> Millis:
        return Millis(self.wall_ms)

    def now_ns(self) -> int:
        return self.running_ms * 1_000_000
