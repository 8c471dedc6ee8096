"""The hand-over of a queue: how long it waits for its handlers, and what ends the wait."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from tests.client.consumer.fakes import assigned_queue, message

from lanemq.client.consumer.queues.assigned_queue import Assignment
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.clock import SystemClock
from lanemq.core.consuming.queue_lease import LANE_TIMES, QueueLease
from lanemq.core.consuming.runs import DONE, NO_LEASE_NEEDED, LaneOptions, LaneRun
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset

QUEUE = MessageQueue("orders", "a", 0)
LONG_MS = 10_000


def two_running_turns() -> tuple[Scheduler, list[LaneRun]]:  # type: ignore[type-arg]
    scheduler = Scheduler(LaneScheduler(LaneOptions()), SystemClock())
    messages = [message(0, key="x"), message(1, key="y")]
    with scheduler as lanes:
        lanes.add(QUEUE, QueueOffset(0), usable_until=NO_LEASE_NEEDED)
        lanes.put(QUEUE, messages, QueueOffset(2), pulled_from=QueueOffset(0))
    runs = [scheduler.take_run(0), scheduler.take_run(0)]
    assert all(runs)
    with scheduler as lanes:
        lanes.drain(QUEUE, now=Millis(0))
    return scheduler, runs  # type: ignore[return-value]


@pytest.mark.row("A90")
def test_a_draining_queue_waits_for_its_last_handler_not_for_its_first() -> None:
    async def play() -> tuple[bool, bool]:
        scheduler, (first, last) = two_running_turns()
        waiting = asyncio.create_task(scheduler.drained(QUEUE, LONG_MS))
        await asyncio.sleep(0)
        scheduler.finish(first, DONE)
        for _ in range(5):
            await asyncio.sleep(0)
        early = waiting.done()
        scheduler.finish(last, DONE)
        return early, await waiting

    assert asyncio.run(play()) == (False, True)


def test_a_queue_that_is_lost_while_it_drains_ends_the_wait() -> None:
    """There is nothing left to hand over; an error would end the whole consumer."""

    async def play() -> bool:
        scheduler, _ = two_running_turns()
        waiting = asyncio.create_task(scheduler.drained(QUEUE, LONG_MS))
        await asyncio.sleep(0)
        with scheduler as lanes:
            lanes.drop(QUEUE)
        return await asyncio.wait_for(waiting, LONG_MS / 2_000)

    assert asyncio.run(play())


def test_a_renewal_is_recorded_before_its_turns() -> None:
    """Otherwise the turns in the history would seem to start after their lease had ended."""
    order: list[str] = []
    history = SimpleNamespace(on=True, lease_renewed=lambda *_, **__: order.append("history"))
    scheduler = contextlib.nullcontext(SimpleNamespace(set_usable_until=lambda *_: order.append("scheduler")))
    lease = QueueLease(Millis(9))
    lease.granted(Epoch(1), asked_at=Millis(2))
    assigned = assigned_queue(QUEUE, lease, LANE_TIMES, scheduler=scheduler)
    settings: Any = SimpleNamespace(group="g", history=history, clock=SimpleNamespace(now=lambda: 4, wall=lambda: 4))
    assignment = Assignment(settings, "me", lambda: None)
    keeper = LeaseKeeper(settings, None, assignment, lambda *_: None, None, lambda *_: None)  # type: ignore[arg-type]
    keeper._set_usable_until(assigned, Millis(5))
    assert order == ["history", "scheduler"]
    keeper._set_usable_until(assigned, Millis(4))
    assert order == ["history", "scheduler", "scheduler"], "a time in the past is no renewal"


@pytest.mark.row("A87")
def test_a_handler_that_outlasts_the_wait_keeps_its_queue() -> None:
    async def play() -> bool:
        scheduler, _ = two_running_turns()
        return await scheduler.drained(QUEUE, 20)

    assert asyncio.run(play()) is False
