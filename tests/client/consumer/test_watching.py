"""While turns wait behind others in a visit, one of the workers that sleep looks after them, whoever had to go."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.client.consumer.fakes import message, queue
from tests.client.virtual_time import ManualClock, VirtualClock, run_virtual

from lanemq.client.consumer.async_scheduler import AsyncScheduler
from lanemq.client.consumer.handler import Stop
from lanemq.client.consumer.in_progress import LATE_MS, MAX_MESSAGES, MessageRun, Worker
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.workers import run_worker_async
from lanemq.client.message import Message
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, LaneOptions, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import QueueOffset

SHARE = 16
WORKERS = 4


class Bed:
    """A board with one queue, to which messages of new keys are put."""

    share = SHARE

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.put_so_far = 0
        scheduler.add(queue(0), QueueOffset(0), NO_LEASE_NEEDED)

    def put(self, *keys: str) -> None:
        """As if handlers had been fast so far."""
        self.scheduler._in_progress.busy.share = self.share
        first = self.put_so_far
        self.put_so_far += len(keys)
        messages = [message(first + n, of=queue(0), key=key) for n, key in enumerate(keys)]
        self.scheduler.put(queue(0), messages, QueueOffset(self.put_so_far), QueueOffset(first))


# --- step by step, without threads


class Scripted(threading.Condition):
    """A sleep is a step of the test instead; whoever is woken is only counted."""

    def __init__(self, mutex: threading.Lock, asleep: Callable[[], None]) -> None:
        super().__init__(mutex)
        self.mutex = mutex
        self.asleep = asleep
        self.patience: list[float | None] = []
        self.woken = 0
        self.arrived: Callable[[], None] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        self.patience.append(timeout)
        self.mutex.release()
        try:
            self.asleep()
        finally:
            self.mutex.acquire()
        return True

    def notify(self, n: int = 1) -> None:
        self.woken += n
        self.arrived()


class Steps(Bed):
    """Somebody sleeps, always; the other workers are visits in the test's one."""

    def __init__(self, asleep: Callable[[], None] = lambda: None) -> None:
        self.clock = ManualClock()
        scheduler = Scheduler(LaneScheduler(LaneOptions()), Order.KEY, self.clock)
        self.condition = Scripted(scheduler._mutex, asleep)
        scheduler._changed = self.condition
        scheduler._sleeping = 1
        self.condition.arrived = lambda: setattr(scheduler, "_woken", 0)  # and sleeps again
        super().__init__(scheduler)

    def begun(self, *keys: str) -> Worker:
        """A worker that is at the first of these."""
        worker = Worker()
        self.put(*keys)
        assert self.scheduler.take_runs(worker)
        worker.run = worker.waiting.popleft()
        self.condition.woken = 0
        return worker


def test_who_looks_after_a_visit_and_finds_work_calls_another_to_look() -> None:
    """The visit is too young to be emptied, and the one turn there is takes the only one who would have done it."""
    woken: list[int] = []

    def asleep() -> None:
        steps.clock.at += LATE_MS - 2
        steps.put("hangs too")
        woken.append(steps.condition.woken)

    steps = Steps(asleep)
    slow, watcher = steps.begun("hangs", "a", "b"), Worker()
    assert steps.scheduler.take_runs(watcher)
    assert (len(slow.waiting), [run.key for run in watcher.waiting]) == (2, ["hangs too"])
    assert steps.condition.patience == [LATE_MS / 1000]
    assert steps.condition.woken > woken[0]


def test_who_goes_to_sleep_beside_a_visit_with_finished_turns_looks_again_soon() -> None:
    steps = Steps(lambda: steps.scheduler.close())
    slow = steps.begun("a", "hangs")
    assert slow.run is not None
    slow.ended.append(slow.run)
    slow.run = slow.waiting.popleft()
    assert not steps.scheduler.take_runs(Worker())
    assert steps.condition.patience == [LATE_MS / 1000]


