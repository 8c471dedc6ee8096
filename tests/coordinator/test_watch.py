"""The watch of the cluster: one name server of several is frozen, and another client holds a lock for long."""

import asyncio
from typing import Any

import pytest
from tests.broker.raw_client import RawClient
from tests.coordinator.conftest import GROUP, TOPIC, Start, owned, until

from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.coordinator.cluster import ClusterLink
from lanemq.model.errors import RequestTimedOut
from lanemq.net.address import Address, parse_addresses
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import ClusterInfo


class OneFrozen:
    """A pool of connections; the first address does not answer."""

    def __init__(self, frozen: Address) -> None:
        self.frozen = frozen
        self.asked: list[Address] = []

    async def request(self, address: Address, command: Command, timeout: float) -> Command:
        self.asked.append(address)
        if address == self.frozen:
            raise RequestTimedOut("no answer")
        return Command(0, 0, body=ClusterInfo().encode())


def test_a_frozen_name_server_is_waited_for_once() -> None:
    """Each wait is 3 s, and a round asks for every topic."""
    servers = parse_addresses("one:9876;two:9876")
    pool: Any = OneFrozen(servers[0])
    link = ClusterLink(servers, pool)

    async def main() -> None:
        for _ in range(3):
            await link.info()
        pool.frozen = servers[1]
        await link.info()

    asyncio.run(main())
    one, two = servers
    assert pool.asked == [one, two, two, two, two, one]


def test_members_are_told_of_locks_that_came_and_not_of_those_that_another_client_keeps(
    cluster: EmbeddedBroker, start: Start, at_broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.coordinator.watch.ROUND_SECONDS", 0.02)
    assert at_broker.lock("stock", TOPIC, group=GROUP).lock_ok_mq_set  # queue 0
    parts = start().coordinator.running
    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
    with RawClient(str(parts.watch.leader.address)) as client:
        client.heartbeat("one", GROUP, {TOPIC: "*"}, laneExpiryMillis="5000")
        until(lambda: client.lane_lock("one", TOPIC, queues=(1,), group=GROUP).lane_leases)
        told: list[str] = []
        monkeypatch.setattr(parts.context.notices, "group_changed", told.extend)
        rounds = [0]
        lock = parts.watch._link.lock

        async def counted(*args: Any) -> frozenset[Any]:
            rounds[0] += 1
            return await lock(*args)

        monkeypatch.setattr(parts.watch._link, "lock", counted)
        until(lambda: rounds[0] > 5)
        assert not told
        at_broker.unlock("stock", TOPIC, group=GROUP)
        until(lambda: told == [GROUP])
        assert owned(client, "one")
