"""Stores a stock single send that comes alone in as few steps as possible: from the bytes of the socket to the reply.

One send at a time is the slowest way to use a broker: client and broker wait for each other, and every call on the way
counts. This path takes the usual send and leaves everything else to the ordinary handler (`handlers/send`): the first
send of a client to a topic or of a producer to a queue, repeats and gaps, delays, requests that wait for a reply,
topics that are created or may not be written, sends that are refused, and brokers with users.

Invariant: a send that is taken here has the same outcome as with the ordinary handler: the same record, reply, stamp
and figures. A send that is not taken here has changed nothing.
"""

import logging
from functools import partial

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import code_for
from lanemq.broker.storage.group_commit import RECORD_OVERHEAD_BYTES
from lanemq.core.brokering.dedup import ProducerKey
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.log.appender import RecordParts, Staged
from lanemq.model.errors import BrokerRefused, StorageError
from lanemq.model.names import NOT_SENDABLE, RETRY_PREFIX
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.peer import Peer
from lanemq.net.rate_limited_log import FaultLog
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import encode_response
from lanemq.wire.properties import MAX_PROPERTIES_BYTES, tag_code_of
from lanemq.wire.record import TRANSACTION_MASK, offset_id_prefix, pack_host
from lanemq.wire.send_bursts import encode_send_answers
from lanemq.wire.single_sends import NO_STAMP, SendForm, SingleSend, form_of, read_alike

log = logging.getLogger(__name__)

MAX_FORMS = 4
"""Forms that are known of a client, one for each topic that it sends to in turn. With more topics than this, each send
is decoded in full."""

LEFT_ALONE = 32
"""Reads that go to the ordinary handler unseen after a send that cannot be taken here: looking for its form is not
worth it."""


class _Sender:
    """What the sends of one client to one topic have in common."""

    __slots__ = ("born_host", "epoch", "facts", "keys", "producer", "queues", "shape", "topic", "topic_config")

    def __init__(self, form: SendForm, peer: Peer) -> None:
        header, self.shape = form.header, form.shape
        self.topic = header.topic
        self.topic_config: TopicConfig | None = None
        """The topic when it was last found writable, and how many queues it had."""
        self.queues = 0
        self.facts = header.flag, header.sys_flag, header.reconsume_times
        self.producer, self.epoch = ("", 0) if form.stamp is None else (form.stamp.producer, form.stamp.epoch)
        self.keys: dict[int, ProducerKey] = {}
        """By queue."""
        self.born_host = pack_host(*peer.remote)


