"""While runs wait behind others of a busy worker, one of the sleeping workers watches."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.client.consumer.fakes import committable, message, queue
from tests.client.virtual_time import ManualClock, VirtualClock, run_virtual

from lanemq.client.bell import Bell
from lanemq.client.consumer.turns.async_scheduler import AsyncScheduler
from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.consumer.turns.scheduler import MessageRun, Scheduler
from lanemq.client.consumer.turns.workers import run_worker_async
from lanemq.client.message import Message
from lanemq.core.consuming.busy_workers import LATE_MS, MAX_MESSAGES, Worker
from lanemq.core.consuming.runs import FAILED, NO_LEASE_NEEDED, LaneOptions
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import Millis, QueueOffset

SHARE = 16
WORKERS = 4


class Bed:
    """A scheduler with one queue, to which the test adds messages of new keys."""

    share = SHARE

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.put_so_far = 0
        with scheduler as lanes:
            lanes.add(queue(0), QueueOffset(0), usable_until=NO_LEASE_NEEDED)

    def put(self, *keys: str) -> None:
        """Adds messages as if handlers had been fast so far."""
        self.scheduler._lanes.busy.share = self.share
        first = self.put_so_far
        self.put_so_far += len(keys)
        messages = [message(first + n, of=queue(0), key=key) for n, key in enumerate(keys)]
        with self.scheduler as lanes:
            lanes.put(queue(0), messages, QueueOffset(self.put_so_far), pulled_from=QueueOffset(first))


# --- step by step, without threads


class Scripted(Bell):
    """Runs a step of the test instead of sleeping, and only counts wake-ups."""

    def __init__(self, asleep: Callable[[], None]) -> None:
        super().__init__()
        self.asleep = asleep
        self.patience: list[float | None] = []
        self.woken = 0
        self.waking = False

    @property
    def is_waking(self) -> bool:
        return self.waking

    def sleep(self, sleeper: threading.Lock, seconds: float | None) -> None:
        self.patience.append(seconds)
        self.asleep()

    def ring(self, most: float = 1) -> int:
        self.woken += 1
        return 1


class Steps(Bed):
    """One worker always sleeps; the test plays the others."""

    def __init__(self, asleep: Callable[[], None] = lambda: None) -> None:
        self.clock = ManualClock()
        scheduler = Scheduler(LaneScheduler(LaneOptions()), self.clock)
        scheduler._changed = self.bell = Scripted(asleep)
        super().__init__(scheduler)

    def begun(self, *keys: str) -> Worker:
        """A worker whose handler is called with the first of these messages."""
        worker = Worker()
        self.put(*keys)
        assert self.scheduler.take_runs(worker)
        worker.run = worker.waiting.popleft()
        self.bell.woken = 0
        return worker


def test_a_watcher_that_finds_work_wakes_another_watcher() -> None:
    """The busy worker is not late yet, and the new run occupies the only worker that would have taken its runs back."""
    woken: list[int] = []

    def asleep() -> None:
        steps.clock.at += LATE_MS - 2
        steps.put("hangs too")
        woken.append(steps.bell.woken)

    steps = Steps(asleep)
    slow, watcher = steps.begun("hangs", "a", "b"), Worker()
    assert steps.scheduler.take_runs(watcher)
    assert (len(slow.waiting), [run.key for run in watcher.waiting]) == (2, ["hangs too"])
    assert steps.bell.patience == [LATE_MS / 1000]
    assert steps.bell.woken > woken[0]


def test_a_worker_that_sleeps_while_another_has_finished_runs_looks_again_soon() -> None:
    steps = Steps(lambda: steps.scheduler.close())
    slow = steps.begun("a", "hangs")
    assert slow.run is not None
    slow.ended.append(slow.run)
    slow.run = slow.waiting.popleft()
    assert not steps.scheduler.take_runs(Worker())
    assert steps.bell.patience == [LATE_MS / 1000]


def test_no_worker_is_woken_for_one_that_has_a_single_run() -> None:
    """With slow handlers a worker takes one run at a time; a wake-up for each would wake all workers for nothing."""
    steps = Steps()
    steps.begun("a")
    steps.put("b")
    before = steps.bell.woken
    assert steps.scheduler.take_runs(Worker())
    assert steps.bell.woken == before


def test_no_second_worker_is_woken_while_one_is_waking_up() -> None:
    """It may wait for the interpreter for milliseconds; waking all others would make it wait longer."""
    steps = Steps()
    steps.put("a", "b")
    assert steps.bell.woken == 1
    steps.bell.waking = True
    assert steps.scheduler.take_runs(Worker())
    assert steps.bell.woken == 1


def test_a_worker_that_leaves_a_held_key_to_a_quick_worker_does_not_spin() -> None:
    """The key's time has come, and the other worker is not late yet: a pause of 0 would be followed by the same one."""
    steps = Steps(lambda: steps.scheduler.close())
    worker = steps.begun("held")
    assert worker.run is not None
    steps.scheduler.finish(worker.run, FAILED, 0, "failed")
    worker.run = None
    until = steps.scheduler._lanes.wait().until
    assert until is not None
    steps.clock.at = until - 1
    steps.share = MAX_MESSAGES
    steps.begun("hangs")
    steps.clock.at = until
    assert not steps.scheduler.take_runs(Worker())
    assert steps.bell.patience == [0.001]


