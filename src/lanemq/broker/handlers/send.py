"""Storing messages: single sends, batches, and the retries that consumers send.

Steps of a send: route it, check its limits, judge its stamp, stage its records, record its stamp, answer when it is on
disk. Everything before the answer happens in one step of the event loop, so two sends to a queue never interleave, and
the sends of one connection are stored in the order of arrival.

Usual single sends that arrive together take these steps together (`wire/sends`). Clients cannot tell, except by the
time it takes: where one of them would be treated in another way than the others, they take the steps one by one.

A stamp counts in the queue that the sender chose, even while the message is delayed. A message sent to a retry or
dead-letter topic is a copy: with the stamp of the original it would count as a repeat or a gap, so the stamp is
removed.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat

from msgspec import Struct

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer, answer_code, answer_error, answer_fault
from lanemq.broker.group_rules import max_retries
from lanemq.broker.storage.delays import DELAY_LEVEL, TIMER, SendRoute, delay_level, route_delayed
from lanemq.broker.storage.group_commit import RECORD_OVERHEAD_BYTES
from lanemq.core.brokering.dedup import Duplicate, Fenced, Fresh, Gap
from lanemq.core.brokering.delay import RouteToDeadLetter, route_retry_send
from lanemq.core.brokering.quotas import Quota
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.log.appender import NewRecords, RecordParts, Staged
from lanemq.model.errors import BrokerRefused, LaneError, MessageRefused, NotAllowed, StorageError
from lanemq.model.names import DEFAULT_TOPIC, NOT_SENDABLE, RETRY_PREFIX, SCHEDULE_TOPIC, check_group, check_topic
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.rate_limited_log import FaultLog
from lanemq.net.serving.peer import Peer
from lanemq.wire.batch import (
    DELAYED,
    MAX_BATCH_MESSAGES,
    REQUESTING,
    TAGGED,
    PlainBatch,
    all_stamped,
    scan_batch,
    split_batch_raw,
    weigh,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, Frame
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
from lanemq.wire.sends import Sends, encode_send_answers, read_following
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

_FRESH = Fresh()


class _OneByOne(LaneError):
    """Sends that were read together must be handled one by one. Nothing was stored."""


class _Messages(Struct):
    """The messages of a request, or of single sends that were read together."""

    records: NewRecords
    stamp: Stamp | None
    """Of the first one; those of the others follow."""
    size: int
    """Bytes of bodies and properties."""


class _Senders(Struct):
    """Who waits for an answer: the sender of one request, or of each of several single sends."""

    peer: Peer
    request: Command | None
    """None for single sends that were read together, whose opaques are enough to answer them."""
    opaques: list[int]

    def each(self, answered: Callable[[Peer, Command], None]) -> None:
        """Answer every one of them."""
        if self.request is not None:
            answered(self.peer, self.request)
            return
        for opaque in self.opaques:
            answered(self.peer, Command(RequestCode.SEND_MESSAGE_V2, opaque))

    def refuse(self, error: LaneError) -> None:
        self.each(partial(answer_error, error=error))


class SendHandler:
    """Requests 10, 310 and 320."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._faults = FaultLog(log, context.clock)
        self._id_prefix = offset_id_prefix(*context.advertised)
        self._stored = "durable" if context.options.durable else "relaxed"

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: partial(self._send, SendHeader.from_ext_v1),
            RequestCode.SEND_MESSAGE_V2: partial(self._send, SendHeader.from_ext_v2),
            RequestCode.SEND_BATCH_MESSAGE: partial(self._send, SendHeader.from_ext_v2),
        }

    def _send(self, decode: Callable[[dict[str, str]], SendHeader], peer: Peer, request: Command) -> None:
        """A send that was decoded as any other request."""
        header, body, senders = decode(request.ext), request.body, _Senders(peer, request, [request.opaque])
        if header.batch:
            self._accept(senders, header, partial(self._batch, header, body))
            return
        text = header.properties.encode()
        sends = Sends(header, senders.opaques, [body], [text], [header.born_timestamp])
        self._accept(senders, header, partial(self._singles, sends, stamp_in(text)))

    def store_sends(self, peer: Peer, frames: deque[Frame]) -> bool:
        """Store the usual single sends with which the frames begin, and remove them; False if there are none."""
        together = read_following(frames)
        if together is None:
            return False
        sends, stamp = together
        for _ in sends.opaques:
            frames.popleft()
        self._store_sends(peer, sends, stamp)
        return True

    def _store_sends(self, peer: Peer, sends: Sends, stamp: Stamp | None) -> None:
        senders = _Senders(peer, None, sends.opaques)
        try:
            self._accept(senders, sends.header, partial(self._singles, sends, stamp))
        except LaneError as error:
            if len(sends.opaques) == 1:
                senders.refuse(error)
                return
            for at, text in enumerate(sends.properties):
                self._store_sends(peer, sends.only(at), stamp_in(text))
        except Exception as error:  # noqa: BLE001 - as in `dispatch`: this must not close the connection
            self._faults.write(f"{len(sends.opaques)} sends of {peer} failed", error)
            senders.each(answer_fault)

    def _accept(self, senders: _Senders, header: SendHeader, read: Callable[[SendRoute], _Messages]) -> None:
        """Route a send, read its messages, store them; or raise what its sender is answered."""
        context, peer = self._context, senders.peer
        if context.group_commit.refusing:
            context.group_commit.refuse_sends()
        if header.sys_flag & TRANSACTION_MASK:
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "transactional messages are not supported by LaneMQ")
        target = route(context, header, peer, senders.request)
        if context.options.users is not None and _REQUEST in header.properties:
            self._note_request(peer, header.properties)
        self._store(senders, header, target, read(target))

    def _note_request(self, peer: Peer, properties: str) -> None:
        """Note that the sender waits for a reply: with users, others may not send it any."""
        client_id = find_property(properties, PropertyName.REPLY_TO_CLIENT)
        correlation = find_property(properties, PropertyName.CORRELATION_ID)
        if client_id is not None and correlation is not None:
            self._context.notices.asks_for_reply(peer, client_id, correlation)

    # reading: the messages of a request

    def _singles(self, sends: Sends, stamp: Stamp | None, target: SendRoute) -> _Messages:
        header, bodies, texts = sends.header, sends.bodies, sends.properties
        size, largest, longest, special = weigh(bodies, texts)
        if len(bodies) > 1:
            if special or header.queue_id < 0 or target.topic != header.topic:
                raise _OneByOne
        elif special & REQUESTING or target.properties is not header.properties:
            texts = [self._properties(target.properties, special)]
            longest, stamp = len(texts[0]), stamp_in(texts[0])
        if largest > self._context.options.max_body_bytes or longest > MAX_PROPERTIES_BYTES:
            self._refuse_large(largest, longest)
        tag_code = tag_code_of(header.properties) if special & TAGGED else 0
        same = repeat(tag_code), repeat(header.flag), repeat(header.sys_flag)
        records = list(zip(bodies, texts, *same, sends.born, repeat(header.reconsume_times), strict=False))
        return _Messages(records, stamp, size)

    def _properties(self, text: str, special: int) -> bytes:
        """The properties of a message as they are stored."""
        if special & REQUESTING:
            cluster = {PropertyName.CLUSTER: self._context.options.cluster}
            text = append_properties(remove_property(text, PropertyName.CLUSTER), cluster)
        return text.encode()

    def _batch(self, header: SendHeader, body: bytes, _: SendRoute) -> _Messages:
        """A batch as our producers send it stays in one piece."""
        count, largest, longest, special, text = scan_batch(body, MAX_BATCH_MESSAGES)
        if count > MAX_BATCH_MESSAGES:
            remark = f"the batch has more than {MAX_BATCH_MESSAGES} messages: split it"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        size, first = len(body) + len(header.properties), None if special or header.properties else stamp_in(text)
        if first is None or not all_stamped(body, stamp_prefix(first), first.sequence):
            records, first = self._split_batch(header, body)
            return _Messages(records, first, size)
        self._refuse_large(largest, longest)
        batch = PlainBatch(body, count, header.born_timestamp, header.sys_flag, header.reconsume_times)
        return _Messages(batch, first, size)

    def _split_batch(self, header: SendHeader, body: bytes) -> tuple[list[RecordParts], Stamp | None]:
        """Any other batch. Rare properties (delays, tags) are searched in all messages at once."""
        flags, bodies, texts = split_batch_raw(body)
        _, largest, longest, special = weigh(bodies, texts)
        if special & DELAYED:
            for text in texts:
                _refuse_delay(text.decode())
        shared = remove_property(header.properties, PropertyName.UNIQUE_ID).encode()
        if shared:
            texts = [text + shared if text.endswith(b"\x02") else text + b"\x02" + shared for text in texts]
            longest = max(map(len, texts))
        self._refuse_large(largest, longest)
        tagged = special & TAGGED or _TAG in shared
        tag_codes = [tag_code_of(text.decode()) for text in texts] if tagged else [0] * len(texts)
        first, following = following_stamps(texts)
        if following < len(texts):
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "the stamps of a batch must follow one another")
        same = header.sys_flag, header.born_timestamp, header.reconsume_times
        columns = zip(bodies, texts, tag_codes, flags, strict=True)
        return [(*message, *same) for message in columns], first

    def _refuse_large(self, body: int, properties: int) -> None:
        options = self._context.options
        if body > options.max_body_bytes:
            remark = f"the body has {body} bytes, the limit is {options.max_body_bytes}"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if properties > MAX_PROPERTIES_BYTES:
            remark = f"the properties have {properties} bytes, the limit is {MAX_PROPERTIES_BYTES}"
            raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, remark)

    # storing

    def _store(self, senders: _Senders, header: SendHeader, target: SendRoute, messages: _Messages) -> None:
        """Judge the stamp, stage the records, record the stamp: one step of the event loop.

        Stamps count in the queue that the sender chose (`target.requested`), also if the message is delayed and so
        stored in another one.
        """
        context, records, stamp, size, verdict = self._context, messages.records, messages.stamp, messages.size, _FRESH
        if stamp is not None:
            if context.options.users is not None:
                self._refuse_foreign_producer(senders.request, stamp.producer)
            judged = context.producers.judge(header.topic, target.requested, stamp, len(records))
            if len(senders.opaques) > 1 and (not isinstance(judged, Fresh) or judged.skip):
                raise _OneByOne
            if not isinstance(judged, Fresh):
                self._answer_not_fresh(senders, header.topic, target.requested, judged)
                return
            verdict = judged
        if verdict.skip:
            records = (records.records() if isinstance(records, PlainBatch) else records)[verdict.skip :]
        size += RECORD_OVERHEAD_BYTES * len(records)
        stages: list[Staged] = []
        done = partial(self._done, senders, header, target.requested, verdict, stages, context.clock.now())
        host = pack_host(*senders.peer.remote)
        if target.topic == SCHEDULE_TOPIC:
            staged = context.delay_delivery.append(target.queue_id, records, host, size, done)
        else:
            staged = context.group_commit.append(target.topic, target.queue_id, records, host, size, done)
        stages.append(staged)
        if stamp is not None:
            context.producers.record(
                header.topic,
                target.requested,
                stamp._replace(sequence=stamp.sequence + verdict.skip) if verdict.skip else stamp,
                len(records),
                QueueOffset(staged.first_offset),
                stored_at=Millis(staged.store_time),
                user=None if context.options.users is None else _user(senders.request),
            )

    def _refuse_foreign_producer(self, request: Command | None, producer: str) -> None:
        """Refuse a producer id that another user has used: its stamps decide which messages count as repeats."""
        users, user = self._context.producer_users, _user(request) or ""
        if users.setdefault(producer, user) != user:
            self._context.counters.refusals.add(RefusalReason.NOT_ALLOWED)
            raise NotAllowed(ResponseCode.NO_PERMISSION, f"producer id {producer[:64]!r} belongs to another user")
        if len(users) > MAX_PRODUCER_USERS:
            del users[next(iter(users))]

    # answering

    def _done(
        self,
        senders: _Senders,
        header: SendHeader,
        queue_id: int,
        verdict: Fresh,
        stages: list[Staged],
        began: Millis,
        error: StorageError | None,
    ) -> None:
        """Count and answer what is on disk now. `stages` is empty if the append itself was refused."""
        context = self._context
        if error is not None:
            context.traffic.failed_puts += sum(len(staged.positions) for staged in stages)
            senders.refuse(error)
            return
        (staged,), now = stages, context.clock.now()
        context.traffic.stored(header.topic, len(staged.positions), staged.size, took=now - began, now=now)
        if senders.request is None:
            place = list(staged.positions), queue_id, staged.first_offset
            senders.peer.send(encode_send_answers(senders.opaques, self._id_prefix, *place, self._stored))
            return
        positions = staged.positions[: MAX_ANSWERED_IDS if header.lane_client is None else 1]
        ext = {
            "msgId": ",".join([encode_offset_id(*context.advertised, position) for position in positions]),
            "queueId": str(queue_id),
            "queueOffset": str(staged.first_offset),
        }
        if verdict.skip:
            # A crash cut the batch in two: the messages stored before it are at other offsets than these.
            ext[LANE_SKIPPED] = str(verdict.skip)
            ext[LANE_KNOWN_OFFSET] = str(-1 if verdict.known_offset is None else verdict.known_offset)
        self._answer(senders, ext)

    def _answer(self, senders: _Senders, ext: dict[str, str]) -> None:
        ext |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", LANE_STORED: self._stored}
        senders.each(partial(answer, ext=ext))

    def _answer_not_fresh(
        self, senders: _Senders, topic: str, queue_id: int, verdict: Duplicate | Gap | Fenced
    ) -> None:
        match verdict:
            case Duplicate(offset):
                ext = {
                    "msgId": "",
                    "queueId": str(queue_id),
                    "queueOffset": str(-1 if offset is None else offset),
                    LANE_DUPLICATE: "true",
                }

                def on_disk(error: StorageError | None) -> None:
                    if error is None:
                        self._answer(senders, ext)
                    else:
                        senders.refuse(error)

                # The original may not be on disk yet, and this answer must not come before it is.
                self._context.group_commit.barrier(on_disk)
            case Gap(expected):
                code, ext = ResponseCode.SEQUENCE_GAP, {LANE_EXPECTED: str(expected)}
                remark = f"sequence {expected} of this producer is missing in queue {topic}/{queue_id}"
                senders.each(partial(answer_code, code=code, remark=remark, ext=ext))
            case Fenced(epoch):
                remark = f"a producer with epoch {epoch} has taken over in queue {topic}/{queue_id}"
                senders.each(partial(answer_code, code=ResponseCode.PRODUCER_FENCED, remark=remark))


