"""What is handed to clients and comes back, with lanes of the scheduler and without a broker."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import LaneOptions, LaneRun, Outcome, Why
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.fronting.hand_outs import Ruling
from lanemq.grpc_front.clients import GrpcClient
from lanemq.grpc_front.handing import Handing, Receive
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

QUEUE = MessageQueue("orders", "lanemq", 0)


@dataclass(frozen=True, slots=True)
class Stored:
    key: str
    queue_offset: int
    size: int = 10


class Lanes:
    """A member with one queue."""

    def __init__(self, keys: str) -> None:
        self.lanes: LaneScheduler[Any] = LaneScheduler(LaneOptions(run_limit=8))
        self.lanes.add(QUEUE, QueueOffset(0), usable_until=Millis(1 << 60))
        stored = [Stored(key, offset) for offset, key in enumerate(keys)]
        self.lanes.put(QUEUE, stored, QueueOffset(len(keys)), pulled_from=QueueOffset(0))

    def take(self, topic: str, most: int) -> Any:
        run = self.lanes.next_run(now=Millis(0), most=most)
        return run if isinstance(run, LaneRun) else run.until

    def begun(self, run: Any, client: str) -> None:
        pass

    def progressed(self, run: Any, done: int) -> None:
        run.done = done
        self.lanes.note_progress(run)

    def put_back(self, run: Any) -> None:
        raise AssertionError

    def finish(self, run: Any, outcome: Outcome, done: int = 0, error: Exception | None = None) -> Why:
        return self.lanes.finish(run, outcome, done=done, now=Millis(0)).why


class Stage:
    """Clients that receive, on a running loop."""

    def __init__(self, keys: str) -> None:
        self.member = Lanes(keys)
        self.group: Any = SimpleNamespace(name="g", member=self.member, look=lambda: None)
        self.handing = Handing("boot", SystemClock(), Millis(900_000))

    async def receive(self, client: str, seconds: float = 0.0, **more: Any) -> Receive:
        call = Receive(GrpcClient(client), self.group, "orders", 8, **{"invisible": None, "attempt_id": "", **more})
        await self.handing.receive(call, seconds)
        return call

    def acknowledge(self, call: Receive, at: int = 0) -> Ruling:
        return self.handing.acknowledge(call.client, call.hand_outs[0].handles[at], "g", "orders")


def played(play: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await play()

    asyncio.run(run())


def test_an_answer_that_was_lost_returns_nothing_that_a_repeated_call_has() -> None:
    async def play() -> None:
        stage = Stage("a")
        lost = await stage.receive("c", attempt_id="one")
        again = await stage.receive("c", attempt_id="one")
        assert again.hand_outs == lost.hand_outs != []
        stage.handing.not_received(lost)
        assert (await stage.receive("d")).hand_outs == [], "the lane is with c"
        assert stage.acknowledge(again) is Ruling.ENDED

    played(play)


def test_what_a_lost_connection_brought_last_is_for_others_unless_the_client_has_it_by_a_repeated_call() -> None:
    """The transport had written the answers: only the client could say that they did not arrive."""

    async def play() -> None:
        stage = Stage("abc")
        early = await stage.receive("c", connection="old")
        early.hand_outs[0].began = Millis(early.hand_outs[0].began - 10)
        since = Millis(early.hand_outs[0].began + 1)
        lost = await stage.receive("c", connection="old", attempt_id="lost")
        repeated = await stage.receive("c", connection="old", attempt_id="repeated")
        again = await stage.receive("c", connection="new", attempt_id="repeated")
        assert again.hand_outs == repeated.hand_outs != []
        stage.handing.connection_lost("c", "old", since)
        assert stage.acknowledge(lost) is Ruling.STALE
        assert stage.acknowledge(early) is Ruling.ENDED
        assert stage.acknowledge(again) is Ruling.ENDED
        assert (await stage.receive("d")).hand_outs

    played(play)


def test_a_receive_of_a_client_that_has_ended_gets_nothing() -> None:
    async def play() -> None:
        stage = Stage("")
        waiting = asyncio.create_task(stage.receive("c", 60.0))
        await asyncio.sleep(0)
        stage.handing.client_gone("c")
        assert (await asyncio.wait_for(waiting, 5)).hand_outs == []

    played(play)


def test_what_is_with_a_client_that_nobody_knows_is_for_others() -> None:
    async def play() -> None:
        stage = Stage("a")
        assert (await stage.receive("gone")).hand_outs
        stage.handing.tidy({"c"})
        assert (await stage.receive("c")).hand_outs

    played(play)


def test_an_acknowledgement_that_the_lane_does_not_take_is_not_confirmed() -> None:
    async def play() -> None:
        stage = Stage("a")
        call = await stage.receive("c")
        # The member's thread loses the queue between our look and the end of the run.
        stage.member.finish = lambda *_: Why.QUEUE_GONE  # type: ignore[method-assign, assignment]
        assert stage.acknowledge(call) is Ruling.STALE

    played(play)


def test_what_is_acknowledged_of_a_longer_run_is_reported_before_its_end() -> None:
    async def play() -> None:
        stage = Stage("aaa")
        call = await stage.receive("c", invisible=Millis(10_000))
        assert stage.acknowledge(call, 0) is Ruling.COUNTED
        assert stage.member.lanes[QUEUE].committable == 1

    played(play)


def test_one_run_that_cannot_be_ended_does_not_keep_the_others() -> None:
    async def play() -> None:
        stage = Stage("ab")
        await stage.receive("c")
        await stage.receive("d")
        broken = stage.member.finish

        def once(*given: Any, **more: Any) -> Why:
            stage.member.finish = broken  # type: ignore[method-assign]
            raise OSError("the history cannot be written")

        stage.member.finish = once  # type: ignore[method-assign]
        stage.handing.tidy(set())
        assert (await stage.receive("e")).hand_outs

    played(play)


@pytest.mark.parametrize("client", ["push", "simple"])
def test_a_delay_that_a_push_consumer_asks_for_is_a_failure(client: str) -> None:
    async def play() -> None:
        stage = Stage("a")
        call = await stage.receive("c", invisible=None if client == "push" else Millis(10_000))
        handle = call.hand_outs[0].handles[0]
        ruling, new = stage.handing.change(call.client, handle, "g", "orders", Millis(5000))
        assert ruling is (Ruling.ENDED if client == "push" else Ruling.COUNTED)
        assert (new == handle, stage.handing.failures) == ((True, 1) if client == "push" else (False, 0))

    played(play)


def test_a_receive_that_finds_nothing_ends_the_search_for_the_others_of_its_line() -> None:
    async def play() -> None:
        stage, looks = Stage(""), list[str]()
        waiting = [asyncio.create_task(stage.receive(f"c{number}", 60.0)) for number in range(50)]
        await asyncio.sleep(0)
        take = stage.member.take

        def counted(topic: str, most: int) -> Any:
            looks.append(topic)
            return take(topic, most)

        stage.member.take = counted  # type: ignore[method-assign]
        stage.handing.serve(stage.group)
        assert len(looks) == 1
        stage.handing.answer_all()
        await asyncio.gather(*waiting)

    played(play)
