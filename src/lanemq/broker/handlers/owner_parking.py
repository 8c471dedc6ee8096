"""Parking requests of the queue's owner: set messages of a lane aside, and fetch them again to run them.

Every request names the owner's lease. A former owner is refused, because its successor decides about the lane now. An
answer means that the change is on disk: the owner then lets the queue's commit pass these messages.
"""

import logging
from functools import partial

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer, answer_error, answer_saved
from lanemq.broker.group_rules import answer_offsets, ownership
from lanemq.broker.storage.progress_keeper import Records, Saved
from lanemq.core.brokering.lock_table import Current
from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.queue_progress import LaneName, ParkedLane, QueueProgress
from lanemq.core.brokering.quotas import Quota
from lanemq.core.lane_status import MAX_GIVEN, MAX_PARKED, Failure, LaneStatus
from lanemq.model.errors import BrokerRefused, StorageError
from lanemq.model.keys import shown_key
from lanemq.model.log_marks import LogMark, SeenLog
from lanemq.model.names import check_group
from lanemq.model.queue import MessageQueue
from lanemq.net.rate_limited_log import FewLines
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ParkHeader, ParkNextResponse
from lanemq.wire.lane_bodies import NextBody, ParkAnswer, ParkBody

log = logging.getLogger(__name__)

MAX_GIVEN_BYTES = 1024 * 1024
"""Size of the messages that an owner gets at once; the first one always fits."""
MAX_REASON_CHARS = 500
MAX_ATTEMPTS = 1_000_000_000
MAX_KEY_CHARS = 32767
"""The limit of the properties, of which the key is one."""
NOT_IN_LOG = "a message that retention has deleted from the log cannot be parked: raise the retention of the broker"