def _user(request: Command | None) -> str | None:
    return None if request is None else request.ext.get(ACCESS_KEY)


# routing: the queue that stores a message


def route(context: BrokerContext, header: SendHeader, peer: Peer, request: Command | None) -> SendRoute:
    """Route a send. Creates the topic if it may; raises the refusal that the sender is answered.

    A new topic is charged to the sender; `request` is None for sends that were read together, which have no user.
    """
    name = header.topic
    if name in NOT_SENDABLE:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {name} belongs to the broker; send to another")
    topic = context.topics.get(name)
    if topic is None:
        context.charges.create_topic(peer, request, name, context.options.default_queues)
        try:
            topic = _new_topic(context, header, name)
        finally:
            context.charges.shrink(Quota.QUEUES, (name,))  # if it was not created, or with fewer queues
    if not topic.takes(header.queue_id):
        if not topic.writable:
            raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {name} may not be written")
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {header.queue_id} of topic {name} does not exist: it has {topic.write_queues}",
        )
    if name.startswith(RETRY_PREFIX):
        return _route_retry(context, header, topic)
    queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(topic.write_queues)
    if DELAY_LEVEL in header.properties or TIMER in header.properties:
        if not header.batch:
            return route_delayed(name, queue_id, header.properties)
        _refuse_delay(header.properties)
    return SendRoute(name, queue_id, header.properties, queue_id)


