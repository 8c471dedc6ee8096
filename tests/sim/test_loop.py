"""Virtual time, and processes that get none of it."""

import asyncio

import pytest
from tests.sim.stage import Stage

from lanemq.testing.sim.host import MachineClock


def test_an_hour_passes_at_once() -> None:
    stage = Stage()

    async def scene() -> None:
        await asyncio.sleep(3600)
        assert stage.loop.time() == 3600

    stage.run(scene)


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set() -> None:
    stage = Stage()
    ran: list[int] = []

    async def scene() -> None:
        for number in range(50):
            stage.loop.call_at(1.0, ran.append, number)
        await asyncio.sleep(2)

    stage.run(scene)
    assert ran == list(range(50))


def test_a_frozen_process_gets_no_time_and_then_goes_on() -> None:
    stage = Stage()
    near: list[float] = []
    far: list[float] = []

    async def ticking(into: list[float]) -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            into.append(stage.loop.time())

    async def scene() -> None:
        stage.near.run(ticking(near))
        stage.far.run(ticking(far))
        await asyncio.sleep(1.5)
        stage.near.frozen = True
        await asyncio.sleep(10)
        stage.loop.thaw(stage.near)
        await asyncio.sleep(10)

    stage.run(scene)
    assert far == [1, 2, 3, 4]
    assert near == [1, 11.5, 12.5, 13.5]


def test_a_process_that_has_ended_reaches_nobody() -> None:
    """Its tasks unwind, and what they write on the way is not sent: no goodbye."""
    stage = Stage()

    async def scene() -> None:
        end, _ = await stage.connect()
        await asyncio.sleep(0.1)

        async def polite() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                end.write(b"goodbye")

        task = stage.near.run(polite())
        await asyncio.sleep(0)
        stage.network.host_ended(stage.near)
        await asyncio.wait([task])
        await asyncio.sleep(1)
        assert stage.accepted[0].data == b""
        assert stage.near.tasks == {}

    stage.run(scene)


def test_what_nobody_took_care_of_is_told() -> None:
    stage = Stage()

    def broken() -> None:
        raise ValueError("nobody catches this")

    async def scene() -> None:
        stage.near.call(broken)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError):
        stage.run(scene)
    assert "nobody catches this" in str(stage.errors[0]["exception"])


def test_everybody_waiting_for_ever_is_an_error() -> None:
    stage = Stage()

    async def scene() -> None:
        await asyncio.Event().wait()

    task = scene()
    with pytest.raises(RuntimeError, match="no timer is set"):
        stage.loop.run_until_complete(task)
    for left in asyncio.all_tasks(stage.loop):
        left.cancel()
    stage.loop.run_until_complete(asyncio.sleep(0))
    stage.loop.close()


def test_a_clock_that_runs_fast_is_translated_back() -> None:
    stage = Stage()

    async def scene() -> None:
        clock = MachineClock(stage.loop, 1.02, 1000)
        await asyncio.sleep(100)
        assert clock.now() == 1000 + 102_000
        assert clock.true_ns(clock.now() * 1_000_000) == pytest.approx(100e9)
        clock.jumped_ms -= 3_600_000
        assert clock.now() == 103_000

    stage.run(scene)