class SingleSends:
    """The path of sends that come alone. `take` is called by the server."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._faults = FaultLog(log, parts.clock)
        self._commit = parts.group_commit
        self._durable = parts.options.durable
        self._stored = "durable" if parts.options.durable else "relaxed"
        self._prefix = offset_id_prefix(*parts.advertised)
        self._max_body, self._max_properties = parts.options.max_body_bytes, MAX_PROPERTIES_BYTES

    def take(self, peer: Peer, data: bytes) -> bytes | None:
        """Store the send that `data` consists of; returns the reply, empty if it follows later. None: not taken."""
        if peer.left_alone:
            peer.left_alone -= 1
            return None
        for sender in peer.senders:
            found = read_alike(data, sender.shape)
            if found is not None:
                break
        else:
            learned = self._learn(peer, data)
            if learned is None:
                return None
            sender, found = learned
        try:
            return self._take(peer, sender, found)
        except Exception as error:  # noqa: BLE001 - as in `dispatch`: this must not close the connection
            self._faults.write(f"a send of {peer} failed", error)
            remark = "internal error; the broker's log has the details"
            return encode_response(found[0], ResponseCode.SYSTEM_ERROR, remark=remark)

    def _learn(self, peer: Peer, data: bytes) -> tuple[_Sender, SingleSend] | None:
        """Note the form of a send, and read it."""
        form = form_of(data)
        found = None if form is None else read_alike(data, form.shape)
        if form is None or found is None or not _is_plain(form):
            if form is not None:
                peer.left_alone = LEFT_ALONE
            return None
        sender = _Sender(form, peer)
        peer.senders = (sender, *peer.senders[: MAX_FORMS - 1])
        return sender, found

    def _take(self, peer: Peer, sender: _Sender, found: SingleSend) -> bytes | None:
        opaque, queue_id, born, properties, body, sequence, tagged = found
        parts = self._parts
        topic = parts.topics.get(sender.topic)
        if topic is not sender.topic_config and not _note_topic(sender, topic):
            return None
        if queue_id >= sender.queues or len(body) > self._max_body or len(properties) > self._max_properties:
            return None
        key: ProducerKey | None = None
        if sequence != NO_STAMP:
            key = sender.keys.get(queue_id)
            if key is None:
                key = sender.keys[queue_id] = (sender.topic, queue_id, sender.producer)
            if not parts.producers.continues(key, sender.epoch, sequence):
                return None
        flag, sys_flag, reconsumed = sender.facts
        tag_code = tag_code_of(properties.decode()) if tagged else 0
        item = body, properties, tag_code, flag, sys_flag, born, reconsumed
        if self._durable:
            return self._append(peer, sender, opaque, queue_id, key, item)
        began = parts.slices.nanoseconds()
        staged = self._commit.store_alone(peer.number, sender.topic, queue_id, item, sender.born_host)
        if staged is None:
            return None
        if isinstance(staged, StorageError):
            parts.traffic.failed_puts += 1
            return encode_response(opaque, code_for(staged), remark=str(staged))
        offset, (position,), store_time, size = staged
        if key is not None:
            parts.producers.record_next(key, QueueOffset(offset), Millis(store_time))
        now = Millis(parts.slices.nanoseconds() // 1_000_000)
        parts.traffic.stored(sender.topic, 1, size, took=now - began // 1_000_000, now=now)
        reply = encode_send_answers([opaque], self._prefix, [position], queue_id, offset, self._stored)
        peer.write(reply)
        self._commit.arrived(sender.topic, queue_id, offset + 1, tag_code)
        return b""

    def _append(
        self, peer: Peer, sender: _Sender, opaque: int, queue_id: int, key: ProducerKey | None, item: RecordParts
    ) -> bytes | None:
        """Append as the ordinary handler does; the reply follows when the record is on disk."""
        commit, size = self._commit, len(item[0]) + len(item[1]) + RECORD_OVERHEAD_BYTES
        if not commit.accepts(size):
            return None
        stages: list[Staged] = []
        done = partial(self._done, peer, sender.topic, opaque, queue_id, stages, self._parts.clock.now())
        commit.begin()
        try:
            staged = commit.append(sender.topic, queue_id, (item,), sender.born_host, size, done)
            stages.append(staged)
            if key is not None:
                at = Millis(staged.store_time)
                self._parts.producers.record_next(key, QueueOffset(staged.first_offset), at)
        except (BrokerRefused, StorageError):
            return None  # the ordinary handler gets the same, and answers it
        finally:
            commit.end(peer.number)
        return b""

    def _done(
        self,
        peer: Peer,
        topic: str,
        opaque: int,
        queue_id: int,
        stages: list[Staged],
        began: Millis,
        error: StorageError | None,
    ) -> None:
        parts, (staged,) = self._parts, stages
        if error is not None:
            parts.traffic.failed_puts += 1
            peer.send(encode_response(opaque, code_for(error), remark=str(error)))
            return
        now = parts.clock.now()
        parts.traffic.stored(topic, 1, staged.size, took=now - began, now=now)
        (position,), offset = staged.positions, staged.first_offset
        peer.send(encode_send_answers([opaque], self._prefix, [position], queue_id, offset, self._stored))


def _is_plain(form: SendForm) -> bool:
    """Whether sends of this form need no treatment of their own."""
    topic = form.header.topic
    is_stock = topic not in NOT_SENDABLE and not topic.startswith(RETRY_PREFIX)
    return is_stock and not form.header.sys_flag & TRANSACTION_MASK


def _note_topic(sender: _Sender, topic: TopicConfig | None) -> bool:
    """Note a topic that is new or has changed; False if it may not be written."""
    if topic is None or not topic.writable:
        return False
    sender.topic_config, sender.queues = topic, topic.queues
    return True
