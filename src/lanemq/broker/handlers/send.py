"""Storing messages: single sends, batches, the retries that consumers send, and bursts of single sends.

Steps of a send: route it, check its limits, judge its stamp, stage its records, record its stamp, answer when it is on
disk. Everything before the answer happens in one step of the event loop, so two sends to a queue never interleave, and
the sends of one connection are stored in the order of arrival.

A stamp counts in the queue that the sender chose, even while the message is delayed. A message sent to a retry or
dead-letter topic is a copy: with the stamp of the original it would count as a repeat or a gap, so the stamp is
removed.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TypeAlias

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer, answer_code, answer_error, code_for
from lanemq.broker.group_rules import max_retries
from lanemq.broker.storage.delays import DELAY_LEVEL, TIMER, SendRoute, delay_level, route_delayed
from lanemq.broker.storage.group_commit import RECORD_OVERHEAD_BYTES
from lanemq.core.brokering.dedup import Duplicate, Fenced, Fresh, Gap
from lanemq.core.brokering.delay import RouteToDeadLetter, route_retry_send
from lanemq.core.brokering.quotas import Quota
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.log.appender import NewRecords, Staged
from lanemq.model.errors import BrokerRefused, LaneError, MessageRefused, NotAllowed, StorageError
from lanemq.model.names import DEFAULT_TOPIC, NOT_SENDABLE, RETRY_PREFIX, SCHEDULE_TOPIC, check_group, check_topic
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.peer import Peer
from lanemq.net.rate_limited_log import FaultLog
from lanemq.wire.batch import (
    DELAYED,
    MAX_BATCH_MESSAGES,
    TAGGED,
    PlainBatch,
    RecordColumns,
    all_stamped,
    scan_batch,
    split_batch_raw,
    weigh,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, Frame, decode_command, encode_response
from lanemq.wire.headers import SendHeader
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_EXPECTED, LANE_KNOWN_OFFSET, LANE_SKIPPED, LANE_STORED
from lanemq.wire.properties import (
    LANE_STAMP,
    MAX_PROPERTIES_BYTES,
    PropertyName,
    append_properties,
    find_property,
    following_stamps,
    remove_property,
    stamp_in,
    stamp_prefix,
    tag_code_of,
)
from lanemq.wire.record import TRANSACTION_MASK, encode_offset_id, offset_id_prefix, pack_host
from lanemq.wire.send_bursts import SendBurst, encode_send_answers, first_of, read_sends
from lanemq.wire.signing import ACCESS_KEY

log = logging.getLogger(__name__)

_TAG = b"TAGS\x01"

_REQUEST = PropertyName.REPLY_TO_CLIENT + "\x01"
"""In a message whose sender waits for a reply. The receiver finds the reply topic by the cluster's name, which the
broker adds; RocketMQ adds it to every message."""

MAX_PRODUCER_USERS = 100_000
"""Producer ids whose user is remembered; beyond it, the oldest one may be used by another user."""

MAX_ANSWERED_IDS = 4_000
"""Message ids in the answer to a batch; more would not fit into a header, and clients show them at most."""

MAX_BURST_FRAMES = 1024
"""Frames examined at once for bursts; afterwards the server checks again whether the peer reads its answers."""

SINGLY = 32
"""Sends handled one by one after a send without followers. A producer that alternates between queues has no bursts, and
searching for them would decode every send twice."""

_PLAIN = b'{"code":310,'
"""The start of a single send's header from nearly all clients; other headers are handled one by one."""

_Taken: TypeAlias = tuple[Stamp | None, NewRecords]
"""The first stamp of a request, if it has stamps, and its messages."""


