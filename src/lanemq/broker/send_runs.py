"""Single sends that arrived together, stored together: one decision, one append and one answer for all of them.

The rule guarded here: nobody can tell a run from sends that were handled one by one, except by the time they took.
So a run is only what is certain to be treated alike: sends to one queue, with stamps that follow one another, which
the log takes now. Anything else, every refusal included, goes the ordinary way, one by one.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice

from lanemq.broker.parts import Parts
from lanemq.broker.reply import code_for
from lanemq.broker.routing import place
from lanemq.core.brokering.dedup import Fresh
from lanemq.log.appender import Staged
from lanemq.model.errors import LaneError, StorageError
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.server import Peer
from lanemq.wire.batch import RecordColumns, weigh
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command, Frame, decode_command, encode_response
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import following_stamps
from lanemq.wire.record import TRANSACTION_MASK, offset_id_prefix, pack_host
from lanemq.wire.send_runs import SendRun, encode_send_answers, first_of, read_sends

log = logging.getLogger(__name__)

MOST_TOGETHER = 1024
"""Frames looked at in one go: afterwards it is seen again whether the peer reads its answers."""

APART = 32
"""Sends handled one by one after one that had no company: a producer that sends to its queues in turn has none, and
looking for it would cost each send a second reading."""

RECORD_OVERHEAD_BYTES = 128
"""What a record takes in memory beside body and properties, about."""

_PLAIN = b'{"code":310,'
"""How the header of a single send begins, from all clients but few; theirs are handled one by one."""

Ordinary = Callable[[Peer, Command], None]


class SendRuns:
    """Takes the sends at the begin of what a peer has sent."""

    def __init__(self, parts: Parts, ordinary: Ordinary) -> None:
        self._parts = parts
        self._ordinary = ordinary
        self._stored = "durable" if parts.options.durable else "relaxed"

    def take(self, peer: Peer, incoming: deque[Frame]) -> int:
        """How many frames are done with; 0 if the first is no plain send, and nothing has happened then."""
        if not incoming[0].header.startswith(_PLAIN):
            return 0
        if peer.apart:
            peer.apart -= 1
            return 0
        frames, at = list(islice(incoming, MOST_TOGETHER)), 0
        while at < len(frames) and not peer.apart and (taken := self._take_run(peer, frames, at)):
            at += taken
            if taken == 1 and at < len(frames):
                peer.apart = APART
        return at

    def _take_run(self, peer: Peer, frames: list[Frame], at: int) -> int:
        run = read_sends(frames, at)
        if run is None:
            return 0
        stamp, count = following_stamps(run.properties)
        if count < len(run.opaques):
            run = first_of(run, count)
        try:
            stored = count > 1 and self._store(peer, run, stamp)
        except Exception:
            # As in `dispatch`: a fault in some requests may not take the connection down.
            log.exception("%d sends of %s failed", count, peer)
            _answer_all(peer, run.opaques, ResponseCode.SYSTEM_ERROR, "internal error; ask the broker's log")
            return count
        if not stored:
            for frame in frames[at : at + count]:
                self._ordinary(peer, decode_command(frame))
        return count

    def _may_be_stored(self, run: SendRun, weight: tuple[int, int, int, int]) -> bool:
        """Whether nothing about these sends needs a closer look."""
        header, options = run.header, self._parts.options
        if header.queue_id < 0 or header.sys_flag & TRANSACTION_MASK or header.topic.startswith(RETRY_PREFIX):
            return False
        _, largest, longest, apart = weight
        return not apart and largest <= options.max_body_bytes and longest <= options.max_properties_bytes

    def _store(self, peer: Peer, run: SendRun, first: Stamp | None) -> bool:
        """False if these sends have to be looked at one by one; nothing has been stored then."""
        header, parts = run.header, self._parts
        count, weight = len(run.opaques), weigh(run.bodies, run.properties)
        if not self._may_be_stored(run, weight):
            return False
        try:
            queue_id = place(parts, header).queue_id
            if first is not None and parts.producers.judge(header.topic, queue_id, first, count) != Fresh():
                return False
            staged = self._append(peer, run, queue_id, weight[0])
        except LaneError:
            return False
        if first is not None:
            at = Millis(staged.store_time)
            offset = QueueOffset(staged.first_offset)
            parts.producers.record(header.topic, queue_id, first, count, offset, stored_at=at)
        return True

    def _append(self, peer: Peer, run: SendRun, queue_id: int, size: int) -> Staged:
        header = run.header
        size += RECORD_OVERHEAD_BYTES * len(run.opaques)
        stages: list[Staged] = []
        done = partial(self._done, peer, run.opaques, queue_id, stages)
        born_host = pack_host(*peer.remote)
        staged = self._parts.group_commit.append(header.topic, queue_id, _records(run, header), born_host, size, done)
        stages.append(staged)
        return staged

    def _done(
        self, peer: Peer, opaques: list[int], queue_id: int, stages: list[Staged], error: StorageError | None
    ) -> None:
        if error is not None:
            _answer_all(peer, opaques, code_for(error), str(error))
            return
        (staged,) = stages
        prefix = offset_id_prefix(*self._parts.advertised)
        peer.send(encode_send_answers(opaques, prefix, staged.positions, queue_id, staged.first_offset, self._stored))


def _answer_all(peer: Peer, opaques: list[int], code: int, remark: str) -> None:
    for opaque in opaques:
        peer.send(encode_response(opaque, code, remark=remark))


def _records(run: SendRun, header: SendHeader) -> RecordColumns:
    count = len(run.bodies)
    flags = [header.flag] * count
    return RecordColumns(
        run.bodies, run.properties, [0] * count, flags, run.born, header.sys_flag, header.reconsume_times
    )
