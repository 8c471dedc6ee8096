"""How often a member reports an offset that has not moved."""

import asyncio

import pytest
from tests.client.consumer.fakes import FakeBroker, member, queue, record, until
from tests.client.consumer.test_finished_ranges import noting
from tests.client.virtual_time import run_virtual

Q = queue(0)
COUNT = 5


@pytest.mark.parametrize(("lane", "found"), [(False, COUNT), (True, 2)], ids=["without leases", "with leases"])
def test_an_offset_that_a_former_owner_set_back_does_not_stay_behind(lane: bool, found: int) -> None:
    """Without leases nobody can refuse its late commit; with them it is refused, and repeating would only cost."""

    async def main() -> int:
        broker, seen = FakeBroker([Q], lane=lane), list[int]()
        broker.offsets[Q] = 0
        broker.store(Q, *(record(number) for number in range(COUNT)))
        async with member(broker, "a", noting(seen)) as engine:
            await until(lambda: broker.offsets[Q] == COUNT)
            broker.offsets[Q] = 2
            await asyncio.sleep(12)
            engine.stop_now()
            return broker.offsets[Q]

    assert run_virtual(main) == found
