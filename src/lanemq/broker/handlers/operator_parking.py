"""Parking requests of operators: list, show, redrive and discard parked lanes.

A change is on disk before it is answered. The queue's owner learns of it with its next lease renewal; without an owner
the change waits for the next one.
"""

import logging
from collections.abc import Callable
from functools import partial
from heapq import merge
from typing import TypeAlias

import msgspec

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer, answer_error, answer_saved
from lanemq.broker.group_rules import answer_offsets
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.broker.storage.progress_keeper import Records
from lanemq.core.brokering.queue_progress import LaneName, ParkedLane, QueueProgress
from lanemq.core.lane_status import MAX_GIVEN
from lanemq.model.errors import BrokerRefused, StorageError
from lanemq.model.keys import shown_key
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import LaneBody, ParkedLaneBody, ParkedResult, ParkedTable

log = logging.getLogger(__name__)

MAX_LIST_CHARS = 2 * 1024 * 1024
"""Approximate size of one list; the rest comes with the next request."""
LANE_CHARS = 300
"""Approximate size of a lane beside its reason and key."""
MAX_SHOWN = 256
"""Messages of a lane in one answer."""
MAX_SHOWN_BYTES = 4 * 1024 * 1024
"""Of these messages together, unless the first one is larger."""

MAX_RUN = 1_000
"""Lanes that are sorted at once; a longer run holds the event loop for longer."""

SortKey: TypeAlias = tuple[str, str, str, int, bool, str]


