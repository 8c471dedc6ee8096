"""Two coordinators that share a PostgreSQL, with members and a producer as processes, beside a broker."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from interop.cluster.nodes import ClusterPlan
from interop.cluster.run import GROUP, QUEUES, TOPIC, Run, running
from interop.coordinator.node import CoordinatorNode, coordinate
from interop.coordinator.postgres_node import PostgresNode, running_postgres, state_address
from interop.coordinator.relay import Relay
from interop.ports import HOST, eventually
from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.calls import AdminCalls
from lanemq.client.coordination import EVERY_GROUP, Leader, coordinators
from lanemq.model.errors import LaneError
from lanemq.net.address import Address
from lanemq.testing.stock_broker import stock_broker

MEMBERS_HOST = "127.0.0.2"
"""Where coordinators say that they are: a relay there passes members on."""


class Pair:
    """Two coordinators of one cluster."""

    def __init__(self, run: Run, postgres: PostgresNode, folder: Path) -> None:
        self.run = run
        self.postgres = postgres
        self.to_state: dict[str, Relay] = {}
        self.to_members: dict[str, Relay] = {}
        self.nodes: dict[str, CoordinatorNode] = {}
        for name in ("one", "two"):
            self.to_state[name] = postgres.relay()
            node = CoordinatorNode(
                run.cluster.address, folder, run.history, "--advertise", MEMBERS_HOST,
                name=name, state=state_address(self.to_state[name]),
            )  # fmt: skip
            self.to_members[name] = Relay((MEMBERS_HOST, node.port), (HOST, node.port))
            self.nodes[name] = node

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        eventually(self.leader, 30, "a leader")

    def entry(self) -> Leader | None:
        """Who leads, as the name servers say."""
        calls = AdminCalls(self.run.cluster.address, timeout=2)
        try:
            return calls.run(coordinators(calls.routes.servers)).get(EVERY_GROUP)
        except LaneError:
            return None
        finally:
            calls.close()

    def leader(self) -> str | None:
        """The name of the coordinator that leads, as the name servers say."""
        entry = self.entry()
        return None if entry is None else next(n for n, node in self.nodes.items() if node.port == entry.address.port)

    def term(self) -> int:
        entry = self.entry()
        return 0 if entry is None else entry.term

    def leads_after(self, term: int, within: float = 40.0) -> str:
        """Wait for a leader with a higher term."""
        eventually(lambda: self.term() > term, within, "another term", every=0.05)
        name = self.leader()
        assert name is not None
        return name

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()
        for relay in self.to_members.values():
            relay.close()


class FakedCluster:
    """A broker of this process that looks like Apache's, as `Run` needs it."""

    def __init__(self, address: str) -> None:
        self.address = address


@contextlib.contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """Two coordinators beside a broker that looks like Apache's, and a group that they coordinate."""
    with stock_broker(BrokerOptions(folder / "broker", listen=Address(HOST, 0))) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, QUEUES, ordered=True)
        run = Run(FakedCluster(broker.address), folder)  # type: ignore[arg-type]
        try:
            with started(run, folder) as both:
                yield both
        finally:
            run.close()


@contextlib.contextmanager
def pair_beside(plan: ClusterPlan, folder: Path) -> Iterator[Pair]:
    """The same beside a real Apache cluster."""
    with running(plan, folder) as run:
        run.create_topic("--ordered")
        with started(run, folder) as both:
            yield both


@contextlib.contextmanager
def started(run: Run, folder: Path) -> Iterator[Pair]:
    """Two coordinators of a cluster, which have the group."""
    with running_postgres() as postgres:
        both = Pair(run, postgres, folder)
        try:
            both.start()
            coordinate(run.cluster.address, GROUP)
            yield both
        finally:
            both.close()
