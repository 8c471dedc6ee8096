"""Rounds of chaos beside a real cluster: whatever process fails, every promise holds, with nothing forgiven.

    make interop-coordinator ROUNDS=100

A round stops one process for a while under load: a master, a replica, a name server, the controller, a member or the
coordinator. Members run with their default settings.
"""

import os
import time
from pathlib import Path
from random import Random

import pytest

from interop.cluster.nodes import ClusterPlan, Node
from interop.cluster.run import Client, Run, now
from interop.cluster.test_cluster import goes_on, kill_master, settle, stop_node
from interop.coordinator.node import CoordinatorNode, coordinated
from interop.coordinator.test_losses import all_work
from interop.maven import UnavailableError, server_classpath

ROUNDS = int(os.environ.get("LANEMQ_CHAOS_ROUNDS", "12"))
SEED = int(os.environ.get("LANEMQ_CHAOS_SEED", "1"))
AWAY_SECONDS = (1.0, 6.0, 12.0)
"""Shorter than a lease, longer, and longer than everything that waits for an answer."""
PLAN = ClusterPlan(name_servers=2, replicas=2, controller=True)
FAULTS = [
    (what, freeze)
    for what in ("coordinator", "member", "master", "replica", "name server", "controller")
    for freeze in (False, True)
]
pytestmark = pytest.mark.timeout(900 + 120 * ROUNDS)


@pytest.fixture(autouse=True, scope="module")
def _available() -> None:
    try:
        server_classpath("5")
    except UnavailableError as reason:
        pytest.skip(str(reason))


def stop_for_a_while(process: Client | Node, seconds: float, *, freeze: bool) -> None:
    process.freeze() if freeze else process.kill()
    time.sleep(seconds)  # the fault itself
    if freeze:
        process.thaw()
    elif isinstance(process, Node):
        process.start()


class Chaos:
    def __init__(self, run: Run, coordinator: CoordinatorNode) -> None:
        self.run = run
        self.coordinator = coordinator
        self.random = Random(SEED)
        self.members = [run.consumer() for _ in range(3)]

    def round(self, what: str, *, freeze: bool) -> None:
        """One fault and its repair; then all members work again, and messages of all brokers are stored."""
        run, broker = self.run, self.random.choice(self.run.cluster.plan.brokers)
        seconds = self.random.choice(AWAY_SECONDS)
        if what == "master":
            kill_master(run, broker, freeze=freeze)
        elif what == "member":
            self._member(seconds, freeze=freeze)
        elif what == "coordinator":
            stop_for_a_while(self.coordinator, seconds, freeze=freeze)
        else:
            node = stop_node(run, what, broker, freeze=freeze)
            time.sleep(seconds)  # the fault itself
            node.thaw() if freeze else node.start()
        settle(run)
        for each in run.cluster.plan.brokers:
            goes_on(run, each, now())
        all_work(self.members, now())

    def _member(self, seconds: float, *, freeze: bool) -> None:
        member = self.random.choice(self.members)
        stop_for_a_while(member, seconds, freeze=freeze)
        if not freeze:
            self.members[self.members.index(member)] = self.run.consumer()


def test_whatever_process_fails_every_promise_holds(tmp_path: Path) -> None:
    with coordinated(PLAN, tmp_path) as (run, coordinator):
        chaos = Chaos(run, coordinator)
        run.producer()
        run.wait_for("end", 500)
        faults: list[tuple[str, bool]] = []
        for number in range(ROUNDS):
            faults = faults or chaos.random.sample(FAULTS, len(FAULTS))
            (what, freeze), begin = faults.pop(), now()
            chaos.round(what, freeze=freeze)
            how = "frozen" if freeze else "killed"
            print(f"round {number + 1}/{ROUNDS}: {what} {how}, {now() - begin:.0f} s", flush=True)
        run.finish_clean()
