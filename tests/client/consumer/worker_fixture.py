"""Worker threads of one subscription, for tests that add queues and messages."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.client.consumer.fakes import message, queue

from lanemq.client.codec import JsonCodec
from lanemq.client.consumer.turns.arguments import plain_call, read_signature
from lanemq.client.consumer.turns.counting import ConsumerCounts
from lanemq.client.consumer.turns.handler import HandlerCall, batch_handler
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.client.consumer.turns.subscription import ActiveSubscription, Subscription, make_scheduler
from lanemq.client.consumer.turns.workers import RunReporter, ThreadWorkers
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import (
    NO_LEASE_NEEDED,
    LaneRun,
    RunPermit,
)
from lanemq.history import NO_HISTORY
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

WAIT = 30.0


def run_of(*messages: Message, until: int = NO_LEASE_NEEDED, attempt: int = 1) -> LaneRun[Message]:
    return LaneRun(queue(0), "k", messages, attempt, 1, RunPermit(Millis(until)), NO_LEASE_NEEDED)


def handler_call(handler: Any) -> HandlerCall:
    """How a handler without dependencies is called for single messages."""
    return plain_call(handler, read_signature(handler, JsonCodec(), batched=False))


class FakeDeadLetters:
    """Records dead letters instead of sending them."""

    def __init__(self, *, stored: bool = True) -> None:
        self.stored = stored
        self.letters: list[tuple[int, str]] = []
        self.sent_back: list[tuple[int, int]] = []

    async def dead_letter(self, message: Message, why: str) -> bool:
        self.letters.append((message.queue_offset, why))
        return self.stored

    async def send_back(self, message: Message, level: int = 0, max_retries: int = 16) -> bool:
        self.sent_back.append((message.queue_offset, level))
        return self.stored


class WorkerFixture:
    """Running worker threads of one subscription; the test adds queues and messages."""

    def __init__(self, function: Callable[[Message], Any] | None = None, /, **plan: Any) -> None:
        self.letters = FakeDeadLetters(stored=plan.pop("stored", True))
        if function is not None:
            plan["handler"] = batch_handler(handler_call(function), batched=False)
        self.plan = Subscription(**{"topic": "orders", "workers": 4} | plan)
        self.active = ActiveSubscription(self.plan, make_scheduler(self.plan, SystemClock()))
        self.counts = ConsumerCounts()

    @property
    def scheduler(self) -> Scheduler:
        return self.active.scheduler

    def run(self, scenario: Callable[["WorkerFixture"], None]) -> None:
        async def main() -> None:
            reporter = RunReporter("g", self.letters, NO_HISTORY)  # type: ignore[arg-type]
            workers = ThreadWorkers(self.active, reporter, SystemClock(), self.counts)
            workers.start()
            try:
                await asyncio.to_thread(scenario, self)
            finally:
                await workers.stop(WAIT)

        asyncio.run(main())

    def add(self, which: MessageQueue, until: int = NO_LEASE_NEEDED) -> None:
        with self.scheduler as lanes:
            lanes.add(which, QueueOffset(0), usable_until=Millis(until))

    def put(self, which: MessageQueue, count: int, **fields: Any) -> None:
        messages = [message(n, of=which, **fields) for n in range(count)]
        with self.scheduler as lanes:
            lanes.put(which, messages, QueueOffset(count), pulled_from=QueueOffset(0))

    def wait(self, condition: Callable[[], object]) -> None:
        done = threading.Event()
        for _ in range(int(WAIT * 200)):
            if condition():
                return
            done.wait(0.005)
        raise AssertionError("it did not come true in time")
