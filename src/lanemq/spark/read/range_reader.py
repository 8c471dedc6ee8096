"""Reads the range of a queue: blocking pulls of the records between two offsets. Without PySpark.

Invariant: every message of a range is returned once, in the order of offsets, or the reader fails, or (with
`failOnDataLoss=false`) it logs what is missing. The reader waits for an absent broker up to a limit; a chunk is
returned only when it is complete, so a retry repeats nothing.

A range is read from the message before it. If another one has its offset, the log is not the one that was read so far:
the broker was restored from an older backup, or the log was truncated, and has grown again. Each pull names the topic's
time of creation, so the broker returns nothing of a topic that was created again since the range was planned.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from lanemq.client.consumer.tag_filter import TagFilter
from lanemq.model.errors import LaneError, RemoteProtocolError, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.net.security import OPEN, Security
from lanemq.spark.offsets import Created, NewestMessage, creation_key
from lanemq.spark.options import ALL_TAGS, ReadOptions
from lanemq.spark.read.planning import OffsetRange, other_log
from lanemq.spark.retrying import Retrying
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, PullResponse
from lanemq.wire.record import PULL_SUBSCRIPTION, RecordView, record_starts

log = logging.getLogger(__name__)

PULL_SECONDS = 30.0
PULL_BYTES = 1024 * 1024
"""Requested from LaneMQ brokers; an Apache broker returns at most 256 KiB and 32 messages. A response is received,
decoded and sent on before the next one, so larger ones have left the processor's cache when they are needed again: with
4 MiB a row costs 15 % more CPU time in Python. Much smaller: the cost per pull and per batch dominates."""
PULL_MESSAGES = 4096
SAMPLE_BYTES = 64 * 1024
SAMPLE_PULLS = 4
"""Pulls to find the first message that passes the tag filter; each is a round trip before a batch can be planned."""
ASSUMED_MESSAGE_BYTES = 1024.0
"""Message size if none was seen. Too large makes batches small; 0 would make them unlimited."""

_EXPECTED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_ADVANCES = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})


class DataLost(LaneError):
    """Messages of a range no longer exist."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a task reads of one queue: offsets from `first` up to, but not including, `end`."""

    queue: MessageQueue
    first: QueueOffset
    end: QueueOffset
    address: Address
    group: str
    tags: TagFilter = ALL_TAGS
    newest_before: NewestMessage | None = None
    """The queue's newest message when `first` was chosen, which was read up to there. None: not known."""
    created: int | None = None
    """When the broker created the topic whose offsets these are. None: not known."""


def queue_range(
    offsets: OffsetRange,
    options: ReadOptions,
    address: Address,
    created: Created,
    newest_before: NewestMessage | None = None,
) -> QueueRange:
    """These offsets, with the broker's address. `created` says when the topics were created."""
    return QueueRange(
        queue=offsets.queue,
        first=offsets.first,
        end=offsets.end,
        address=address,
        group=options.pull_group,
        tags=options.tags,
        newest_before=newest_before,
        created=created.get(creation_key(offsets.queue)),
    )


def report_losses(losses: Sequence[str], *, fail: bool) -> None:
    """Applies `failOnDataLoss`: raises one error for all losses, or logs a warning for each."""
    if losses and fail:
        raise DataLost("; ".join(losses) + ". To continue without these messages set failOnDataLoss=false")
    for loss in losses:
        log.warning("%s; continuing without these messages", loss)


class Sample(NamedTuple):
    """What the beginning of a range looks like."""

    empty: int
    """Number of offsets at the beginning that hold no message that passes the filter."""
    size: float
    """Average bytes of the messages after them; `ASSUMED_MESSAGE_BYTES` if none was seen, never 0."""


