"""Faults that the simulation has found, each as the smallest test that shows it."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.client.producer.test_engine import Rig
from tests.sim.stage import ADDRESS, Heard, Stage

from lanemq.client.consumer.turns.async_scheduler import AsyncScheduler
from lanemq.clock import SystemClock
from lanemq.core.consuming.runs import LaneOptions, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.history import History
from lanemq.model.errors import BrokerReadOnly
from lanemq.net.address import Address
from lanemq.net.connection import open_connection
from lanemq.testing.sim.plan import plan_of
from lanemq.testing.sim.run import run_plan
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command


async def cancelled_after(steps: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Whether a cancellation so many steps of the loop after the call was obeyed, or came too late to be taken."""
    task = asyncio.get_running_loop().create_task(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    taken = task.cancel()
    await asyncio.wait([task])
    return task.cancelled() or not taken


@pytest.mark.parametrize("steps", range(8))
def test_a_cancellation_that_comes_with_the_connection_is_not_forgotten(steps: int) -> None:
    """A consumer that was stopped in that moment never ended: its rebalancing went on for ever."""
    stage = Stage()

    async def connects_at_once(*_: object) -> tuple[None, Heard]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return None, Heard()

    stage.loop.connect = connects_at_once

    async def scene() -> None:
        assert await stage.near.run(cancelled_after(steps, open_connection(Address(*ADDRESS))))

    stage.run(scene)


def test_a_cancellation_that_comes_with_a_turn_is_not_forgotten() -> None:
    """`asyncio.timeout` around `poll` would wait for ever."""

    async def main() -> None:
        scheduler = AsyncScheduler(LaneScheduler(LaneOptions()), Order.KEY, SystemClock())
        task = asyncio.create_task(scheduler.take_run_async(10))
        await asyncio.sleep(0)
        scheduler.close()
        assert task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("seed", [8, 22])
def test_a_group_reports_again_what_a_crash_of_the_broker_took(seed: int) -> None:
    """A queue in which nothing more happened stayed behind its end for good."""
    plan = replace(plan_of(seed), faults=("broker loses power",), durable=True, calm_ms=700)
    result = run_plan(plan)
    assert result.passed, result.problems
    assert result.seen["power cut that lost commits"]


def test_a_send_whose_repeat_meets_a_failing_disk_may_be_stored(tmp_path: Path) -> None:
    """Its answer was lost and its repeat refused: it was stored, and written down as certainly not stored."""
    history = History(tmp_path / "p.jsonl", "p", lambda: 0, "producer")
    rig = Rig(history=history)  # type: ignore[arg-type]
    rig.offer()
    rig.connect()
    rig.broker_takes(rig.wire[0])
    rig.lose()
    rig.tick(5_000)
    rig.connect()
    rig.reply(rig.wire.pop(), Command(ResponseCode.SERVICE_NOT_AVAILABLE, 0, 1))
    history.close()
    events = [json.loads(line)["e"] for line in (tmp_path / "p.jsonl").read_bytes().splitlines()]
    assert events == ["begin", "send", "send_unknown"]
    assert isinstance(rig.results.errors[0], BrokerReadOnly)
