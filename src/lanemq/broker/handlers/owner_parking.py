"""Parking requests of the queue's owner: set messages of a lane aside, and fetch them again to run them.

Every request names the owner's lease. A former owner is refused, because its successor decides about the lane now. An
answer means that the change is on disk: the owner then lets the queue's commit pass these messages.
"""

import logging
from collections.abc import Sequence

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer, answer_code, answer_error, answer_saved
from lanemq.broker.group_rules import ownership
from lanemq.broker.storage.parking import MAX_GIVEN, Records
from lanemq.core.brokering.lock_table import Current
from lanemq.core.brokering.parked_lane_table import LaneName, Parked, ParkedLane, weight_of
from lanemq.core.brokering.quotas import Quota
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.errors import BrokerRefused, StorageError
from lanemq.model.keys import shown_key
from lanemq.model.names import check_group
from lanemq.net.peer import Peer
from lanemq.net.rate_limited_log import FewLines
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ParkHeader, ParkNextResponse
from lanemq.wire.lane_bodies import NextBody, ParkAnswer, ParkBody

log = logging.getLogger(__name__)

MAX_OFFSETS = 1_000
"""Offsets in one request."""
MAX_GIVEN_BYTES = 1024 * 1024
"""Size of the messages that an owner gets at once; the first one always fits."""
MAX_REASON_CHARS = 500
MAX_KEY_CHARS = 32767
"""The limit of the properties, of which the key is one."""


