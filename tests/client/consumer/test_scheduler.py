"""Many threads share one scheduler: every message runs once and in order, even if waiting workers are interrupted.

A caller that waits for a single run gets it when another caller ends the run before it.
"""

import asyncio
import itertools
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.client.consumer.fakes import committable, message, queue

from lanemq.client.bell import Bell
from lanemq.client.consumer.turns import scheduler as scheduler_module
from lanemq.client.consumer.turns.async_scheduler import AsyncScheduler
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.client.message import Message
from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import DONE, NO_LEASE_NEEDED, STOPPED, LaneOptions
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import QueueOffset

WAIT = 60.0
QUEUES, MESSAGES, KEYS = 4, 400, 7


def lane_scheduler() -> LaneScheduler[Message]:
    return LaneScheduler(LaneOptions(run_limit=8))


def put(scheduler: Scheduler, number: int, first: int, count: int) -> None:
    messages = [message(n, of=queue(number), key=f"k{n % KEYS}") for n in range(first, first + count)]
    with scheduler as lanes:
        lanes.put(queue(number), messages, QueueOffset(first + count), pulled_from=QueueOffset(first))


class Ledger:
    """Records what ran, per lane and in order."""

    def __init__(self) -> None:
        self.lanes: dict[tuple[int, str | None], list[int]] = defaultdict(list)
        self.left = QUEUES * MESSAGES
        self.all_run = threading.Event()
        self._mutex = threading.Lock()

    def ran(self, message: Message) -> None:
        with self._mutex:
            self.lanes[message.queue.queue_id, message.key].append(message.queue_offset)
            self.left -= 1
            if not self.left:
                self.all_run.set()


@pytest.mark.row("A115")
@pytest.mark.row("A68")
def test_many_threads_run_every_message_once() -> None:
    """Some workers finish their runs, some stop halfway, some give up waiting, while other threads put messages."""
    scheduler, ledger = Scheduler(lane_scheduler(), SystemClock()), Ledger()

    def work(number: int) -> None:
        patience = 0.0005 if number % 2 else None
        while not ledger.all_run.is_set():
            run = scheduler.take_run(patience)
            if run is None:
                continue
            tried = run.messages if number % 3 else run.messages[: len(run.messages) // 2]
            for each in tried:
                ledger.ran(each)
            scheduler.finish(run, DONE if len(tried) == len(run.messages) else STOPPED, len(tried))

    def fill(number: int) -> None:
        for first in range(0, MESSAGES, 10):
            put(scheduler, number, first, 10)

    for number in range(QUEUES):
        with scheduler as lanes:
            lanes.add(queue(number), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(8)]
    threads += [threading.Thread(target=fill, args=(n,), daemon=True) for n in range(QUEUES)]
    for thread in threads:
        thread.start()
    assert ledger.all_run.wait(WAIT)
    scheduler.close()
    for thread in threads:
        thread.join(WAIT)
    wanted = {(q, f"k{k}"): list(range(k, MESSAGES, KEYS)) for q in range(QUEUES) for k in range(KEYS)}
    assert dict(ledger.lanes) == wanted
    assert [committable(scheduler, queue(n)) for n in range(QUEUES)] == [MESSAGES] * QUEUES


class Interrupted(Exception):
    """Stands for anything that ends a thread's wait from outside, such as Ctrl-C."""


class OneInterrupt(Bell):
    """Interrupts the first waiter right after it was woken, which is the worst moment: its wake-up is used up."""

    armed = True

    def sleep(self, sleeper: threading.Lock, seconds: float | None) -> None:
        super().sleep(sleeper, seconds)
        if self.armed:
            self.armed = False
            raise Interrupted


@pytest.mark.row("A115")
def test_when_a_waiting_worker_is_interrupted_another_runs_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(lane_scheduler(), SystemClock())
    scheduler._changed = OneInterrupt()
    monkeypatch.setattr(scheduler_module, "LOOK_AGAIN_SECONDS", WAIT)
    with scheduler as lanes:
        lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    ended: list[object] = []
    both = threading.Semaphore(0)

    def work() -> None:
        try:
            run = scheduler.take_run(WAIT)
            ended.append([each.queue_offset for each in run.messages] if run else None)
        except Interrupted:
            ended.append("interrupted")
        both.release()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(scheduler._changed) < 2:
        threading.Event().wait(0.001)
    put(scheduler, 0, 0, 1)
    assert both.acquire(timeout=WAIT / 4)
    assert both.acquire(timeout=WAIT / 4), "the message waits and no worker was called"
    assert sorted(map(str, ended)) == ["[0]", "interrupted"]
    assert not scheduler._changed


def test_a_signal_handler_may_raise_wherever_a_thread_waits() -> None:
    """At each step of the sleep: the mutex is free afterwards, and the next call gets the message."""
    for raises_at in itertools.count():
        scheduler, steps = Scheduler(lane_scheduler(), SystemClock()), itertools.count()
        with scheduler as lanes:
            lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)

        def trace(frame: Any, event: str, _: Any, at: int = raises_at, steps: Any = steps) -> Any:
            if frame.f_globals["__name__"] not in ("lanemq.client.bell", "threading"):
                return None
            if event == "line" and next(steps) == at:
                raise Interrupted
            return trace

        before = sys.gettrace()
        try:
            sys.settrace(trace)
            scheduler.take_run(0.1)  # long enough that a busy machine does not pass it before the sleep
            is_last = True
        except Interrupted:
            is_last = False
        finally:
            sys.settrace(before)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(scheduler._mutex.acquire, blocking=False).result(), "the mutex is taken"
            other.submit(scheduler._mutex.release).result()
        put(scheduler, 0, 0, 1)
        assert scheduler.take_run(0) is not None
        if is_last:
            break
    assert raises_at > 4


