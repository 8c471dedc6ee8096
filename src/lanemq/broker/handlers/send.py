"""Storing messages: single sends, batches, and the retries that consumers send.

Order of steps: check names and limits, judge the stamp, stage, remember the stamp, answer when it is on disk.
All of it up to the answer happens in one go on the event loop, so two sends to a queue can never interleave,
and the sends of one connection are stored in the order they arrived.
"""

from collections.abc import Callable
from functools import partial

from lanemq.broker.dispatch import Handler
from lanemq.broker.parts import Parts
from lanemq.broker.placing import Placed, place, refuse_delay
from lanemq.broker.reply import answer, answer_code, answer_error
from lanemq.core.dedup import Duplicate, Fenced, Fresh, Gap
from lanemq.log.staging import NewRecord
from lanemq.model.errors import MessageRefused, StorageError
from lanemq.model.java_hash import java_string_hash
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.server import Peer
from lanemq.wire.batch import split_batch_raw
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendHeader
from lanemq.wire.hosts import pack_host
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_EXPECTED, LANE_KNOWN_OFFSET, LANE_SKIPPED, LANE_STORED
from lanemq.wire.message_id import encode_offset_id
from lanemq.wire.properties import PropertyName, find_property, remove_property
from lanemq.wire.stamp import LANE_STAMP, find_stamp
from lanemq.wire.sysflag import TRANSACTION_MASK

_TAG = b"TAGS\x01"
_DELAY = b"DELAY\x01"
_TIMER = b"TIMER_"
_STAMP = f"{LANE_STAMP}\x01".encode()


class SendHandler:
    """Requests 10, 310 and 320."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._always = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        self._stored = "durable" if parts.options.durable else "relaxed"

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: partial(self._send, SendHeader.from_ext_v1),
            RequestCode.SEND_MESSAGE_V2: partial(self._send, SendHeader.from_ext_v2),
            RequestCode.SEND_BATCH_MESSAGE: partial(self._send, SendHeader.from_ext_v2),
        }

    def _send(self, decode: Callable[[dict[str, str]], SendHeader], peer: Peer, request: Command) -> None:
        header = decode(request.ext)
        self._parts.appender.refuse_if_failed()
        if header.sys_flag & TRANSACTION_MASK:
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "transactional messages are not supported by LaneMQ")
        placed = place(self._parts, header)
        if header.batch:
            items = self._batch(header, request.body)
        else:
            items = [self._record(placed.properties.encode(), request.body, header, header.flag)]
        self._store(peer, request, header, placed, items)

    def _batch(self, header: SendHeader, body: bytes) -> list[NewRecord]:
        shared = remove_property(header.properties, PropertyName.UNIQUE_ID).encode()
        items = []
        for flag, part, properties in split_batch_raw(body):
            if _DELAY in properties or _TIMER in properties:
                refuse_delay(properties.decode())
            if shared:
                properties = properties + shared if properties.endswith(b"\x02") else properties + b"\x02" + shared
            items.append(self._record(properties, part, header, flag))
        return items

    def _record(self, text: bytes, body: bytes, header: SendHeader, flag: int) -> NewRecord:
        options = self._parts.options
        if len(body) > options.max_body_bytes:
            raise MessageRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {len(body)} bytes, the limit is {options.max_body_bytes}",
            )
        if len(text) > options.max_properties_bytes:
            raise MessageRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(text)} bytes, the limit is {options.max_properties_bytes}",
            )
        tag = find_property(text.decode(), PropertyName.TAGS) if _TAG in text else None
        return NewRecord(
            body,
            text,
            java_string_hash(tag) if tag else 0,
            flag,
            header.sys_flag,
            header.born_timestamp,
            header.reconsume_times,
        )

    def _store(self, peer: Peer, request: Command, header: SendHeader, placed: Placed, items: list[NewRecord]) -> None:
        first = _first_stamp(items)
        skipped, known = 0, None
        if first is not None:
            verdict = self._parts.producers.judge(header.topic, placed.asked, first, len(items))
            if not isinstance(verdict, Fresh):
                self._not_fresh(peer, request, header.topic, placed.asked, verdict)
                return
            skipped, known = verdict.skip, verdict.known_offset
        fresh = items[skipped:] if skipped else items
        size = sum([len(item.body) + len(item.properties) for item in fresh]) + 128 * len(fresh)
        ext: dict[str, str] = {}
        done = partial(self._done, peer, request, ext)
        staged = self._parts.appender.append(placed.topic, placed.queue_id, fresh, pack_host(*peer.remote), size, done)
        if first is not None:
            start = Stamp(first.producer, first.epoch, first.sequence + skipped)
            self._parts.producers.record(
                header.topic,
                placed.asked,
                start,
                len(fresh),
                QueueOffset(staged.first_offset),
                stored_at=Millis(staged.store_time),
            )
        positions = staged.positions if header.lane_client is None else staged.positions[:1]
        ext["msgId"] = ",".join([encode_offset_id(*self._parts.advertised, position) for position in positions])
        ext["queueId"] = str(placed.asked)
        ext["queueOffset"] = str(staged.first_offset)
        if skipped:
            # A crash cut the batch in two: what was stored then lies elsewhere than what is stored now.
            ext[LANE_SKIPPED] = str(skipped)
            ext[LANE_KNOWN_OFFSET] = str(-1 if known is None else known)

    def _done(self, peer: Peer, request: Command, ext: dict[str, str], error: StorageError | None) -> None:
        if error is not None:
            answer_error(peer, request, error)
            return
        ext.update(self._always)
        ext[LANE_STORED] = self._stored
        answer(peer, request, ext)

    def _not_fresh(
        self, peer: Peer, request: Command, topic: str, queue_id: int, verdict: Duplicate | Gap | Fenced
    ) -> None:
        match verdict:
            case Duplicate(offset):
                ext = {
                    "msgId": "",
                    "queueId": str(queue_id),
                    "queueOffset": str(-1 if offset is None else offset),
                    LANE_DUPLICATE: "true",
                }
                # The first time may still be on its way to the disk: this answer may not come before it.
                self._parts.appender.barrier(partial(self._done, peer, request, ext))
            case Gap(expected):
                remark = f"sequence {expected} of this producer is missing in queue {topic}/{queue_id}"
                answer_code(peer, request, ResponseCode.SEQUENCE_GAP, remark, {LANE_EXPECTED: str(expected)})
            case Fenced(epoch):
                remark = f"a producer with epoch {epoch} has taken over in queue {topic}/{queue_id}"
                answer_code(peer, request, ResponseCode.PRODUCER_FENCED, remark)


def _first_stamp(items: list[NewRecord]) -> Stamp | None:
    """The stamp of the first message, if the stamps of a batch follow one another without a gap."""
    first = _stamp_of(items[0])
    if len(items) == 1:
        return first
    prefix = b"" if first is None else f"{LANE_STAMP}\x01{first.producer}.{first.epoch}.".encode()
    sequence = 0 if first is None else first.sequence
    for number, item in enumerate(items[1:], sequence + 1):
        # Looked for as text, which is quicker than reading each stamp; only what is not found is read.
        if first is not None and b"%b%d\x02" % (prefix, number) in item.properties:
            continue
        if _stamp_of(item) != (None if first is None else (first.producer, first.epoch, number)):
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "the stamps of a batch must follow one another")
    return first


def _stamp_of(item: NewRecord) -> Stamp | None:
    if _STAMP not in item.properties:
        return None
    found = find_stamp(item.properties.decode())
    return None if found is None else Stamp(*found)