class SendHandler:
    """Requests 10, 310 and 320."""

    def __init__(self, parts: BrokerContext) -> None:
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
        self._parts.group_commit.refuse_sends()
        if header.sys_flag & TRANSACTION_MASK:
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "transactional messages are not supported by LaneMQ")
        target = route(self._parts, header, peer, request)
        if self._parts.options.users is not None and _REQUEST in header.properties:
            self._note_request(peer, header.properties)
        if header.batch:
            first, records = self._batch(header, request.body)
        else:
            first, records = self._single(header, target.properties, request.body)
        self._store(peer, request, header, target, first, records)

    def _note_request(self, peer: Peer, properties: str) -> None:
        """Note that the sender waits for a reply: with users, others may not send it any."""
        client_id = find_property(properties, PropertyName.REPLY_TO_CLIENT)
        correlation = find_property(properties, PropertyName.CORRELATION_ID)
        if client_id is not None and correlation is not None:
            self._parts.notices.asks_for_reply(peer, client_id, correlation)

    def _single(self, header: SendHeader, properties: str, body: bytes) -> _Taken:
        if _REQUEST in properties:
            properties = append_properties(
                remove_property(properties, PropertyName.CLUSTER), {PropertyName.CLUSTER: self._parts.options.cluster}
            )
        text = properties.encode()
        self._refuse_large(len(body), len(text))
        tag_code = tag_code_of(properties) if _TAG in text else 0
        first = stamp_in(text)
        same = header.sys_flag, header.born_timestamp, header.reconsume_times
        return first, [(body, text, tag_code, header.flag, *same)]

    def _batch(self, header: SendHeader, body: bytes) -> _Taken:
        """A batch as our producers send it stays in one piece."""
        count, largest, longest, found, text = scan_batch(body, MAX_BATCH_MESSAGES)
        if count > MAX_BATCH_MESSAGES:
            remark = f"the batch has more than {MAX_BATCH_MESSAGES} messages: split it"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        first = None if found or header.properties else stamp_in(text)
        if first is None or not all_stamped(body, stamp_prefix(first), first.sequence):
            return self._batch_by_column(header, body)
        self._refuse_large(largest, longest)
        return first, PlainBatch(body, count, header.born_timestamp, header.sys_flag, header.reconsume_times)

    def _batch_by_column(self, header: SendHeader, body: bytes) -> _Taken:
        """Decode by column; rare properties (delays, tags) are searched in all messages at once."""
        flags, bodies, texts = split_batch_raw(body)
        _, largest, longest, found = weigh(bodies, texts)
        if found & DELAYED:
            for text in texts:
                _refuse_delay(text.decode())
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
        if properties > MAX_PROPERTIES_BYTES:
            remark = f"the properties have {properties} bytes, the limit is {MAX_PROPERTIES_BYTES}"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)

    def _store(
        self,
        peer: Peer,
        request: Command,
        header: SendHeader,
        target: SendRoute,
        first: Stamp | None,
        records: NewRecords,
    ) -> None:
        """Judge the stamp, stage the records, record the stamp: one step of the event loop.

        Stamps count in the queue that the sender chose (`target.asked`), even if a delayed message is stored elsewhere.
        """
        skipped, known = 0, None
        if first is not None:
            if self._parts.options.users is not None:
                self._refuse_foreign_producer(request, first.producer)
            verdict = self._parts.producers.judge(header.topic, target.asked, first, len(records))
            if not isinstance(verdict, Fresh):
                self._answer_not_fresh(peer, request, header.topic, target.asked, verdict)
                return
            skipped, known = verdict.skip, verdict.known_offset
        fresh = records
        if skipped and isinstance(records, PlainBatch):
            fresh = records.columns().behind(skipped)
        elif skipped and isinstance(records, RecordColumns):
            fresh = records.behind(skipped)
        size = len(request.body) + len(header.properties) + RECORD_OVERHEAD_BYTES * len(fresh)
        ext: dict[str, str] = {}
        stages: list[Staged] = []
        done = partial(self._fresh_done, peer, request, ext, header.topic, stages, self._parts.clock.now())
        host = pack_host(*peer.remote)
        if target.topic == SCHEDULE_TOPIC:
            staged = self._parts.delay_delivery.append(target.queue_id, fresh, host, size, done)
        else:
            staged = self._parts.group_commit.append(target.topic, target.queue_id, fresh, host, size, done)
        stages.append(staged)
        if first is not None:
            start = Stamp(first.producer, first.epoch, first.sequence + skipped)
            self._parts.producers.record(
                header.topic,
                target.asked,
                start,
                len(fresh),
                QueueOffset(staged.first_offset),
                stored_at=Millis(staged.store_time),
                user=None if self._parts.options.users is None else request.ext.get(ACCESS_KEY),
            )
        positions = staged.positions[: MAX_ANSWERED_IDS if header.lane_client is None else 1]
        ext["msgId"] = ",".join([encode_offset_id(*self._parts.advertised, position) for position in positions])
        ext["queueId"] = str(target.asked)
        ext["queueOffset"] = str(staged.first_offset)
        if skipped:
            # A crash cut the batch in two: the messages stored before it are at other offsets than these.
            ext[LANE_SKIPPED] = str(skipped)
            ext[LANE_KNOWN_OFFSET] = str(-1 if known is None else known)

    def _refuse_foreign_producer(self, request: Command, producer: str) -> None:
        """Refuse a producer id that another user has used: its stamps decide which messages count as repeats."""
        users, user = self._parts.producer_users, request.ext.get(ACCESS_KEY, "")
        if users.setdefault(producer, user) != user:
            self._parts.counters.refusals.add(RefusalReason.NOT_ALLOWED)
            raise NotAllowed(ResponseCode.NO_PERMISSION, f"producer id {producer[:64]!r} belongs to another user")
        if len(users) > MAX_PRODUCER_USERS:
            del users[next(iter(users))]

    def _fresh_done(
        self,
        peer: Peer,
        request: Command,
        ext: dict[str, str],
        topic: str,
        stages: list[Staged],
        began: Millis,
        error: StorageError | None,
    ) -> None:
        _count(self._parts, topic, stages, began, error)
        self._done(peer, request, ext, error)

    def _done(self, peer: Peer, request: Command, ext: dict[str, str], error: StorageError | None) -> None:
        if error is not None:
            answer_error(peer, request, error)
            return
        ext.update(self._always)
        ext[LANE_STORED] = self._stored
        answer(peer, request, ext)

    def _answer_not_fresh(
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
                # The original may not be on disk yet, and this answer must not come before it is.
                self._parts.group_commit.barrier(partial(self._done, peer, request, ext))
            case Gap(expected):
                remark = f"sequence {expected} of this producer is missing in queue {topic}/{queue_id}"
                answer_code(peer, request, ResponseCode.SEQUENCE_GAP, remark, {LANE_EXPECTED: str(expected)})
            case Fenced(epoch):
                remark = f"a producer with epoch {epoch} has taken over in queue {topic}/{queue_id}"
                answer_code(peer, request, ResponseCode.PRODUCER_FENCED, remark)


# routing: the queue that stores a message


def route(parts: BrokerContext, header: SendHeader, peer: Peer, request: Command | None) -> SendRoute:
    """Route a send. Creates the topic if it may; raises the refusal that the sender is answered.

    A new topic is charged to the sender; `request` is None for a burst, which has no user.
    """
    name = header.topic
    if name in NOT_SENDABLE:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {name} belongs to the broker; send to another")
    topic = parts.topics.get(name)
    if topic is None:
        parts.charges.create_topic(peer, request, name, parts.options.default_queues)
        try:
            topic = _new_topic(parts, header, name)
        finally:
            parts.charges.shrink(Quota.QUEUES, (name,))  # if it was not created, or with fewer queues
    if not topic.writable:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {name} may not be written")
    if header.queue_id >= topic.queues:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {header.queue_id} of topic {name} does not exist: it has {topic.write_queues}",
        )
    if name.startswith(RETRY_PREFIX):
        return _route_retry(parts, header, topic)
    queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(topic.write_queues)
    if header.batch:
        _refuse_delay(header.properties)
    elif _wants_delay(header.properties):
        return route_delayed(name, queue_id, header.properties)
    return SendRoute(name, queue_id, header.properties, queue_id)