def test_a_worker_that_leaves_quick_work_to_another_looks_again_when_that_one_is_late() -> None:
    """The other worker hangs in its only run: nothing waits behind it, and no other worker takes the new message."""

    def asleep() -> None:
        steps.clock.at += LATE_MS

    steps, watcher = Steps(asleep), Worker()
    steps.share = MAX_MESSAGES
    steps.begun("hangs")
    steps.put("b")
    assert steps.scheduler.take_runs(watcher)
    assert steps.bell.patience == [LATE_MS / 1000]
    assert [run.key for run in watcher.waiting] == ["b"]


def test_lanes_freed_by_a_commit_wake_a_worker() -> None:
    """A commit ends the finished runs of a worker that hangs; another worker must take their lanes."""
    steps = Steps()
    slow = steps.begun("a", "hangs")
    steps.put("a")
    assert slow.run is not None
    slow.ended.append(slow.run)
    slow.run = slow.waiting.popleft()
    steps.bell.woken = 0
    assert committable(steps.scheduler, queue(0)) == 1
    assert steps.bell.woken == 1
    assert committable(steps.scheduler, queue(0)) == 1
    assert steps.bell.woken == 1, "nothing new was freed"


def test_lanes_freed_by_a_hand_over_wake_a_worker() -> None:
    """The worker has runs of a queue that leaves, and finished ones of a queue that stays."""
    steps = Steps()
    slow = steps.begun("a", "hangs")
    steps.put("a")
    assert slow.run is not None
    slow.ended.append(slow.run)
    slow.run = slow.waiting.popleft()
    with steps.scheduler as lanes:
        lanes.add(queue(1), QueueOffset(0), usable_until=NO_LEASE_NEEDED)
    steps.bell.woken = 0
    with steps.scheduler as lanes:
        lanes.drain(queue(1), now=Millis(0))
    assert steps.bell.woken == 1


# --- whole runs on virtual time


class Shift(Bed):
    """Workers that are tasks. The key says how long its handler takes: `3-x` takes 0.3 ms, `hangs-x` an hour."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.async_scheduler = AsyncScheduler(LaneScheduler(LaneOptions()), VirtualClock())
        self.done: set[str] = set()
        self.tasks = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        super().__init__(self.async_scheduler)

    async def _work(self) -> None:
        worker = Worker()
        while await self.async_scheduler.take_runs_async(worker):
            await run_worker_async(worker, self._attempt, 1, VirtualClock(), TurnTimes())

    async def _attempt(self, messages: tuple[Message, ...], _: MessageRun) -> Stop | None:
        key = messages[0].key or ""
        await asyncio.sleep(3600 if key.startswith("hangs") else int(key[0]) / 10_000)
        self.done.add(key)
        return None

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


Burst = tuple[list[int], bool, int]
"""How long each handler takes, whether one that hangs comes first, and the pause afterwards; in tenths of a ms."""
bursts = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=8), st.booleans(), st.integers(0, 50)), max_size=8)


@pytest.mark.parametrize("share", [SHARE, MAX_MESSAGES])
@settings(max_examples=200, deadline=None)
@example(bursts=[([2] * 8, False, 10), ([2] * 8, False, 10), ([0] * 5, True, 20), ([], True, 0)])
@given(bursts=bursts)
def test_all_keys_but_the_hanging_ones_run_while_one_worker_is_free(share: int, bursts: list[Burst]) -> None:
    async def main() -> set[str]:
        shift, wanted, hanging = Shift(share), set(), 0
        for number, (times, hangs, pause) in enumerate(bursts):
            healthy = [f"{time}-{number}-{n}" for n, time in enumerate(times)]
            hangs = hangs and hanging < WORKERS - 1
            hanging += hangs
            shift.put(*([f"hangs-{number}"] if hangs else []), *healthy)
            wanted |= set(healthy)
            await asyncio.sleep(pause / 10_000)
        await asyncio.sleep(1)
        await shift.end()
        return wanted - shift.done

    assert run_virtual(main) == set()


def test_when_a_watcher_is_cancelled_another_worker_watches() -> None:
    async def main() -> list[str | None]:
        scheduler = AsyncScheduler(LaneScheduler(LaneOptions()), VirtualClock())
        bed, slow, others = Bed(scheduler), Worker(), [Worker(), Worker()]
        bed.put("hangs", "a", "b")
        assert await scheduler.take_runs_async(slow)
        slow.run = slow.waiting.popleft()
        watcher, sleeper = (asyncio.create_task(scheduler.take_runs_async(worker)) for worker in others)
        await asyncio.sleep(0.001)
        assert scheduler._watched
        watcher.cancel()
        async with asyncio.timeout(1):
            assert await sleeper
        return [run.key for run in others[1].waiting]

    assert run_virtual(main) == ["a", "b"]
