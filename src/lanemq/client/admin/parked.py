"""Administration of parked lanes: list, inspect, redrive, discard.

LaneMQ brokers store parked lanes, and the coordinator of an Apache cluster those of coordinated groups. Lanes of other
groups on such a cluster stay in the members' memory: `WatchAdmin.parked_in_members` asks the members.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from lanemq.client.admin.calls import AdminClient, found_messages
from lanemq.client.message import Message
from lanemq.clock import wall_time
from lanemq.core.lane_status import LaneStatus
from lanemq.core.offset_windows import WINDOW
from lanemq.model.checks import check_kind, check_text
from lanemq.model.errors import ConnectFailed, OffsetNotFound
from lanemq.model.names import TOOLS_GROUP
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader
from lanemq.wire.lane_bodies import LaneBody, NextOffsets, ParkedLaneBody, ParkedResult, ParkedTable
from lanemq.wire.record import PULL_SUBSCRIPTION, records_in


class AnyKey:
    """Selects every lane, including the one without a key; None selects only that one."""


ANY_KEY: Final = AnyKey()


@dataclass(frozen=True, slots=True)
class ParkedLaneView:
    """A lane that the broker has parked."""

    group: str
    queue: MessageQueue
    key: str | None
    status: LaneStatus
    reason: str
    attempts: int
    parked_since: datetime
    """Time of the newest failure."""
    messages: int
    first: QueueOffset
    last: QueueOffset


class ParkedAdmin(AdminClient):
    """Lists, redrives and discards parked lanes. Blocking; not thread-safe."""

    _masters: Mapping[str, Address] = MappingProxyType({})
    """The brokers of the last list, so that requests about its lanes need not ask for them again."""

    def lanes(
        self, group: str | None = None, topic: str | None = None, key: str | AnyKey | None = ANY_KEY
    ) -> list[ParkedLaneView]:
        """The parked lanes of all brokers, by group, topic, queue and key."""
        for name, value in (("group", group), ("topic", topic), ("key", key)):
            if value is not None and not isinstance(value, AnyKey):
                check_text(name, value)
        wanted = LaneBody(group=group or "", topic=topic or "", any_key=isinstance(key, AnyKey))
        if not isinstance(key, AnyKey):
            wanted.key = key
        masters = self._calls.masters()
        self._masters = {name: address for name, (address, lane) in masters.items() if lane}
        views = [view for address in self._masters.values() for view in self._kept_at(address, wanted)]
        if not self._masters and (coordinator := self._calls.coordinator()) is not None:
            self._masters = dict.fromkeys(masters, coordinator)
            views += self._kept_at(coordinator, wanted)
        return sorted(views, key=lambda each: (each.group, each.queue, each.key or ""))

    def messages(self, lane: ParkedLaneView, limit: int | None = None) -> list[Message]:
        """The messages of a lane, in the order in which they will run."""
        messages: list[Message] = []
        wanted = _named(lane)
        while limit is None or len(messages) < limit:
            try:
                body = self._ask(lane.queue.broker, RequestCode.LANE_PARKED_SHOW, wanted).body
            except OffsetNotFound:
                break  # the lane was emptied in between
            page = self._page(lane.queue, body)
            if not page:
                break
            messages += page
            wanted.start = page[-1].queue_offset + 1
        return messages[:limit]

    def redrive(self, lane: ParkedLaneView) -> bool:
        """Runs the lane again, in order, before newer messages of its key; false if that is under way.

        Raises:
            OffsetNotFound: the lane is not parked any more.
        """
        wanted = _named(lane)
        reply = self._ask(lane.queue.broker, RequestCode.LANE_PARKED_REDRIVE, wanted)
        return ParkedResult.decode(reply.body).changed > 0

    def discard(self, lane: ParkedLaneView, through: QueueOffset) -> int:
        """Discards the lane's messages up to and including an offset and returns their number.

        Pass the offset of the last message you have seen, so that newer ones are kept. A message that is being
        redriven at this moment may still finish.
        """
        wanted = _named(lane)
        wanted.through = through
        reply = self._ask(lane.queue.broker, RequestCode.LANE_PARKED_DISCARD, wanted)
        return ParkedResult.decode(reply.body).changed

    def _page(self, queue: MessageQueue, body: bytes) -> list[Message]:
        """The messages of an answer. A coordinator has only their offsets; the messages are at the queue's broker."""
        if not body.startswith(b"{"):
            return found_messages(body, queue.broker)
        master, answer = self._calls.routes.get(queue.topic).master(queue.broker), NextOffsets.decode(body)
        records = dict(answer.copied)
        for offset in answer.offsets:
            if offset in records:
                continue
            header = PullHeader(
                consumer_group=TOOLS_GROUP, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset,
                max_msg_nums=WINDOW, sys_flag=PULL_SUBSCRIPTION, subscription="*", expression_type="TAG",
            )  # fmt: skip
            reply = self._calls.request(master, Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext()))
            records |= records_in(reply.body)
        return found_messages(b"".join(records[each] for each in answer.offsets if each in records), queue.broker)

    def _kept_at(self, address: Address, wanted: LaneBody) -> Iterator[ParkedLaneView]:
        """The lanes that a broker or a coordinator keeps."""
        wanted.after = ""
        while True:
            reply = self._calls.ask(address, RequestCode.LANE_PARKED, body=wanted.encode())
            table = ParkedTable.decode(reply.body)
            for each in table.lanes:
                yield _view(each)
            wanted.after = table.more
            if not table.more:
                return

    def _ask(self, broker: str, code: RequestCode, body: LaneBody) -> Command:
        address = self._masters.get(broker) or self._keeper(broker)
        if address is None:
            raise ConnectFailed(f"broker {broker!r} is not among those that the name server lists: is it running?")
        return self._calls.ask(address, code, body=body.encode())

    def _keeper(self, broker: str) -> Address | None:
        """Who keeps the lanes of a broker's queues."""
        address, is_lanemq = self._calls.masters().get(broker, (None, False))
        return address if is_lanemq else self._calls.coordinator() or address


def _named(lane: ParkedLaneView) -> LaneBody:
    check_kind("lane", lane, ParkedLaneView, "one of those that `lanes` returns")
    topic, broker, queue_id = lane.queue
    return LaneBody(group=lane.group, topic=topic, broker=broker, queue_id=queue_id, any_key=False, key=lane.key)


def _view(body: ParkedLaneBody) -> ParkedLaneView:
    return ParkedLaneView(
        group=body.group,
        queue=MessageQueue(body.topic, body.broker, body.queue_id),
        key=body.key,
        status=LaneStatus(body.status),
        reason=body.reason,
        attempts=body.attempts,
        parked_since=wall_time(body.since),
        messages=body.messages,
        first=QueueOffset(body.first),
        last=QueueOffset(body.last),
    )
