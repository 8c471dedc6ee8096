"""Offsets of queues and groups, and moving a group to another position."""

from collections.abc import Collection
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from lanemq.client.admin.calls import AdminClient
from lanemq.client.admin.views import (
    AtOffset,
    AtTime,
    OffsetChange,
)
from lanemq.clock import wall_ms
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.checks import (
    check_each,
    check_flag,
    check_kind,
    check_queue,
    check_whole,
)
from lanemq.model.errors import GroupNotFound, InvalidOption, OffsetNotFound, UsageError
from lanemq.model.names import (
    check_group,
    check_topic,
)
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.wire.admin_headers import (
    ResetOffsetHeader,
)
from lanemq.wire.bodies import LaneProgress
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import (
    ConsumerListHeader,
    OffsetResponse,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)
from lanemq.wire.lane_fields import LANE_CLIENT
from lanemq.wire.route_bodies import (
    SubscriptionGroupConfig,
)
from lanemq.wire.stats_bodies import ConsumerConnection

_AS_LANE = {LANE_CLIENT: "admin"}
"""Makes a LaneMQ broker return the stored offset, not the one at which RocketMQ would let a new group start."""

Position: TypeAlias = Literal["first", "last"] | AtTime | AtOffset
"""The position to which a group is reset."""


class OffsetAdmin(AdminClient):
    """The part of `Admin` that knows offsets."""

    def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """The oldest offset that can still be read."""
        return self._offset(queue, RequestCode.GET_MIN_OFFSET)

    def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """The offset that the next message will get."""
        return self._offset(queue, RequestCode.GET_MAX_OFFSET)

    def offset_at(self, queue: MessageQueue, when: datetime | float) -> QueueOffset:
        """The offset of the first message stored at or after `when`, a `datetime` or seconds since 1970.

        RocketMQ 4 returns the nearest message instead.
        """
        check_queue(queue)
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=wall_ms(when))
        reply = self._calls.ask(self._master(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return QueueOffset(OffsetResponse.from_ext(reply.ext).offset)

    def committed(self, group: str, queue: MessageQueue) -> QueueOffset | None:
        """The group's committed offset, or None if it has none. Apache brokers may return 0 for a new group."""
        check_queue(queue)
        return self._progress(check_group(group), queue, finished=False)[0]

    def progress(self, group: str, queue: MessageQueue) -> tuple[QueueOffset | None, FinishedRanges]:
        """The group's committed offset, and what it has finished above it. Apache brokers do not report the latter."""
        check_queue(queue)
        coordinated = self._calls.coordinator_of(check_group(group)) is not None
        return self._progress(group, queue, finished=coordinated or self._is_lanemq(queue))

    def _progress(
        self, group: str, queue: MessageQueue, *, finished: bool
    ) -> tuple[QueueOffset | None, FinishedRanges]:
        header = QueryOffsetHeader.of(group, queue, finished=finished)
        try:
            address = self._calls.coordinator_of(group) or self._master(queue)
            reply = self._calls.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, header, lane=_AS_LANE)
        except OffsetNotFound:
            return None, NOTHING_FINISHED
        offset = QueueOffset(OffsetResponse.from_ext(reply.ext).offset)
        text = LaneProgress.decode(reply.body).lane_finished if reply.body else ""
        return offset, FinishedRanges.decode(text, offset)

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Stores the group's offset of one queue, as a member's commit does; a member that is online overwrites it.

        A group that the broker does not know is created: an Apache broker refuses the commit otherwise.
        """
        check_queue(queue)
        check_whole("offset", offset)
        self._store_offset(queue, UpdateOffsetHeader.of(check_group(group), queue, offset))

    def report(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Stores how far a program has read that is no member of the group, such as a query, to show its lag.

        A LaneMQ broker raises `GroupConflict` for a group that consumers use, and for consumers that join this one.
        """
        check_queue(queue)
        check_whole("offset", offset)
        header = UpdateOffsetHeader.of(check_group(group), queue, offset)
        self._store_offset(queue, msgspec.structs.replace(header, lane_report=True))

    def _store_offset(self, queue: MessageQueue, update: UpdateOffsetHeader) -> None:
        master = self._master(queue)
        try:
            self._calls.ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, update)
        except GroupNotFound:
            body = SubscriptionGroupConfig(group_name=update.consumer_group).encode()
            self._calls.ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            self._calls.ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, update)

    def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        to: Position,
        queues: Collection[int | MessageQueue] | None = None,
        dry_run: bool = False,
    ) -> tuple[OffsetChange, ...]:
        """Moves a group to another position, in all queues of a topic or in the given ones.

        A number in `queues` names the queue of this number on every broker.

        Going back repeats messages; going forward skips them. Connected members continue from the new position.
        With `dry_run`, only returns what would change.
        """
        check_group(group)
        if to not in ("first", "last"):
            check_kind("to", to, (AtTime, AtOffset), "'first', 'last', AtTime(...) or AtOffset(...)")
        if queues is not None:
            queues = check_each("queues", queues, (int, MessageQueue), "a list of queues, or of their numbers")
        check_flag("dry_run", dry_run)
        changes: list[OffsetChange] = []
        for name, address in self._calls.masters_of(check_topic(topic)):
            here = [
                self._change(group, queue, to)
                for queue in self._calls.routes.get(topic).subscribe
                if queue.broker == name and (queues is None or queue.queue_id in queues or queue in queues)
            ]
            changes += here
            if here and not dry_run:
                self._move(address, group, here, to, all_queues=queues is None)
        return tuple(changes)

    def _change(self, group: str, queue: MessageQueue, to: Position) -> OffsetChange:
        before, finished = self.progress(group, queue)
        return OffsetChange(queue, before, self._offset_of(queue, to), finished)

    def _master(self, queue: MessageQueue) -> Address:
        check_queue(queue)
        return self._calls.routes.get(queue.topic).master(queue.broker)

    def _offset(self, queue: MessageQueue, code: RequestCode) -> QueueOffset:
        reply = self._calls.ask(self._master(queue), code, QueueHeader(topic=queue.topic, queue_id=queue.queue_id))
        return QueueOffset(max(0, OffsetResponse.from_ext(reply.ext).offset))

    def _offset_of(self, queue: MessageQueue, to: Position) -> QueueOffset:
        match to:
            case "first":
                return self.min_offset(queue)
            case "last":
                return self.max_offset(queue)
            case AtTime(when):
                return self.offset_at(queue, when)
            case AtOffset(offset):
                return max(self.min_offset(queue), min(offset, self.max_offset(queue)))
            case _:
                raise InvalidOption(f"to={to!r} is not a position: use 'first', 'last', AtTime(...) or AtOffset(...)")

    def _move(
        self, address: Address, group: str, changes: list[OffsetChange], to: Position, *, all_queues: bool
    ) -> None:
        """Moves a group in queues of one broker. RocketMQ 4 moves connected members only by time."""
        first, coordinator = changes[0].queue, self._calls.coordinator_of(group)
        if coordinator is not None or self._is_lanemq(first):
            address = coordinator or address
            for change in changes:
                self._reset(address, group, first.topic, -1, change)
        elif not self._connections(address, group).connection_set:
            for change in changes:
                self.commit(group, change.queue, change.after)
                # RocketMQ 5 ignores commits while an earlier reset waits for the group's next pull.
                if self.committed(group, change.queue) != change.after and self._resets_to_offsets(address):
                    self._reset(address, group, first.topic, -1, change)
        elif self._resets_to_offsets(address):
            for change in changes:
                self._reset(address, group, first.topic, -1, change)
        else:
            self._reset(address, group, first.topic, _time_of(to, group, all_queues=all_queues))

    def _resets_to_offsets(self, address: Address) -> bool:
        """Whether an Apache broker reads queue and offset in a reset, as RocketMQ 5.2 and newer do by default.

        Others ignore them, and would move the group to the end of all queues.
        """
        reply = self._calls.request(address, Command(RequestCode.GET_BROKER_CONFIG, 0))
        return reply.code == ResponseCode.SUCCESS and b"useServerSideResetOffset=true" in reply.body.split()

    def _reset(
        self, address: Address, group: str, topic: str, timestamp: int, change: OffsetChange | None = None
    ) -> None:
        header = ResetOffsetHeader(topic=topic, group=group, timestamp=timestamp)
        if change is not None:
            _, broker, queue_id = change.queue
            header = msgspec.structs.replace(header, queue_id=queue_id, broker_name=broker, offset=change.after)
        self._calls.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    def _is_lanemq(self, queue: MessageQueue) -> bool:
        return self._calls.routes.get(queue.topic).is_lanemq(queue.broker)

    def _connections(self, address: Address, group: str) -> ConsumerConnection:
        header = ConsumerListHeader(consumer_group=group)
        try:
            reply = self._calls.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        except GroupNotFound:
            return ConsumerConnection()
        return ConsumerConnection.decode(reply.body)


def _time_of(to: Position, group: str, *, all_queues: bool) -> int:
    """The position as a time, as RocketMQ resets; -1 means the end (Broker2Client.resetOffset)."""
    match to:
        case _ if not all_queues:
            raise UsageError(
                f"group {group!r} is online, and this broker moves single queues only while it is not: "
                f"stop its members first, or reset all queues"
            )
        case AtTime():
            return wall_ms(to.when)
        case "last":
            return -1
        case "first":
            return 0
        case _:
            raise UsageError(
                f"group {group!r} is online, and this broker moves it to an offset only while it is not: "
                f"stop its members first, or reset by time"
            )