def test_a_thread_waits_for_a_message_whose_wake_up_an_interrupted_one_has_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler(lane_scheduler(), SystemClock())
    monkeypatch.setattr(scheduler_module, "LOOK_AGAIN_SECONDS", 0.05)
    with scheduler as lanes:
        lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    scheduler._changed.sleeper()  # of a thread that was interrupted before it slept
    polled: list[object] = []
    poll = threading.Thread(target=lambda: polled.append(scheduler.take_run()), daemon=True)
    poll.start()
    while len(scheduler._changed) < 2:
        threading.Event().wait(0.001)
    put(scheduler, 0, 0, 1)
    poll.join(WAIT / 4)
    assert len(polled) == 1
    scheduler.close()


@pytest.mark.row("A115")
def test_when_a_woken_task_is_cancelled_another_runs_its_message() -> None:
    async def main() -> tuple[bool, list[int]]:
        scheduler = AsyncScheduler(lane_scheduler(), SystemClock())
        with scheduler as lanes:
            lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
        first, second = (asyncio.create_task(scheduler.take_run_async()) for _ in range(2))
        while len(scheduler._sleepers) < 2:  # noqa: ASYNC110 - each pass lets the two tasks run
            await asyncio.sleep(0)
        put(scheduler, 0, 0, 1)
        first.cancel()
        async with asyncio.timeout(WAIT / 4):
            run = await second
        assert run is not None
        return first.cancelled(), [each.queue_offset for each in run.messages]

    assert asyncio.run(main()) == (True, [0])


def test_the_end_of_a_single_run_wakes_a_thread_that_waits_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Consumer.done` in one thread while `Consumer.poll` waits in another, which would look again after a second."""
    monkeypatch.setattr(scheduler_module, "LOOK_AGAIN_SECONDS", WAIT)
    scheduler = Scheduler(LaneScheduler(LaneOptions(run_limit=1)), SystemClock())
    with scheduler as lanes:
        lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    put(scheduler, 0, 0, KEYS + 1)  # the last one is the second of its key
    runs = [scheduler.take_run() for _ in range(KEYS)]
    polled: list[object] = []
    poll = threading.Thread(target=lambda: polled.append(scheduler.take_run()), daemon=True)
    poll.start()
    while not scheduler._changed:
        threading.Event().wait(0.001)
    assert runs[0] is not None
    scheduler.finish(runs[0], DONE, 1)
    poll.join(WAIT / 4)
    assert [run.messages[0].queue_offset for run in polled] == [KEYS]  # type: ignore[attr-defined]


def test_the_end_of_a_single_run_wakes_a_task_that_waits_for_the_next_one() -> None:
    async def main() -> list[int]:
        scheduler = AsyncScheduler(LaneScheduler(LaneOptions(run_limit=1)), SystemClock())
        with scheduler as lanes:
            lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
        put(scheduler, 0, 0, KEYS + 1)
        runs = [await scheduler.take_run_async() for _ in range(KEYS)]
        poll = asyncio.create_task(scheduler.take_run_async())
        while not scheduler._sleepers:  # noqa: ASYNC110 - each pass lets the task run
            await asyncio.sleep(0)
        assert runs[0] is not None
        scheduler.finish(runs[0], DONE, 1)
        async with asyncio.timeout(WAIT / 4):
            run = await poll
        assert run is not None
        return [each.queue_offset for each in run.messages]

    assert asyncio.run(main()) == [KEYS]