class OwnerParkingHandler:
    """Requests 4202 and 4203."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._lines = FewLines(log, parts.clock)

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LANE_PARK: self._park, RequestCode.LANE_PARK_NEXT: self._next}

    def _park(self, peer: Peer, request: Command) -> None:
        header = ParkHeader.from_ext(request.ext)
        if not self._is_owner(peer, request, header):
            return
        body = ParkBody.of_request(request.body)
        offsets, parking = _checked(body), self._parts.parking
        name = LaneName(header.consumer_group, header.topic, header.queue_id, body.key)
        failure = Failure(body.reason[:MAX_REASON_CHARS], max(0, body.attempts)) if body.failed else None
        again = body.again if body.again >= 0 else None
        readable = self._readable(name, offsets)
        added = self._added(name, failure, len(readable))
        over = self._parts.charges.grow(Quota.PARKED_BYTES, peer, request, name.group, added)
        if over is not None:
            self._log(logging.ERROR, name, f"{_lane(name)} cannot be parked: {over}")
            answer(
                peer,
                request,
                body=ParkAnswer(settled=0, status=_status(parking.lanes.get(name)), remark=str(over)).encode(),
            )
            return
        outcome = parking.lanes.park(
            name,
            readable,
            failure,
            now=self._parts.clock.wall(),
            again=again,
            held=body.held,
        )
        lane = outcome.lane
        if lane is not None and failure is not None and (again is None or lane.status is LaneStatus.PARKED):
            reason = " ".join(failure.reason.split())
            self._log(logging.WARNING, name, f"{_lane(name)} is {lane.status.value}: {reason}")
        reply = ParkAnswer(settled=outcome.settled, status=_status(lane), remark=_remark(offsets, outcome))
        parked_again = lane is not None and lane.status is LaneStatus.PARKED and body.again in lane.offsets
        noted = (*((body.again,) if parked_again else ()), *outcome.fresh)

        def saved(error: StorageError | None) -> None:
            answer_saved(peer, request, error, reply.encode())

        def stored() -> None:
            if self._parts.recording.on:
                self._parts.recording.parked(name, noted)

        if outcome.fresh or failure is not None:
            parking.save(name, saved, stored=stored, chunks=outcome.rows)
        else:
            parking.settled(saved)

    def _added(self, name: LaneName, failure: Failure | None, offsets: int) -> int:
        """How much heavier the lanes may be after a request to park."""
        lane = self._parts.parking.lanes.get(name)
        reason = "" if failure is None else failure.reason
        return weight_of(name.key, reason, offsets + (0 if lane is None else len(lane.offsets))) - (
            0 if lane is None else lane.weight
        )

    def _readable(self, name: LaneName, offsets: Sequence[int]) -> Sequence[int]:
        """The offsets up to the first one that is neither settled nor in the log."""
        lane = self._parts.parking.lanes.get(name)
        through = -1 if lane is None else lane.through
        first, end = self._parts.store.bounds(name.topic, name.queue_id)
        for count, offset in enumerate(offsets):
            if offset > through and not first <= offset < end:
                place = f"offset {offset} of {name.topic}/{name.queue_id}"
                self._log(logging.ERROR, name, f"{place} cannot be parked, it is not in the log")
                return offsets[:count]
        return offsets

    def _next(self, peer: Peer, request: Command) -> None:
        header = ParkHeader.from_ext(request.ext)
        if not self._is_owner(peer, request, header):
            return
        body = NextBody.of_request(request.body)
        name = LaneName(header.consumer_group, header.topic, header.queue_id, body.key)
        wanted = min(max(body.wanted, 0), MAX_GIVEN)
        removed = body.done >= 0 and self._parts.parking.lanes.finished(name, body.done)

        def saved(error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
            else:
                self._give(peer, request, name, wanted)

        if removed:
            self._parts.parking.save(name, saved)
        else:
            self._parts.parking.settled(saved)

    def _give(self, peer: Peer, request: Command, name: LaneName, wanted: int) -> None:
        """Answer with the lane's first messages if its owner may run them; read after all writes."""
        lane = self._parts.parking.lanes.get(name)
        ext = ParkNextResponse(lane_parked=_status(lane)).to_ext()
        if not wanted or lane is None or not lane.status.runs:
            answer(peer, request, ext)
            return

        def found(records: Records, error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
                return
            if not records:
                self._skip(peer, request, name, offsets[-1], wanted)
            elif not self._is_first(name, offsets[0]):  # discarded in between
                self._give(peer, request, name, wanted)
            else:
                if self._parts.recording.on:
                    self._parts.recording.redriven(name, offsets[0], max(records))
                answer(peer, request, ext, b"".join(records.values()))

        offsets = lane.offsets.from_offset(lane.first, wanted)
        self._parts.parking.find(name, offsets, MAX_GIVEN_BYTES, found)

    def _skip(self, peer: Peer, request: Command, name: LaneName, through: int, wanted: int) -> None:
        """Removes messages of which no intact record is left, as a pull skips them."""
        self._log(logging.ERROR, name, f"parked messages of {_lane(name)} are lost up to offset {through}")
        self._parts.parking.lanes.finished(name, through)

        def saved(error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
            else:
                self._give(peer, request, name, wanted)

        self._parts.parking.save(name, saved)

    def _log(self, level: int, name: LaneName, text: str) -> None:
        """Log what happens to a lane: a group may park a lane for every message, and keys may be long."""
        self._lines.write(level, f"group {name.group}", f"group {name.group}: {text}")

    def _is_first(self, name: LaneName, offset: int) -> bool:
        lane = self._parts.parking.lanes.get(name)
        return lane is not None and lane.first == offset

    def _is_owner(self, peer: Peer, request: Command, header: ParkHeader) -> bool:
        check_group(header.consumer_group)
        topic = self._parts.topic_keeper.existing(header.topic)
        if not 0 <= header.queue_id < topic.read_queues:
            raise BrokerRefused(
                ResponseCode.INVALID_PARAMETER, f"queue {header.queue_id} of topic {topic.name} does not exist"
            )
        verdict = ownership(self._parts, peer, header.consumer_group, header.topic, header.queue_id, header)
        if isinstance(verdict, Current):
            return True
        self._parts.counters.refused_parks += 1
        remark = f"queue {header.queue_id} of {header.topic} was granted to another member; it decides about the lane"
        answer_code(peer, request, ResponseCode.LEASE_REFUSED, remark)
        return False


def _checked(body: ParkBody) -> list[int]:
    if len(body.offsets) > MAX_OFFSETS or any(offset < 0 for offset in body.offsets):
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"at most {MAX_OFFSETS} offsets, none of them negative")
    if len(body.key or "") > MAX_KEY_CHARS:
        raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"a key has at most {MAX_KEY_CHARS} characters")
    return sorted(set(body.offsets))


def _status(lane: ParkedLane | None) -> str:
    return "" if lane is None else lane.status.value


def _remark(offsets: Sequence[int], outcome: Parked) -> str:
    if outcome.settled == len(offsets):
        return ""
    return "a message that retention has deleted from the log cannot be parked: raise the retention of the broker"


def _lane(name: LaneName) -> str:
    return f"key {shown_key(name.key)} of {name.topic}/{name.queue_id}"