class OperatorParkingHandler:
    """Requests 4204 to 4207."""

    def __init__(self, context: GroupContext, answers: LongAnswers) -> None:
        self._context = context
        self._keeper = context.progress_keeper
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.LANE_PARKED: self._list,
            RequestCode.LANE_PARKED_SHOW: self._show,
            RequestCode.LANE_PARKED_REDRIVE: self._redrive,
            RequestCode.LANE_PARKED_DISCARD: self._discard,
        }

    def _list(self, peer: Peer, request: Command) -> None:
        wanted = LaneBody.of_request(request.body)
        after = _decoded(wanted.after) if wanted.after else None
        self._answers.begin(peer, request, self._list_steps(peer, request, wanted, after))

    def _list_steps(self, peer: Peer, request: Command, wanted: LaneBody, after: SortKey | None) -> Steps:
        """Sort the lanes in short runs, then merge the runs until the answer is full."""
        runs, run = [], list[tuple[SortKey, LaneName]]()
        for progress in self._context.progress.parked():
            if _matches(progress, wanted):
                for lane in tuple(progress.lanes.values()):
                    key = _sort_key(lane.name)
                    if (wanted.any_key or wanted.key == lane.name.key) and (after is None or key > after):
                        run.append((key, lane.name))
                    if len(run) >= MAX_RUN:
                        runs.append(sorted(run))
                        run = []
                    yield
        runs.append(sorted(run))
        table, left, last = ParkedTable(), MAX_LIST_CHARS, ""
        for key, name in merge(*runs):
            found = self._keeper.lane(name)
            if found is None:
                continue  # it has ended since
            body = _describe(found)
            left -= LANE_CHARS + len(body.reason) + len(body.key or "")
            if left < 0 and table.lanes:
                table.more = last
                break
            table.lanes.append(body)
            last = msgspec.json.encode(key).decode()
            yield

        # A new owner skips the lanes of this list, so it must not contain changes that are not on disk.
        self._keeper.settled(partial(answer_saved, peer, request, body=table.encode()))
        return None

    def _show(self, peer: Peer, request: Command) -> None:
        wanted = LaneBody.of_request(request.body)
        _, lane = self._one(wanted)
        self._show_from(peer, request, lane, wanted.start)

    def _show_from(self, peer: Peer, request: Command, lane: ParkedLane, start: int) -> None:
        """Show messages from an offset on: from the log in slices, or copies of them from the store."""
        offsets = lane.offsets.from_offset(start, MAX_SHOWN)
        if not self._context.queue_log.has_records:
            self._keeper.copies(lane, offsets, partial(answer_offsets, peer, request, offsets, {}))
            return
        below, _ = self._context.queue_log.bounds(lane.name.queue)

        def answer_with(records: Records, error: StorageError | None) -> None:
            if error is not None:
                answer_error(peer, request, error)
            elif not records:
                self._show_from(peer, request, lane, offsets[-1] + 1)  # none of them has an intact record
            else:
                answer(peer, request, {}, b"".join(records.values()))

        if offsets and offsets[0] < below:
            self._keeper.find(lane.name, offsets, MAX_SHOWN_BYTES, answer_with)
        else:
            self._answers.begin(peer, request, self._show_steps(lane, offsets))

    def _show_steps(self, lane: ParkedLane, offsets: list[int]) -> Steps:
        while offsets:
            records = yield from self._keeper.log_steps(lane.name, offsets, MAX_SHOWN_BYTES)
            if records:
                return b"".join(records.values())
            offsets = lane.offsets.from_offset(offsets[-1] + 1, MAX_SHOWN)
        return b""

    def _redrive(self, peer: Peer, request: Command) -> None:
        progress, lane = self._one(LaneBody.of_request(request.body))
        name, offsets = lane.name, lane.offsets.from_offset(lane.first, MAX_GIVEN)
        changed = progress.redrive(name.key)
        if changed:
            log.info("group %s: key %s of %s is redriven", name.group, shown_key(name.key), _shown(name))
        stored = partial(self._context.recording.redriven, name, offsets[0], offsets[-1])
        self._save(peer, request, lane, int(changed), stored)

    def _discard(self, peer: Peer, request: Command) -> None:
        wanted = LaneBody.of_request(request.body)
        progress, lane = self._one(wanted)
        name, first, last = lane.name, lane.first, min(wanted.through, lane.offsets.last)
        noted = [offset for offset in lane.offsets if offset <= wanted.through] if self._context.recording.on else []
        removed = progress.discard(name.key, wanted.through)
        if removed:
            log.warning(
                "group %s: %d message(s) of key %s of %s discarded, offsets %d to %d",
                name.group, removed, shown_key(name.key), _shown(name), first, last,
            )  # fmt: skip
        self._save(peer, request, lane, removed, partial(self._context.recording.discarded, name, noted))

    def _save(self, peer: Peer, request: Command, lane: ParkedLane, changed: int, stored: Callable[[], None]) -> None:
        """Answer when a change of a lane, if there is one, is on disk; `stored` is called then, too."""
        reply = ParkedResult(changed=changed, left=len(lane.offsets))
        saved = partial(answer_saved, peer, request, body=reply.encode())
        if changed:
            self._keeper.save_lane(lane.name, saved, stored=stored)
        else:
            self._keeper.settled(saved)

    def _one(self, wanted: LaneBody) -> tuple[QueueProgress, ParkedLane]:
        """The lane that a request names; the queue may be omitted if it is unambiguous."""
        if not (wanted.group and wanted.topic) or wanted.any_key:
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, "a lane is named by its group, its topic and its key")
        parked = [progress for progress in self._context.progress.parked() if _matches(progress, wanted)]
        lanes = {progress: progress.lanes[wanted.key] for progress in parked if wanted.key in progress.lanes}
        if not lanes:
            what = "without a key" if wanted.key is None else f"of key {wanted.key!r}"
            raise BrokerRefused(
                ResponseCode.QUERY_NOT_FOUND, f"group {wanted.group} has no parked lane {what} in topic {wanted.topic}"
            )
        if len(lanes) > 1:
            queues = ", ".join(map(str, sorted(progress.queue for progress in lanes)))
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, f"that lane exists in queues {queues}: name one")
        return lanes.popitem()


def _sort_key(name: LaneName) -> SortKey:
    """Sort by group, topic, queue and key; the lane without a key comes first."""
    return name.group, *name.queue, name.key is not None, name.key or ""


def _decoded(after: str) -> SortKey:
    try:
        key: SortKey = msgspec.json.decode(after, type=SortKey)
    except msgspec.MsgspecError as error:
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER, f"{after[:40]!r} is not a continuation of a list; start again without it"
        ) from error
    return key


def _matches(progress: QueueProgress, wanted: LaneBody) -> bool:
    topic, broker, queue_id = progress.queue
    return (
        wanted.group in ("", progress.group)
        and wanted.topic in ("", topic)
        and wanted.broker in ("", broker)
        and wanted.queue_id in (-1, queue_id)
    )


def _shown(name: LaneName) -> str:
    return f"{name.queue.topic}/{name.queue.queue_id}"


def _describe(lane: ParkedLane) -> ParkedLaneBody:
    return ParkedLaneBody(
        group=lane.name.group,
        topic=lane.name.queue.topic,
        broker=lane.name.queue.broker,
        queue_id=lane.name.queue.queue_id,
        key=lane.name.key,
        status=lane.status.value,
        reason=lane.failure.reason,
        attempts=lane.failure.attempts,
        since=lane.since,
        messages=len(lane.offsets),
        first=lane.first,
        last=lane.offsets.last,
        through=lane.through,
        overtaken=lane.overtaken,
    )
