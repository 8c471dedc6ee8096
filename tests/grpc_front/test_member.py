"""Runs of a group's retry topic: each belongs to a topic, and waits aside until a client asks for that one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.broker.running import ManualClock

from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.consumer.turns.taking import TakingScheduler
from lanemq.core.consuming.runs import STOPPED, LaneOptions, LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.grpc_front.groups import LaneMember, Wanted
from lanemq.grpc_front.options import FrontOptions
from lanemq.model.names import retry_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

RETRIES = MessageQueue(retry_topic("g"), "lanemq", 0)
LEASED = 10_000


@dataclass(frozen=True, slots=True)
class Stored:
    key: str
    queue_offset: int
    topic: str
    size: int = 10


class Stage:
    """A member that is not started, with messages of two topics in its retry topic."""

    def __init__(self, *topics: str) -> None:
        self.clock = ManualClock()
        wanted = Wanted({"bills": "*", "orders": "*"}, ordered=True)
        self.member = LaneMember("g", wanted, FrontOptions(servers="localhost:1"), self.clock, lambda: None)
        lanes: LaneScheduler[Any] = LaneScheduler(LaneOptions(run_limit=1))
        self.scheduler = TakingScheduler(lanes, self.clock, lambda: None)
        self.member._lanes[RETRIES.topic] = self.scheduler
        lanes.add(RETRIES, QueueOffset(0), usable_until=Millis(self.clock.now() + LEASED))
        stored = [Stored(f"k{offset}", offset, topic) for offset, topic in enumerate(topics)]
        lanes.put(RETRIES, stored, QueueOffset(len(stored)), pulled_from=QueueOffset(0))

    def taken(self, topic: str) -> Any:
        run = self.member.take(topic, 1)
        assert isinstance(run, LaneRun)
        return run

    def drained(self) -> bool:
        with self.scheduler as lanes:
            lanes.drain(RETRIES, now=self.clock.now())
            return lanes.is_drained(RETRIES)


def played(play: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await play()

    asyncio.run(run())


def test_a_run_of_another_topic_waits_for_a_client_of_that() -> None:
    async def play() -> None:
        stage = Stage("bills", "orders")
        assert stage.taken("orders").messages[0].topic == "orders"
        assert stage.taken("bills").messages[0].queue_offset == 0

    played(play)


def test_a_run_that_waits_aside_is_not_handed_out_without_a_lease() -> None:
    async def play() -> None:
        stage = Stage("bills", "orders")
        stage.member.take("orders", 1)
        stage.clock.passed = LEASED
        assert not isinstance(stage.member.take("bills", 1), LaneRun)

    played(play)


def test_a_run_that_waits_aside_holds_no_hand_over_up() -> None:
    async def play() -> None:
        stage = Stage("bills", "orders")
        stage.member.put_back(stage.taken("orders"))
        stage.member.release()
        assert stage.member.take("bills", 1) is None, "nothing is taken any more"
        assert stage.drained()

    played(play)


def test_a_history_has_what_is_acknowledged_of_a_longer_run_before_it_is_reported() -> None:
    """The broker may record a commit at once, and the checker reads it as one of messages that nobody has finished."""

    async def play() -> None:
        stage, ended = Stage("orders"), list[tuple[int, bool]]()
        run = stage.taken("orders")
        run.messages = tuple(replace(run.messages[0], queue_offset=offset) for offset in range(3))

        class Recorder:
            def end(self, messages: Any, run: Any, stop: Stop | None) -> None:
                good = len(messages) if stop is None else stop.succeeded
                ended.extend((message.queue_offset, at < good) for at, message in enumerate(messages))

        stage.member.recorder = Recorder()  # type: ignore[assignment]
        stage.member._record_end(run, Stop(STOPPED, succeeded=0))
        assert ended == [(0, False), (1, False), (2, False)]
        ended.clear()
        stage.member.progressed(run, 1)
        assert ended == [(0, True)]
        stage.member._record_end(run, Stop(STOPPED, succeeded=2))
        assert ended == [(0, True), (1, True), (2, False)]

    played(play)
