"""Messages of a lane that was set aside are those of the log that the group has read."""

import asyncio
from typing import Any

import pytest
from tests.client.consumer.test_assigned_queue import assigned_at

from lanemq.client.consumer.options import consumer_options
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.client.consumer.queues.read_log import FormerRead, ReadLog
from lanemq.core.consuming.lanes_aside import NextRequest
from lanemq.core.lane_status import LaneStatus
from lanemq.model.errors import LogReplaced
from lanemq.model.log_marks import LogMark, OtherLog
from lanemq.net.address import Address

READ = LogMark(7, 700, 1, "id-7")


class Broker:
    """A master whose log the member has not compared yet, and the messages of a lane."""

    def __init__(self, other: OtherLog | None) -> None:
        self._other = other
        self.taken_again: list[AssignedQueue] = []

    def master(self, topic: str, broker: str) -> Address:
        return Address("127.0.0.1", 1)

    async def next(self, *_: object) -> tuple[LaneStatus, bytes]:
        return LaneStatus.REDRIVING, b"records"

    async def other(self, *_: object) -> OtherLog | None:
        return self._other

    def take_again(self, assigned: AssignedQueue, why: str) -> None:
        self.taken_again.append(assigned)


def fetched(broker: Any) -> tuple[LaneStatus | None, bytes]:
    """The next messages of a lane at this broker."""

    async def main() -> tuple[LaneStatus | None, bytes]:
        reporter = QueueReporter(consumer_options("127.0.0.1:1", "g"), broker, broker, lambda _: True)
        reporter._lane_calls = reporter._comparison = broker
        assigned = assigned_at(5)
        assigned.read_log = ReadLog(FormerRead(READ))
        return await reporter._next(assigned, NextRequest("k", 3))

    return asyncio.run(main())


def test_messages_of_a_lane_are_not_taken_from_another_log() -> None:
    """They may be others of the same key, and would run before their turn."""
    broker = Broker(OtherLog(READ, None))
    with pytest.raises(LogReplaced, match="where key 'k' was parked"):
        fetched(broker)
    assert len(broker.taken_again) == 1


def test_messages_of_a_lane_are_taken_from_the_same_log() -> None:
    assert fetched(Broker(None)) == (LaneStatus.REDRIVING, b"records")