class RangeReader:
    """Pulls ranges, one at a time. Ranges of one broker that follow each other share a connection."""

    def __init__(self, retrying: Retrying, *, fail_on_data_loss: bool = True, security: Security = OPEN) -> None:
        self._retrying = retrying
        self._security = security
        self._fail_on_data_loss = fail_on_data_loss
        self._link: BlockingConnection | None = None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def chunks(self, wanted: QueueRange, chunk_bytes: int) -> Iterator[bytes]:
        """Bodies of about `chunk_bytes` with the records of the range, and perhaps a few after its end.

        A response that is large enough is returned as it is; smaller ones are joined.
        """
        parts: list[bytes] = []
        size, offset, resets = 0, self._begin(wanted), 0
        while offset < wanted.end:
            try:
                reply, answer = self._retrying.call(partial(self._pull, wanted, offset), wanted.queue)
            except TopicNotFound:
                self._lost(
                    f"{wanted.queue}: messages {max(offset, wanted.first)} to {wanted.end - 1} are gone, their topic "
                    f"was deleted, or deleted and created again"
                )
                break
            if reply.code == ResponseCode.SUCCESS:
                if offset < wanted.first:
                    self._check_before(wanted, reply.body)
                parts.append(reply.body)
                size += len(reply.body)
            if reply.code in _ADVANCES:
                offset = _next_offset(wanted.queue, offset, answer)
            elif offset < wanted.first:
                offset = wanted.first  # the message before the range is gone, which loses nothing
            else:
                resets += 1
                offset = self._after_missing(wanted, offset, answer, resets)
            if size >= chunk_bytes:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def _begin(self, wanted: QueueRange) -> QueueOffset:
        """Where to pull from: the message before the range, if it is known. Pulls with tags would not return it."""
        if wanted.newest_before is None:
            return wanted.first
        if wanted.tags == ALL_TAGS:
            return QueueOffset(wanted.first - 1)
        self._check_before(wanted, self._one(wanted, wanted.first - 1))
        return wanted.first

    def _one(self, wanted: QueueRange, offset: int) -> bytes:
        """The record at an offset of the queue, and perhaps others; empty if it is gone."""
        one = replace(wanted, tags=ALL_TAGS, first=QueueOffset(offset), end=QueueOffset(offset + 1))
        try:
            reply, _ = self._retrying.call(partial(self._pull, one, one.first, max_bytes=1), wanted.queue)
        except TopicNotFound:
            return b""
        return reply.body if reply.code == ResponseCode.SUCCESS else b""

    def _check_before(self, wanted: QueueRange, body: bytes) -> None:
        """Reports a loss if the message before the range is another one than when the range's start was chosen.

        It cannot be newer than the newest message was, unless the broker's clock was set back since: then the newest
        message is still there.
        """
        newest = wanted.newest_before
        now = _stored_at(body, wanted.first - 1)
        if newest is None or now is None or now == newest.stored:
            return
        if newest.offset >= wanted.first:
            is_same = _stored_at(self._one(wanted, newest.offset), newest.offset) == newest.stored
            if now < newest.stored or is_same:
                return
        self._lost(other_log(wanted.queue, wanted.first, newest.stored, now))

    def sample(self, wanted: QueueRange) -> Sample:
        """The average message size in the first small pull of the range that returns messages."""
        offset = wanted.first
        for _ in range(SAMPLE_PULLS):
            if offset >= wanted.end:
                break
            pull = partial(self._pull, wanted, offset, max_bytes=SAMPLE_BYTES)
            try:
                reply, answer = self._retrying.call(pull, wanted.queue)
            except TopicNotFound:
                break  # the task reports it
            starts = record_starts(reply.body) if reply.code == ResponseCode.SUCCESS else ()
            if starts:
                found = RecordView(reply.body, starts[0]).queue_offset
                return Sample(min(found, wanted.end) - wanted.first, len(reply.body) / len(starts))
            if reply.code not in _ADVANCES:
                break
            offset = _next_offset(wanted.queue, offset, answer)
        return Sample(min(offset, wanted.end) - wanted.first, ASSUMED_MESSAGE_BYTES)

    def _connect(self, address: Address) -> BlockingConnection:
        if self._link is not None and self._link.address != address:
            self.close()
        return self._link or BlockingConnection(address, security=self._security)

    def _after_missing(self, wanted: QueueRange, offset: QueueOffset, answer: PullResponse, times: int) -> QueueOffset:
        """Where to continue when the broker has nothing at `offset`."""
        low, high = answer.min_offset, answer.max_offset
        if low <= offset < high and times == 1:
            return offset  # the group's offset was reset, which does not concern this range: ask again
        missing = _missing_until(offset, answer, wanted.end)
        self._lost(
            f"{wanted.queue}: messages {offset} to {missing - 1} are gone, the queue holds {low} to {high - 1}; "
            f"they were deleted by retention or with their topic"
        )
        return QueueOffset(missing)

    def _lost(self, text: str) -> None:
        if self._fail_on_data_loss:
            raise DataLost(f"{text}. To continue without them set failOnDataLoss=false")
        log.warning("%s; continuing without them", text)

    def _pull(
        self, wanted: QueueRange, offset: QueueOffset, max_bytes: int = PULL_BYTES
    ) -> tuple[Command, PullResponse]:
        header = PullHeader(
            consumer_group=wanted.group,
            topic=wanted.queue.topic,
            queue_id=wanted.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(PULL_MESSAGES, wanted.end - offset),
            sys_flag=PULL_SUBSCRIPTION,
            subscription=wanted.tags.text,
            expression_type="TAG",
            lane_max_bytes=max_bytes,
            lane_created=wanted.created,
        )
        link = self._connect(wanted.address)
        self._link = None
        try:
            reply = link.request(Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext()), PULL_SECONDS)
        except BaseException:
            link.close()
            raise
        self._link = link
        if reply.code not in _EXPECTED:
            raise error_for(reply.code, reply.remark)
        return reply, PullResponse.from_ext(reply.ext)


def _next_offset(queue: MessageQueue, offset: QueueOffset, answer: PullResponse) -> QueueOffset:
    if answer.next_begin_offset <= offset:
        raise RemoteProtocolError(f"{queue}: the broker moved back from offset {offset} to {answer.next_begin_offset}")
    return QueueOffset(answer.next_begin_offset)


def _stored_at(body: bytes, offset: int) -> int | None:
    """The store time of the first record of a body, if it has this offset."""
    starts = record_starts(body)
    view = RecordView(body, starts[0]) if starts else None
    return view.store_timestamp if view is not None and view.queue_offset == offset else None


def _missing_until(offset: QueueOffset, answer: PullResponse, end: QueueOffset) -> int:
    """The first offset after `offset` that may still exist, at most the end of the range."""
    low, high = answer.min_offset, answer.max_offset
    if offset < low < high:
        return min(low, end)
    inside = low <= offset < high and answer.next_begin_offset > offset
    return min(answer.next_begin_offset, end) if inside else end
