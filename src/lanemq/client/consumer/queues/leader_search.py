"""Follows the coordinator that leads: while the one that is known does not answer as the leader, looks for another one.

The leases of this member are in the coordinators' common state, so it keeps its queues at the next leader.
"""

import asyncio
from collections.abc import Awaitable, Callable

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.coordination import COORDINATOR
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.model.errors import GroupConflict, LaneError
from lanemq.net.address import Address

log = ClientLog(__name__)

SEARCH_SECONDS = 0.2
"""Between two looks. A name server answers some thousand of them in a second."""


class LeaderSearch:
    """The search of one member."""

    def __init__(
        self,
        calls: ConsumerCalls,
        leases: LeaseKeeper,
        join: Callable[[Address], Awaitable[None]],
        continue_there: Callable[[], None],
    ) -> None:
        """`join` sends a heartbeat to a new leader. `continue_there` is called once it answers."""
        self._calls = calls
        self._leases = leases
        self._join = join
        self._continue_there = continue_there

    async def run(self) -> None:
        """Searches whenever the coordinator is doubted, until cancelled."""
        coordination = self._calls.coordination
        while True:
            await coordination.doubted.wait()
            while coordination.doubted.is_set():
                await self._look()
                await asyncio.sleep(SEARCH_SECONDS)
            if coordination.changed:
                coordination.changed = False
                log.info("the coordinator at %s leads now", coordination.address)
                self._continue_there()

    async def _look(self) -> None:
        """Looks once, and asks the coordinator that is found for this member's leases."""
        coordination, known = self._calls.coordination, self._calls.coordination.address
        try:
            await self._calls.find_leader()
        except GroupConflict:
            raise
        except LaneError as error:
            log.debug("the name servers could not be asked for the coordinator: %s", error)
        if coordination.address is not None and coordination.address != known:
            await self._join(coordination.address)
        self._leases.renew_soon(COORDINATOR)