def _new_topic(parts: BrokerContext, header: SendHeader, name: str) -> TopicConfig:
    check_topic(name)
    if not parts.options.auto_create_topics and not name.startswith(RETRY_PREFIX):
        return parts.topic_keeper.existing(name)
    if not header.default_topic and not name.startswith(RETRY_PREFIX):
        # The sender knew the topic, with its queues and its order: a new one could break both.
        return parts.topic_keeper.existing(name)
    queues = min(max(header.default_topic_queue_nums, 1), parts.options.default_queues)
    template = header.default_topic or DEFAULT_TOPIC
    return parts.topic_keeper.take(parts.topics.auto_create(name, template, queues))


def _route_retry(parts: BrokerContext, header: SendHeader, topic: TopicConfig) -> SendRoute:
    """Route a message that a client sends to a retry topic itself."""
    if header.batch:
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "a retry topic takes no batches")
    group = check_group(topic.name.removeprefix(RETRY_PREFIX))
    next_stop = route_retry_send(
        header.reconsume_times,
        max_retries(parts, group, header.max_reconsume_times),
        requested=delay_level(header.properties),
        group_holds_lock=parts.locks.holds_any(group, now=parts.clock.now()),
    )
    properties = remove_property(remove_property(header.properties, PropertyName.DELAY), LANE_STAMP)
    if isinstance(next_stop, RouteToDeadLetter):
        dead = parts.topic_keeper.take(parts.topics.ensure_dead_letter(group))
        return SendRoute(dead.name, 0, properties, 0)
    delayed = append_properties(properties, {PropertyName.DELAY: str(next_stop.level)})
    return route_delayed(topic.name, 0, delayed)


def _wants_delay(properties: str) -> bool:
    """Whether the properties may ask for a delay; a fast check for the common case."""
    return DELAY_LEVEL in properties or TIMER in properties


def _refuse_delay(properties: str) -> None:
    """Refuse delays in a batch, whose messages are stored together."""
    if _wants_delay(properties) and delay_level(properties):
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot be delayed; send them singly")


# sends that arrive together


