"""Reading one range of one queue: blocking pulls over one connection, handed on in chunks.

The rule guarded here: every message of the range is handed on once, in the order of its offset, or the reader
fails, or (with `failOnDataLoss` off) says what is missing. A broker that is away is waited for, up to a limit;
nothing has been handed on twice after that, since a chunk is handed on only when it is complete.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from lanemq.model.errors import LaneError, RemoteProtocolError, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.blocking import BlockingConnection
from lanemq.net.security import OPEN, Security
from lanemq.spark.read.waiting import Patience
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, PullResponse
from lanemq.wire.record import PULL_SUBSCRIPTION, RecordView, record_starts

log = logging.getLogger(__name__)

PULL_SECONDS = 30.0
PULL_BYTES = 4 * 1024 * 1024
"""Asked of LaneMQ brokers; an Apache broker gives 256 KiB and 32 messages at most, whatever is asked."""
PULL_MESSAGES = 4096
SAMPLE_BYTES = 64 * 1024
SAMPLE_PULLS = 4
"""Asked for the first message that a filter lets through; each costs a round trip before a batch is planned."""
GUESS_BYTES = 1024.0
"""What a message is taken for when none was seen: too much makes batches small, nothing would make them endless."""

_ANSWERS = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_FORWARD = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY})


class DataLost(LaneError):
    """Messages of a range are no longer there."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What one task reads: offsets from `first` up to, and not including, `end`."""

    queue: MessageQueue
    first: QueueOffset
    end: QueueOffset
    address: Address
    group: str
    tags: str = "*"
    client: str | None = None
    epoch: int | None = None
    """The lease under which the range was planned; the broker refuses the pull once it is not ours."""


class Sample(NamedTuple):
    """What a look at the beginning of a range told."""

    empty: int
    """So many offsets at its beginning hold nothing that passes the filter."""
    size: float
    """Bytes of a message behind them; a guess if none was seen, never 0."""


class RangeReader:
    """One connection, one range at a time."""

    def __init__(self, patience: Patience, *, fail_on_data_loss: bool = True, security: Security = OPEN) -> None:
        self._patience = patience
        self._security = security
        self._fail_on_data_loss = fail_on_data_loss
        self._link: BlockingConnection | None = None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def chunks(self, wanted: QueueRange, chunk_bytes: int) -> Iterator[bytes]:
        """Bodies of about `chunk_bytes`: records of the range, and perhaps a few behind its end.

        An answer that is large enough is handed on as it is; smaller ones are copied together.
        """
        parts: list[bytes] = []
        size, offset, resets = 0, wanted.first, 0
        while offset < wanted.end:
            try:
                reply, answer = self._patience.run(partial(self._pull, wanted, offset), str(wanted.queue))
            except TopicNotFound:
                self._lost(f"{wanted.queue}: messages {offset} to {wanted.end - 1} are gone, their topic was deleted")
                break
            if reply.code == ResponseCode.SUCCESS:
                parts.append(reply.body)
                size += len(reply.body)
            if reply.code in _FORWARD:
                offset = _forward(wanted.queue, offset, answer)
            else:
                resets += 1
                offset = self._moved(wanted, offset, answer, resets)
            if size >= chunk_bytes:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def sample(self, wanted: QueueRange) -> Sample:
        """What a message takes, on average over the first small pull of the range that has any."""
        offset = wanted.first
        for _ in range(SAMPLE_PULLS):
            if offset >= wanted.end:
                break
            pull = partial(self._pull, wanted, offset, most_bytes=SAMPLE_BYTES)
            reply, answer = self._patience.run(pull, str(wanted.queue))
            starts = record_starts(reply.body) if reply.code == ResponseCode.SUCCESS else ()
            if starts:
                found = RecordView(reply.body, starts[0]).queue_offset
                return Sample(min(found, wanted.end) - wanted.first, len(reply.body) / len(starts))
            if reply.code not in _FORWARD:
                break
            offset = _forward(wanted.queue, offset, answer)
        return Sample(min(offset, wanted.end) - wanted.first, GUESS_BYTES)

    def _moved(self, wanted: QueueRange, offset: QueueOffset, answer: PullResponse, times: int) -> QueueOffset:
        """Where to go on when the broker has nothing at `offset`."""
        low, high = answer.min_offset, answer.max_offset
        if low <= offset < high and times == 1:
            return offset  # somebody reset the group; the range of this query is its own, so ask again
        missing = _gone_until(offset, answer, wanted.end)
        self._lost(
            f"{wanted.queue}: messages {offset} to {missing - 1} are gone, the queue holds {low} to {high - 1}; "
            f"they were deleted by retention or with their topic"
        )
        return QueueOffset(missing)

    def _lost(self, text: str) -> None:
        if self._fail_on_data_loss:
            raise DataLost(f"{text}. To go on without them set failOnDataLoss=false")
        log.warning("%s; going on without them", text)

    def _pull(
        self, wanted: QueueRange, offset: QueueOffset, most_bytes: int = PULL_BYTES
    ) -> tuple[Command, PullResponse]:
        header = PullHeader(
            consumer_group=wanted.group,
            topic=wanted.queue.topic,
            queue_id=wanted.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(PULL_MESSAGES, wanted.end - offset),
            sys_flag=PULL_SUBSCRIPTION,
            subscription=wanted.tags,
            expression_type="TAG",
            lane_client=wanted.client,
            lane_epoch=wanted.epoch,
            lane_max_bytes=most_bytes,
        )
        if self._link is None:
            self._link = BlockingConnection(wanted.address, security=self._security)
        link, self._link = self._link, None
        try:
            reply = link.request(Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext()), PULL_SECONDS)
        except BaseException:
            link.close()
            raise
        self._link = link
        if reply.code not in _ANSWERS:
            raise error_for(reply.code, reply.remark)
        return reply, PullResponse.from_ext(reply.ext)


def _forward(queue: MessageQueue, offset: QueueOffset, answer: PullResponse) -> QueueOffset:
    if answer.next_begin_offset <= offset:
        raise RemoteProtocolError(f"{queue}: the broker goes from {offset} back to {answer.next_begin_offset}")
    return QueueOffset(answer.next_begin_offset)


def _gone_until(offset: QueueOffset, answer: PullResponse, end: QueueOffset) -> int:
    """The first offset that may still be there, or the end of the range."""
    low, high = answer.min_offset, answer.max_offset
    if offset < low < high:
        return min(low, end)
    inside = low <= offset < high and answer.next_begin_offset > offset
    return min(answer.next_begin_offset, end) if inside else end
