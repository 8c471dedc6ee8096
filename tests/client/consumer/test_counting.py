"""The times of turns: each is counted once and in its range, whatever ends it."""

import asyncio
from typing import Any

import pytest
from tests.client.consumer.fakes import message
from tests.client.consumer.worker_fixture import run_of
from tests.client.virtual_time import ManualClock

from lanemq.client.consumer.turns.counting import TURN_LIMITS, ConsumerCounts, TurnTimes
from lanemq.client.consumer.turns.handler import Stop
from lanemq.client.consumer.turns.workers import run_worker, run_worker_async
from lanemq.core.consuming.busy_workers import Worker
from lanemq.core.consuming.runs import FAILED

SPENT_MS = (0, 3, 40, 2_000, 400_000)
"""How long the turns of these tests take, by offset."""


def counted(times: TurnTimes) -> dict[float, int]:
    """The number of turns by the limit of their range."""
    return {limit: n for limit, n in zip((*TURN_LIMITS, float("inf")), times.counts, strict=True) if n}


def waiting(worker: Worker) -> None:
    """Two runs: turns 0 to 2 and 3 to 4."""
    worker.waiting.extend([run_of(*map(message, offsets), until=10**9) for offsets in ((0, 1, 2), (3, 4))])


@pytest.mark.parametrize("on_loop", [False, True])
def test_each_turn_is_counted_in_its_range(on_loop: bool) -> None:
    clock, worker, times = ManualClock(), Worker(), TurnTimes()
    waiting(worker)

    def handler(batch: Any, _: Any) -> Stop | None:
        clock.at += SPENT_MS[batch[0].queue_offset]
        return Stop(FAILED) if batch[0].queue_offset == 4 else None

    async def async_handler(batch: Any, run: Any) -> Stop | None:
        return handler(batch, run)

    if on_loop:
        ran = asyncio.run(run_worker_async(worker, async_handler, 1, clock, times))
    else:
        ran = run_worker(worker, handler, 1, clock, times)
    assert (ran.runs, ran.messages) == (1, 3)
    assert counted(times) == {0.0001: 1, 0.005: 1, 0.05: 1, 2.5: 1, float("inf"): 1}, "the one that failed as well"
    assert times.sum_ns == sum(SPENT_MS) * 1_000_000


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_turn_that_does_not_take_place_is_not_counted_and_one_that_breaks_is(on_loop: bool) -> None:
    clock, worker, times = ManualClock(), Worker(), TurnTimes()
    worker.waiting.append(run_of(message(0), message(1), until=5))

    def handler(batch: Any, _: Any) -> None:
        clock.at += 10
        if batch[0].queue_offset == 7:
            raise KeyboardInterrupt

    async def async_handler(batch: Any, run: Any) -> None:
        handler(batch, run)

    def run() -> None:
        if on_loop:
            asyncio.run(run_worker_async(worker, async_handler, 1, clock, times))
        else:
            run_worker(worker, handler, 1, clock, times)

    run()  # the lease ends during the first turn
    assert counted(times) == {0.01: 1}
    worker.waiting.append(run_of(message(7), until=10**9))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert counted(times) == {0.01: 2}


def test_the_times_of_all_workers_of_a_topic_are_added() -> None:
    counts = ConsumerCounts()
    for topic, spent in (("a", 1), ("a", 2), ("b", 3)):
        counts.new(topic).times.add(spent * 10**9)
    found = counts.turn_times()
    assert {topic: (times.count, times.sum) for topic, times in found.items()} == {"a": (2, 3.0), "b": (1, 3.0)}
    assert found["a"].quantile(0.5) == 1.0
