"""Virtual time, and frozen and killed processes."""

import asyncio

import pytest
from tests.sim.two_processes import TwoProcesses

from lanemq.testing.sim.host import MachineClock


def test_an_hour_passes_at_once() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        await asyncio.sleep(3600)
        assert sim.loop.time() == 3600

    sim.run(main)


def test_timers_for_the_same_time_run_in_the_order_in_which_they_were_set() -> None:
    sim = TwoProcesses()
    ran: list[int] = []

    async def main() -> None:
        for number in range(50):
            sim.loop.call_at(1.0, ran.append, number)
        await asyncio.sleep(2)

    sim.run(main)
    assert ran == list(range(50))


def test_a_frozen_process_runs_nothing_and_then_continues() -> None:
    sim = TwoProcesses()
    near: list[float] = []
    far: list[float] = []

    async def ticking(into: list[float]) -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            into.append(sim.loop.time())

    async def main() -> None:
        sim.near.run(ticking(near))
        sim.far.run(ticking(far))
        await asyncio.sleep(1.5)
        sim.near.frozen = True
        await asyncio.sleep(10)
        sim.loop.thaw(sim.near)
        await asyncio.sleep(10)

    sim.run(main)
    assert far == [1, 2, 3, 4]
    assert near == [1, 11.5, 12.5, 13.5]


def test_nothing_that_a_killed_process_writes_is_sent() -> None:
    """Its tasks are cancelled, and what they write then is not sent."""
    sim = TwoProcesses()

    async def main() -> None:
        end, _ = await sim.connect()
        await asyncio.sleep(0.1)

        async def writes_at_its_end() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                end.write(b"goodbye")

        task = sim.near.run(writes_at_its_end())
        await asyncio.sleep(0)
        sim.network.host_ended(sim.near)
        await asyncio.wait([task])
        await asyncio.sleep(1)
        assert sim.accepted[0].data == b""
        assert sim.near.tasks == {}

    sim.run(main)


def test_an_unhandled_error_is_reported() -> None:
    sim = TwoProcesses()

    def broken() -> None:
        raise ValueError("not caught")

    async def main() -> None:
        sim.near.call(broken)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError):
        sim.run(main)
    assert "not caught" in str(sim.errors[0]["exception"])


def test_waiting_without_a_timer_is_an_error() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        await asyncio.Event().wait()

    task = main()
    with pytest.raises(RuntimeError, match="no timer is set"):
        sim.loop.run_until_complete(task)
    for left in asyncio.all_tasks(sim.loop):
        left.cancel()
    sim.loop.run_until_complete(asyncio.sleep(0))
    sim.loop.close()


def test_a_clock_that_runs_fast_is_translated_back() -> None:
    sim = TwoProcesses()

    async def main() -> None:
        clock = MachineClock(sim.loop, 1.02, 1000)
        await asyncio.sleep(100)
        assert clock.now() == 1000 + 102_000
        assert clock.true_ns(clock.now() * 1_000_000) == pytest.approx(100e9)
        clock.jumped_ms -= 3_600_000
        assert clock.now() == 103_000

    sim.run(main)