def test_nobody_is_called_for_a_worker_that_has_only_its_own_turn() -> None:
    """Slow handlers, one turn a visit: a call for each would wake all workers for nothing."""
    steps = Steps()
    steps.begun("a")
    steps.put("b")
    before = steps.condition.woken
    assert steps.scheduler.take_runs(Worker())
    assert steps.condition.woken == before


def test_nobody_else_is_called_to_look_while_one_is_on_its_way() -> None:
    """It may wait for the interpreter for milliseconds; calling all others meanwhile would make it wait longer."""
    steps = Steps()
    steps.scheduler._sleeping = 3
    steps.condition.arrived = lambda: None
    steps.put("a", "b")
    assert steps.condition.woken == 1
    assert steps.scheduler.take_runs(Worker())
    assert steps.condition.woken == 1


def test_who_leaves_quick_work_to_another_looks_again_when_that_one_would_be_late() -> None:
    """The other hangs with its only turn: nothing waits behind it, and the new message waits for nobody else."""

    def asleep() -> None:
        steps.clock.at += LATE_MS

    steps, watcher = Steps(asleep), Worker()
    steps.share = MAX_MESSAGES
    steps.begun("hangs")
    steps.put("b")
    assert steps.scheduler.take_runs(watcher)
    assert steps.condition.patience == [LATE_MS / 1000]
    assert [run.key for run in watcher.waiting] == ["b"]


def test_lanes_that_a_question_frees_call_a_worker() -> None:
    """What a commit reports for a worker that hangs makes its lane's next messages anybody's."""
    steps = Steps()
    slow = steps.begun("a", "hangs")
    steps.put("a")
    assert slow.run is not None
    slow.ended.append(slow.run)
    slow.run = slow.waiting.popleft()
    steps.condition.woken = 0
    assert steps.scheduler.committable(queue(0)) == 1
    assert steps.condition.woken == 1
    assert steps.scheduler.committable(queue(0)) == 1
    assert steps.condition.woken == 1, "nothing new was freed"


def test_lanes_that_a_hand_over_frees_call_a_worker() -> None:
    """The visit holds turns of a queue that leaves, and finished ones of a queue that stays."""
    steps = Steps()
    slow = steps.begun("a", "hangs")
    steps.put("a")
    assert slow.run is not None
    slow.ended.append(slow.run)
    slow.run = slow.waiting.popleft()
    steps.scheduler.add(queue(1), QueueOffset(0), NO_LEASE_NEEDED)
    steps.condition.woken = 0
    steps.scheduler.drain(queue(1))
    assert steps.condition.woken == 1


# --- whole runs on virtual time


class Shift(Bed):
    """Workers that are tasks. A handler's time is in its key: `3-x` takes 0.3 ms, `hangs-x` an hour."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.async_scheduler = AsyncScheduler(LaneScheduler(LaneOptions()), Order.KEY, VirtualClock())
        self.done: set[str] = set()
        self.tasks = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        super().__init__(self.async_scheduler)

    async def _work(self) -> None:
        worker = Worker()
        while await self.async_scheduler.take_runs_async(worker):
            await run_worker_async(worker, self._attempt, 1, VirtualClock())

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
"""How long each handler takes, whether one that hangs comes before them, and the pause behind; tenths of a ms."""
bursts = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=8), st.booleans(), st.integers(0, 50)), max_size=8)


@pytest.mark.parametrize("share", [SHARE, MAX_MESSAGES])
@settings(max_examples=200, deadline=None)
@example(bursts=[([2] * 8, False, 10), ([2] * 8, False, 10), ([0] * 5, True, 20), ([], True, 0)])
@given(bursts=bursts)
def test_whatever_hangs_all_other_keys_are_run_while_one_worker_is_free(share: int, bursts: list[Burst]) -> None:
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


def test_a_cancelled_worker_leaves_the_visits_it_looked_after_to_another() -> None:
    async def main() -> list[str | None]:
        scheduler = AsyncScheduler(LaneScheduler(LaneOptions()), Order.KEY, VirtualClock())
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
