"""Parking requests of the queue's owner: park messages of a lane, and fetch a redriven lane's messages one by one.

Every request names the owner's lease. A former owner is refused, because its successor decides about the lane now. An
answer means that the change is on disk: the owner then lets the queue's commit pass these messages.
"""

import logging
from collections.abc import Sequence

from lanemq.broker.dispatch import Handler, answer, answer_code, answer_error, answer_saved
from lanemq.broker.parts import Parts
from lanemq.broker.storage.parking import lane_id
from lanemq.core.brokering.lock_table import Current
from lanemq.core.brokering.parked_lanes import LaneName, Parked, ParkedLane
from lanemq.core.parked_lane import Failure, LaneStatus
from lanemq.log.reading import ReadStatus
from lanemq.model.errors import BrokerRefused, StorageError
from lanemq.model.names import check_group
from lanemq.net.server import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ParkHeader, ParkNextResponse
from lanemq.wire.lane_bodies import NextBody, ParkAnswer, ParkBody
from lanemq.wire.record import RecordView

log = logging.getLogger(__name__)

MAX_OFFSETS = 1_000
"""Offsets in one request; their records are read on the event loop."""
MAX_REASON_CHARS = 500
MAX_KEY_CHARS = 32767
"""The limit of the properties, of which the key is one."""


class OwnerParkingHandler:
    """Requests 4202 and 4203."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LANE_PARK: self._park, RequestCode.LANE_PARK_NEXT: self._next}

    def _park(self, peer: Peer, request: Command) -> None:
        header = ParkHeader.from_ext(request.ext)
        if not self._is_owner(peer, request, header):
            return
        body = ParkBody.decode(request.body)
        offsets = _checked(body)
        name = LaneName(header.consumer_group, header.topic, header.queue_id, body.key)
        known = self._parts.parking.lanes.get(name)
        records = self._records(header, offsets, known)
        failure = Failure(body.reason[:MAX_REASON_CHARS], max(0, body.attempts)) if body.failed else None
        again = body.again if body.again >= 0 else None
        sizes = {offset: len(record) for offset, record in records.items()}
        outcome = self._parts.parking.lanes.park(name, sizes, failure, now=self._parts.clock.wall(), again=again)
        if outcome.lane is not None and failure is not None:
            log.warning("group %s: key %r of %s/%s is parked: %s", *name[:1], name.key, *name[1:3], failure.reason)
        reply = ParkAnswer(settled=outcome.settled, status=_status(outcome.lane), remark=_remark(offsets, outcome))
        failed_again = () if again is None or outcome.lane is None or again not in outcome.lane.messages else (again,)
        noted = (*failed_again, *outcome.fresh)
        added = tuple((offset, records[offset]) for offset in outcome.fresh)

        def saved(error: StorageError | None) -> None:
            if error is None and self._parts.recording.on:
                self._parts.recording.parked(name, noted)
            answer_saved(peer, request, error, reply.encode())

        if added or (failure is not None and outcome.lane is not None):
            self._parts.parking.save(name, saved, added=added)
        else:
            self._parts.parking.settled(saved)

    def _records(self, header: ParkHeader, offsets: Sequence[int], lane: ParkedLane | None) -> dict[int, bytes]:
        """The records at these offsets, up to the first that cannot be read; settled offsets are not read again."""
        found: dict[int, bytes] = {}
        for offset in offsets:
            if lane is not None and offset <= lane.through:
                found[offset] = b""
                continue
            result = self._parts.store.read(header.topic, header.queue_id, offset, 1, 1, None)
            if result.status is not ReadStatus.FOUND or RecordView(result.data).queue_offset != offset:
                log.error(
                    "offset %s of %s/%s cannot be parked: %s", offset, header.topic, header.queue_id, result.status
                )
                break
            found[offset] = result.data
        return found

    def _next(self, peer: Peer, request: Command) -> None:
        header = ParkHeader.from_ext(request.ext)
        if not self._is_owner(peer, request, header):
            return
        body = NextBody.decode(request.body)
        name = LaneName(header.consumer_group, header.topic, header.queue_id, body.key)
        removed = body.done >= 0 and self._parts.parking.lanes.finished(name, body.done)

        def saved(error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
            else:
                self._give(peer, request, name)

        if removed:
            self._parts.parking.save(name, saved, removed=[body.done])
        else:
            self._parts.parking.settled(saved)

    def _give(self, peer: Peer, request: Command, name: LaneName) -> None:
        """Answer with the lane's first message if the lane is being redriven; read after all writes."""
        lane = self._parts.parking.lanes.get(name)
        ext = ParkNextResponse(lane_parked=_status(lane)).to_ext()
        if lane is None or lane.status is not LaneStatus.REDRIVING:
            answer(peer, request, ext)
            return

        def found(records: list[tuple[int, bytes]] | None, error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
            elif not records or not self._is_first(name, records[0][0]):  # discarded in between
                self._give(peer, request, name)
            else:
                if self._parts.recording.on:
                    self._parts.recording.redriven(name, first)
                answer(peer, request, ext, records[0][1])

        first = lane.first
        self._parts.thread.submit(lambda: self._parts.parking.rows.records(lane_id(name), first, 1), found)

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
        verdict = self._parts.ownership(peer, header.consumer_group, header.topic, header.queue_id, header)
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
    return (
        "not everything could be parked: raise max_parked_lane, max_parked_messages or max_parked_bytes of the "
        "broker, or redrive or discard lanes; a message that is not in the log any more cannot be parked at all"
    )
