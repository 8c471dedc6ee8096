"""Storing messages: single sends, batches, and the retries that consumers send.

Order of steps: check names and limits, judge the stamp, stage, remember the stamp, answer when it is on disk.
All of it up to the answer happens in one go on the event loop, so two sends to a queue can never interleave,
and the sends of one connection are stored in the order they arrived.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from lanemq.broker.dispatch import Handler
from lanemq.broker.parts import Parts
from lanemq.broker.reply import answer, answer_code, answer_error
from lanemq.broker.routing import Placed, place, refuse_delay
from lanemq.core.brokering.dedup import Duplicate, Fenced, Fresh, Gap
from lanemq.log.appender import NewRecords
from lanemq.model.errors import MessageRefused, StorageError
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.server import Peer
from lanemq.wire.batch import DELAYED, TAGGED, RecordColumns, split_batch_raw, weigh
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendHeader
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_EXPECTED, LANE_KNOWN_OFFSET, LANE_SKIPPED, LANE_STORED
from lanemq.wire.properties import PropertyName, following_stamps, remove_property, stamp_in, tag_code_of
from lanemq.wire.record import TRANSACTION_MASK, encode_offset_id, pack_host

_TAG = b"TAGS\x01"

RECORD_OVERHEAD_BYTES = 128
"""What a record takes in memory beside body and properties, about."""

_Taken: TypeAlias = tuple[Stamp | None, NewRecords]
"""The first stamp, if there are stamps, and the messages of a request."""


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
        self._parts.group_commit.refuse_if_failed()
        if header.sys_flag & TRANSACTION_MASK:
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "transactional messages are not supported by LaneMQ")
        placed = place(self._parts, header)
        if header.batch:
            first, records = self._batch(header, request.body)
        else:
            first, records = self._single(header, placed.properties, request.body)
        self._store(peer, request, header, placed, first, records)

    def _single(self, header: SendHeader, properties: str, body: bytes) -> _Taken:
        text = properties.encode()
        self._refuse_large(len(body), len(text))
        tag_code = tag_code_of(properties) if _TAG in text else 0
        first = stamp_in(text)
        same = header.sys_flag, header.born_timestamp, header.reconsume_times
        return first, [(body, text, tag_code, header.flag, *same)]

    def _batch(self, header: SendHeader, body: bytes) -> _Taken:
        """Column by column; what hardly any batch holds is looked for in all properties at once."""
        flags, bodies, texts = split_batch_raw(body)
        _, largest, longest, found = weigh(bodies, texts)
        if found & DELAYED:
            for text in texts:
                refuse_delay(text.decode())
        shared = remove_property(header.properties, PropertyName.UNIQUE_ID).encode()
        if shared:
            texts = [text + shared if text.endswith(b"\x02") else text + b"\x02" + shared for text in texts]
            longest = max(map(len, texts))
        self._refuse_large(largest, longest)
        tagged = found & TAGGED or _TAG in shared
        tag_codes = [tag_code_of(text.decode()) for text in texts] if tagged else [0] * len(texts)
        first, following = following_stamps(texts)
        if following < len(texts):
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "the stamps of a batch must follow one another")
        born = [header.born_timestamp] * len(texts)
        shared_by_all = header.sys_flag, header.reconsume_times
        return first, RecordColumns(bodies, texts, tag_codes, flags, born, *shared_by_all)

    def _refuse_large(self, body: int, properties: int) -> None:
        options = self._parts.options
        if body > options.max_body_bytes:
            remark = f"the body has {body} bytes, the limit is {options.max_body_bytes}"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if properties > options.max_properties_bytes:
            remark = f"the properties have {properties} bytes, the limit is {options.max_properties_bytes}"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)

    def _store(
        self,
        peer: Peer,
        request: Command,
        header: SendHeader,
        placed: Placed,
        first: Stamp | None,
        records: NewRecords,
    ) -> None:
        skipped, known = 0, None
        if first is not None:
            verdict = self._parts.producers.judge(header.topic, placed.asked, first, len(records))
            if not isinstance(verdict, Fresh):
                self._not_fresh(peer, request, header.topic, placed.asked, verdict)
                return
            skipped, known = verdict.skip, verdict.known_offset
        fresh = records.behind(skipped) if isinstance(records, RecordColumns) and skipped else records
        size = len(request.body) + len(header.properties) + RECORD_OVERHEAD_BYTES * len(fresh)
        ext: dict[str, str] = {}
        done = partial(self._done, peer, request, ext)
        staged = self._parts.group_commit.append(
            placed.topic, placed.queue_id, fresh, pack_host(*peer.remote), size, done
        )
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
                self._parts.group_commit.barrier(partial(self._done, peer, request, ext))
            case Gap(expected):
                remark = f"sequence {expected} of this producer is missing in queue {topic}/{queue_id}"
                answer_code(peer, request, ResponseCode.SEQUENCE_GAP, remark, {LANE_EXPECTED: str(expected)})
            case Fenced(epoch):
                remark = f"a producer with epoch {epoch} has taken over in queue {topic}/{queue_id}"
                answer_code(peer, request, ResponseCode.PRODUCER_FENCED, remark)