class SendBursts:
    """Stores bursts: single sends to one queue that arrived together share one decision, one append and one answer.

    Clients cannot tell a burst from sends handled one by one, except by the time they take. So a burst contains only
    sends that are certain to be treated alike: to one queue, with consecutive stamps, and accepted by the log now.
    Everything else, refusals included, goes to the ordinary handler one by one.
    """

    def __init__(self, parts: BrokerContext, handle: Handler) -> None:
        self._parts = parts
        self._faults = FaultLog(log, parts.clock)
        self._handle = handle
        self._stored = "durable" if parts.options.durable else "relaxed"

    def take(self, peer: Peer, incoming: deque[Frame]) -> int:
        """Handle the sends at the start of `incoming`; returns the number of frames handled, 0 if there are none."""
        if not incoming[0].header.startswith(_PLAIN):
            return 0
        if peer.singly:
            peer.singly -= 1
            return 0
        frames, at = list(islice(incoming, MAX_BURST_FRAMES)), 0
        while at < len(frames) and not peer.singly and (taken := self._take_burst(peer, frames, at)):
            at += taken
            if taken == 1 and at < len(frames):
                peer.singly = SINGLY
        return at

    def _take_burst(self, peer: Peer, frames: list[Frame], at: int) -> int:
        burst = read_sends(frames, at)
        if burst is None:
            return 0
        stamp, count = following_stamps(burst.properties)
        if count < len(burst.opaques):
            burst = first_of(burst, count)
        try:
            stored = count > 1 and self._store(peer, burst, stamp)
        except Exception as error:  # noqa: BLE001 - as in `dispatch`: this must not close the connection
            self._faults.write(f"{count} sends of {peer} failed", error)
            _answer_all(
                peer, burst.opaques, ResponseCode.SYSTEM_ERROR, "internal error; the broker's log has the details"
            )
            return count
        if not stored:
            for frame in frames[at : at + count]:
                self._handle(peer, decode_command(frame))
        return count

    def _store(self, peer: Peer, burst: SendBurst, first: Stamp | None) -> bool:
        """Store a burst; False if its sends must be handled one by one, and nothing was stored."""
        header, parts = burst.header, self._parts
        count, weight = len(burst.opaques), weigh(burst.bodies, burst.properties)
        if not self._is_plain(burst, weight):
            return False
        try:
            queue_id = route(parts, header, peer, None).queue_id
            if first is not None and parts.producers.judge(header.topic, queue_id, first, count) != Fresh():
                return False
            staged = self._append(peer, burst, queue_id, weight[0])
        except LaneError:
            return False
        if first is not None:
            at = Millis(staged.store_time)
            offset = QueueOffset(staged.first_offset)
            parts.producers.record(header.topic, queue_id, first, count, offset, stored_at=at)
        return True

    def _is_plain(self, burst: SendBurst, weight: tuple[int, int, int, int]) -> bool:
        """Whether no send of the burst needs individual treatment."""
        header, options = burst.header, self._parts.options
        if header.queue_id < 0 or header.sys_flag & TRANSACTION_MASK or header.topic.startswith(RETRY_PREFIX):
            return False
        _, largest, longest, apart = weight
        return not apart and largest <= options.max_body_bytes and longest <= MAX_PROPERTIES_BYTES

    def _append(self, peer: Peer, burst: SendBurst, queue_id: int, size: int) -> Staged:
        header, count = burst.header, len(burst.bodies)
        size += RECORD_OVERHEAD_BYTES * len(burst.opaques)
        records = RecordColumns(
            burst.bodies,
            burst.properties,
            [0] * count,
            [header.flag] * count,
            burst.born,
            header.sys_flag,
            header.reconsume_times,
        )
        stages: list[Staged] = []
        done = partial(self._done, peer, burst, queue_id, stages, self._parts.clock.now())
        born_host = pack_host(*peer.remote)
        staged = self._parts.group_commit.append(header.topic, queue_id, records, born_host, size, done)
        stages.append(staged)
        return staged

    def _done(
        self,
        peer: Peer,
        burst: SendBurst,
        queue_id: int,
        stages: list[Staged],
        began: Millis,
        error: StorageError | None,
    ) -> None:
        opaques = burst.opaques
        _count(self._parts, burst.header.topic, stages, began, error)
        if error is not None:
            _answer_all(peer, opaques, code_for(error), str(error))
            return
        (staged,) = stages
        prefix = offset_id_prefix(*self._parts.advertised)
        positions = list(staged.positions)
        peer.send(encode_send_answers(opaques, prefix, positions, queue_id, staged.first_offset, self._stored))


def _count(parts: BrokerContext, topic: str, stages: list[Staged], began: Millis, error: StorageError | None) -> None:
    """Count stored messages; `stages` is empty if the append itself was refused."""
    for staged in stages:
        if error is not None:
            parts.traffic.failed_puts += len(staged.positions)
        else:
            now = parts.clock.now()
            parts.traffic.stored(topic, len(staged.positions), staged.size, took=now - began, now=now)


def _answer_all(peer: Peer, opaques: list[int], code: int, remark: str) -> None:
    for opaque in opaques:
        peer.send(encode_response(opaque, code, remark=remark))