def _new_topic(context: BrokerContext, header: SendHeader, name: str) -> TopicConfig:
    check_topic(name)
    if not context.options.auto_create_topics and not name.startswith(RETRY_PREFIX):
        return context.topic_keeper.existing(name)
    if not header.default_topic and not name.startswith(RETRY_PREFIX):
        # The sender knew the topic, with its queues and its order: a new one could break both.
        return context.topic_keeper.existing(name)
    queues = min(max(header.default_topic_queue_nums, 1), context.options.default_queues)
    template = header.default_topic or DEFAULT_TOPIC
    return context.topic_keeper.take(context.topics.auto_create(name, template, queues))


def _route_retry(context: BrokerContext, header: SendHeader, topic: TopicConfig) -> SendRoute:
    """Route a message that a client sends to a retry topic itself."""
    if header.batch:
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "a retry topic takes no batches")
    group = check_group(topic.name.removeprefix(RETRY_PREFIX))
    next_stop = route_retry_send(
        header.reconsume_times,
        max_retries(context, group, header.max_reconsume_times),
        requested=delay_level(header.properties),
        group_holds_lock=context.locks.holds_any(group, now=context.clock.now()),
    )
    properties = remove_property(remove_property(header.properties, PropertyName.DELAY), LANE_STAMP)
    if isinstance(next_stop, RouteToDeadLetter):
        dead = context.topic_keeper.take(context.topics.ensure_dead_letter(group))
        return SendRoute(dead.name, 0, properties, 0)
    delayed = append_properties(properties, {PropertyName.DELAY: str(next_stop.level)})
    return route_delayed(topic.name, 0, delayed)


def _refuse_delay(properties: str) -> None:
    """Refuse delays in a batch, whose messages are stored together."""
    if delay_level(properties):
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot be delayed; send them singly")
