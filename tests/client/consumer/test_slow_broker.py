"""A broker that always takes long to answer: turns go on, within a longer keep-alive timeout."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.client.consumer.fakes import FakeBroker, FakeCalls, queue
from tests.client.consumer.test_leases import Member
from tests.client.virtual_time import run_virtual

from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.model.units import Millis


class FarAway(FakeCalls):
    """Half of the time is spent on the way there, half on the way back."""

    way = 0.0

    async def lock(self, *args: Any, **named: Any) -> Any:
        async with self._journey():
            return await super().lock(*args, **named)

    async def keep_alive(self, *args: Any, **named: Any) -> Any:
        async with self._journey():
            return await super().keep_alive(*args, **named)

    @contextlib.asynccontextmanager
    async def _journey(self) -> AsyncIterator[None]:
        await asyncio.sleep(self.way)
        yield
        await asyncio.sleep(self.way)


def far_away(broker: FakeBroker) -> tuple[Member, FarAway]:
    member, calls = Member(broker), FarAway(broker, "me")
    member.keeper._calls = calls  # type: ignore[assignment]
    return member, calls


@pytest.mark.parametrize("answer_ms", [100, 390, 500, 850, 1_400])
def test_a_broker_that_is_always_slow_makes_turns_pause_only_until_it_knows_a_longer_timeout(answer_ms: int) -> None:
    async def main() -> tuple[int, list[Any]]:
        broker = FakeBroker([queue(0)])
        member, far = far_away(broker)
        far.way = answer_ms / 2000
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        await asyncio.sleep(8)
        usable = 0
        for _ in range(1_000):
            await asyncio.sleep(0.01)
            usable += member.usable(queue(0))
        renewing.cancel()
        return usable, member.lost

    assert run_virtual(main) == (1_000, [])


def test_one_slow_answer_changes_no_timeout_and_a_longer_one_is_waited_for_at_the_broker() -> None:
    async def main() -> tuple[list[Any], Millis]:
        broker = FakeBroker([queue(0)])
        member, far = far_away(broker)
        await member.take(queue(0))
        renewing = asyncio.create_task(member.keeper.run())
        timeouts = []
        for way in (0.4, 0.0, 0.4, 0.4, 0.0):
            far.way = way
            await asyncio.sleep(0.9)
            (assigned,) = member.assignment
            assert assigned.lease is not None
            timeouts.append(assigned.usable_until - assigned.lease.asked_at)
        renewing.cancel()
        now = broker.clock.now()
        broker.locks.disconnected("me", grace=Millis(0), now=now)
        while not broker.locks.acquire("g", [queue(0)], "other", lease=Millis(5_000), now=now).granted:
            now = Millis(now + 50)
        return timeouts, Millis(now - broker.clock.now())

    timeouts, waited = run_virtual(main)
    assert timeouts[0] == LANE_TIMES.keep_alive_timeout_ms
    assert timeouts[-1] == 3 * 800
    assert waited > 3 * 800 - 300
