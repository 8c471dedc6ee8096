"""While turns wait behind others in a visit, one of the workers that sleep looks after them, whoever had to go."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.client.consumer_fakes import message, queue
from tests.client.virtual_time import ManualClock, VirtualClock, run_virtual

from lanemq.client.consumer.async_scheduler import LoopBoard
from lanemq.client.consumer.attempts import Stop
from lanemq.client.consumer.scheduler import LaneBoard
from lanemq.client.consumer.turn_desk import MessageTurn
from lanemq.client.consumer.turn_run import run_visit_async
from lanemq.client.consumer.visits import MOST_MESSAGES, PATIENCE_MS, Visit
from lanemq.client.message import Message
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.consuming.turns import NO_LEASE_NEEDED, LaneOptions, Order
from lanemq.model.units import QueueOffset

SHARE = 16
WORKERS = 4


class Bed:
    """A board with one queue, to which messages of new keys are put."""

    share = SHARE

    def __init__(self, board: LaneBoard) -> None:
        self.board = board
        self.put_so_far = 0
        board.add(queue(0), QueueOffset(0), NO_LEASE_NEEDED)

    def put(self, *keys: str) -> None:
        """As if handlers had been fast so far."""
        self.board._desk.visits.share = self.share
        first = self.put_so_far
        self.put_so_far += len(keys)
        messages = [message(first + n, of=queue(0), key=key) for n, key in enumerate(keys)]
        self.board.put(queue(0), messages, QueueOffset(self.put_so_far), QueueOffset(first))


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
    """Somebody sleeps, always; the other workers are visits in the test's hands."""

    def __init__(self, asleep: Callable[[], None] = lambda: None) -> None:
        self.clock = ManualClock()
        board = LaneBoard(LaneScheduler(LaneOptions()), Order.KEY, self.clock)
        self.condition = Scripted(board._mutex, asleep)
        board._changed = self.condition
        board._sleeping = 1
        self.condition.arrived = lambda: setattr(board, "_called", 0)  # and sleeps again
        super().__init__(board)

    def begun(self, *keys: str) -> Visit:
        """A worker that is at the first of these."""
        visit = Visit()
        self.put(*keys)
        assert self.board.visit(visit)
        visit.turn = visit.waiting.popleft()
        self.condition.woken = 0
        return visit


def test_who_looks_after_a_visit_and_finds_work_calls_another_to_look() -> None:
    """The visit is too young to be emptied, and the one turn there is takes the only one who would have done it."""
    woken: list[int] = []

    def asleep() -> None:
        steps.clock.at += PATIENCE_MS - 2
        steps.put("hangs too")
        woken.append(steps.condition.woken)

    steps = Steps(asleep)
    slow, watcher = steps.begun("hangs", "a", "b"), Visit()
    assert steps.board.visit(watcher)
    assert (len(slow.waiting), [turn.key for turn in watcher.waiting]) == (2, ["hangs too"])
    assert steps.condition.patience == [PATIENCE_MS / 1000]
    assert steps.condition.woken > woken[0]


def test_who_goes_to_sleep_beside_a_visit_with_finished_turns_looks_again_soon() -> None:
    steps = Steps(lambda: steps.board.close())
    slow = steps.begun("a", "hangs")
    assert slow.turn is not None
    slow.ended.append(slow.turn)
    slow.turn = slow.waiting.popleft()
    assert not steps.board.visit(Visit())
    assert steps.condition.patience == [PATIENCE_MS / 1000]


def test_nobody_is_called_for_a_worker_that_has_only_its_own_turn() -> None:
    """Slow handlers, one turn a visit: a call for each would wake all workers for nothing."""
    steps = Steps()
    steps.begun("a")
    steps.put("b")
    before = steps.condition.woken
    assert steps.board.visit(Visit())
    assert steps.condition.woken == before


def test_nobody_else_is_called_to_look_while_one_is_on_its_way() -> None:
    """It may wait for the interpreter for milliseconds; calling all others meanwhile would make it wait longer."""
    steps = Steps()
    steps.board._sleeping = 3
    steps.condition.arrived = lambda: None
    steps.put("a", "b")
    assert steps.condition.woken == 1
    assert steps.board.visit(Visit())
    assert steps.condition.woken == 1


def test_who_leaves_quick_work_to_another_looks_again_when_that_one_would_be_late() -> None:
    """The other hangs with its only turn: nothing waits behind it, and the new message waits for nobody else."""

    def asleep() -> None:
        steps.clock.at += PATIENCE_MS

    steps, watcher = Steps(asleep), Visit()
    steps.share = MOST_MESSAGES
    steps.begun("hangs")
    steps.put("b")
    assert steps.board.visit(watcher)
    assert steps.condition.patience == [PATIENCE_MS / 1000]
    assert [turn.key for turn in watcher.waiting] == ["b"]


def test_lanes_that_a_question_frees_call_a_worker() -> None:
    """What a commit reports for a worker that hangs makes its lane's next messages anybody's."""
    steps = Steps()
    slow = steps.begun("a", "hangs")
    steps.put("a")
    assert slow.turn is not None
    slow.ended.append(slow.turn)
    slow.turn = slow.waiting.popleft()
    steps.condition.woken = 0
    assert steps.board.committable(queue(0)) == 1
    assert steps.condition.woken == 1
    assert steps.board.committable(queue(0)) == 1
    assert steps.condition.woken == 1, "nothing new was freed"


def test_lanes_that_a_hand_over_frees_call_a_worker() -> None:
    """The visit holds turns of a queue that leaves, and finished ones of a queue that stays."""
    steps = Steps()
    slow = steps.begun("a", "hangs")
    steps.put("a")
    assert slow.turn is not None
    slow.ended.append(slow.turn)
    slow.turn = slow.waiting.popleft()
    steps.board.add(queue(1), QueueOffset(0), NO_LEASE_NEEDED)
    steps.condition.woken = 0
    steps.board.drain(queue(1))
    assert steps.condition.woken == 1


# --- whole runs on virtual time


class Shift(Bed):
    """Workers that are tasks. A handler's time is in its key: `3-x` takes 0.3 ms, `hangs-x` an hour."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.loop_board = LoopBoard(LaneScheduler(LaneOptions()), Order.KEY, VirtualClock())
        self.done: set[str] = set()
        self.tasks = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        super().__init__(self.loop_board)

    async def _work(self) -> None:
        visit = Visit()
        while await self.loop_board.visit_async(visit):
            await run_visit_async(visit, self._attempt, 1, VirtualClock())

    async def _attempt(self, messages: tuple[Message, ...], _: MessageTurn) -> Stop | None:
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


@pytest.mark.parametrize("share", [SHARE, MOST_MESSAGES])
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
        board = LoopBoard(LaneScheduler(LaneOptions()), Order.KEY, VirtualClock())
        bed, slow, others = Bed(board), Visit(), [Visit(), Visit()]
        bed.put("hangs", "a", "b")
        assert await board.visit_async(slow)
        slow.turn = slow.waiting.popleft()
        watcher, sleeper = (asyncio.create_task(board.visit_async(visit)) for visit in others)
        await asyncio.sleep(0.001)
        assert board._watched
        watcher.cancel()
        async with asyncio.timeout(1):
            assert await sleeper
        return [turn.key for turn in others[1].waiting]

    assert run_virtual(main) == ["a", "b"]