class OwnerParkingHandler:
    """Requests 4202 and 4203."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._keeper = context.progress_keeper
        self._lines = FewLines(log, context.clock)

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LANE_PARK: self._park, RequestCode.LANE_PARK_NEXT: self._next}

    def _park(self, peer: Peer, request: Command) -> None:
        progress = self._owned(peer, request)
        body = ParkBody.of_request(request.body)
        asked, name = _checked(body), LaneName(progress.group, progress.queue, body.key)
        attempts = min(max(0, body.attempts), MAX_ATTEMPTS)
        failure = Failure(body.reason[:MAX_REASON_CHARS], attempts) if body.failed else None
        offsets = progress.parkable(body.key, asked, self._context.queue_log.bounds(progress.queue))
        if len(offsets) < len(asked):
            at = f"offset {asked[len(offsets)]} of {_shown(progress.queue)}"
            self._log(logging.ERROR, name, f"{at} cannot be parked, it is not in the log")
        more = progress.growth(body.key, failure, len(offsets))
        over = self._context.charges.grow(Quota.PARKED_BYTES, peer, request, name.group, more)
        if over is not None:
            self._log(logging.ERROR, name, f"{_lane(name)} cannot be parked: {over}")
            reply = ParkAnswer(settled=0, status=_status(progress.lanes.get(body.key)), remark=str(over))
            answer(peer, request, body=reply.encode())
            return
        again = body.again if body.again >= 0 else None
        parked = progress.park(body.key, offsets, failure, now=self._context.clock.wall(), again=again, held=body.held)
        lane = parked.lane
        if lane is not None and failure is not None and (again is None or lane.status is LaneStatus.PARKED):
            reason = " ".join(failure.reason.split())
            self._log(logging.WARNING, name, f"{_lane(name)} is {lane.status.value}: {reason}")
        reply = ParkAnswer(
            settled=parked.settled, status=_status(lane), remark="" if parked.settled == len(asked) else NOT_IN_LOG
        )
        parked_again = lane is not None and lane.status is LaneStatus.PARKED and body.again in lane.offsets
        noted = (*((body.again,) if parked_again else ()), *parked.fresh)
        saved = partial(answer_saved, peer, request, body=reply.encode())
        if parked.fresh or failure is not None:
            stored = partial(self._context.recording.parked, name, noted)
            seen = self._see(progress, body.last)
            self._keeper.save_lane(name, saved, stored=stored, chunks=parked.rows, before=seen)
        else:
            self._keeper.settled(saved)

    def _see(self, progress: QueueProgress, last: LogMark | None) -> tuple[SavedOffset, ...]:
        """Note the last parked message, if the log is elsewhere: it may lose that message before the next report."""
        if last is None or self._context.queue_log.has_records:
            return ()
        progress.see(SeenLog(done=last))
        return () if progress.offset is None else (SavedOffset.of(progress),)

    def _next(self, peer: Peer, request: Command) -> None:
        progress = self._owned(peer, request)
        body = NextBody.of_request(request.body)
        name = LaneName(progress.group, progress.queue, body.key)
        give = partial(self._give, peer, request, name, min(max(body.wanted, 0), MAX_GIVEN))
        if body.done >= 0 and progress.finish(body.key, body.done):
            self._keeper.save_lane(name, give)
        else:
            self._keeper.settled(give)

    def _give(
        self, peer: Peer, request: Command, name: LaneName, wanted: int, unsaved: StorageError | None = None
    ) -> None:
        """Answer with the lane's first messages if its owner may run them; read after all writes."""
        lane = self._keeper.lane(name)
        ext = ParkNextResponse(lane_parked=_status(lane)).to_ext()
        if unsaved is not None:
            answer_error(peer, request, unsaved)
            return
        if not wanted or lane is None or not lane.status.runs:
            answer(peer, request, ext)
            return
        offsets = lane.offsets.from_offset(lane.first, wanted)
        if not self._context.queue_log.has_records:
            self._context.recording.redriven(name, offsets[0], offsets[-1])
            self._keeper.copies(lane, offsets, partial(answer_offsets, peer, request, offsets, ext))
            return

        def answer_with(records: Records, error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
            elif not records:
                self._skip(name, offsets[-1], partial(self._give, peer, request, name, wanted))
            elif not self._is_first(name, offsets[0]):  # discarded in between
                self._give(peer, request, name, wanted)
            else:
                self._context.recording.redriven(name, offsets[0], max(records))
                answer(peer, request, ext, b"".join(records.values()))

        self._keeper.find(name, offsets, MAX_GIVEN_BYTES, answer_with)

    def _skip(self, name: LaneName, through: int, then: Saved) -> None:
        """Removes messages of which no intact record is left, as a pull skips them."""
        self._log(logging.ERROR, name, f"parked messages of {_lane(name)} are lost up to offset {through}")
        self._context.progress.at(name.group, name.queue).finish(name.key, through)
        self._keeper.save_lane(name, then)

    def _log(self, level: int, name: LaneName, text: str) -> None:
        """Log what happens to a lane: a group may park a lane for every message, and keys may be long."""
        self._lines.write(level, f"group {name.group}", f"group {name.group}: {text}")

    def _is_first(self, name: LaneName, offset: int) -> bool:
        lane = self._keeper.lane(name)
        return lane is not None and lane.first == offset

    def _owned(self, peer: Peer, request: Command) -> QueueProgress:
        """The progress that a request concerns; raises if its sender does not own the queue."""
        header = ParkHeader.from_ext(request.ext)
        check_group(header.consumer_group)
        queue = self._context.queues.existing(header.topic, header.broker_name, header.queue_id)
        if isinstance(ownership(self._context, peer, header.consumer_group, queue, header), Current):
            return self._context.progress.at(header.consumer_group, queue)
        self._context.counters.refused_parks += 1
        remark = f"queue {queue.queue_id} of {queue.topic} was granted to another member; it decides about the lane"
        raise BrokerRefused(ResponseCode.LEASE_REFUSED, remark)


def _checked(body: ParkBody) -> list[int]:
    if len(body.offsets) > MAX_PARKED or any(offset < 0 for offset in body.offsets):
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"at most {MAX_PARKED} offsets, none of them negative")
    if len(body.key or "") > MAX_KEY_CHARS:
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"a key has at most {MAX_KEY_CHARS} characters")
    return sorted(set(body.offsets))


def _status(lane: ParkedLane | None) -> str:
    return "" if lane is None else lane.status.value


def _lane(name: LaneName) -> str:
    return f"key {shown_key(name.key)} of {_shown(name.queue)}"


def _shown(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.queue_id}"
