"""Rounds of chaos around two coordinators that share a PostgreSQL: every promise holds, with nothing forgiven.

    make interop-coordinator ROUNDS=100

Brokers are LaneMQ's own, which look like Apache's, so no Java is needed. Members run with their default settings.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tests import postgres_server

from interop.cluster.nodes import ClusterPlan
from interop.cluster.run import now
from interop.cluster.test_cluster import kill_master, settle, stop_node
from interop.coordinator.leaders import Pair, pair, pair_beside
from interop.coordinator.test_losses import all_work
from interop.maven import UnavailableError, server_classpath

ROUNDS = int(os.environ.get("LANEMQ_CHAOS_ROUNDS", "8"))
TRIALS = int(os.environ.get("LANEMQ_LOSS_TRIALS", "3"))
SEED = int(os.environ.get("LANEMQ_CHAOS_SEED", "1"))
BACKUP_SECONDS = 2.0
TERM_SECONDS = 2.7
"""The age of a commit that a fail-over may undo. A silent database takes none, and the leader steps down after its term
of 2 s; offsets are written every 0.2 s."""
LOST_SECONDS = 30
"""The age of a commit that a store without the last commits may undo, in these rounds."""
pytestmark = [
    pytest.mark.timeout(600 + 60 * ROUNDS + 30 * TRIALS),
    pytest.mark.skipif(postgres_server.reason_to_skip() is not None, reason=str(postgres_server.reason_to_skip())),
]


class Faults:
    """What happens to the leader, to the other coordinator, and to their database."""

    def __init__(self, both: Pair, random: Random) -> None:
        self.both = both
        self.random = random
        self.members = [both.run.consumer() for _ in range(3)]

    def _leader(self) -> str:
        name = self.both.leader()
        assert name is not None, "no leader"
        return name

    def leader_killed(self) -> None:
        name, term = self._leader(), self.both.term()
        self.both.nodes[name].kill()
        self.both.leads_after(term)
        self.both.nodes[name].start()

    def leader_frozen(self) -> None:
        """Requests wait in its sockets; it wakes up when another one leads."""
        node, term = self.both.nodes[self._leader()], self.both.term()
        node.freeze()
        self.both.leads_after(term)
        time.sleep(self.random.uniform(0, 5))  # the fault itself
        node.thaw()

    def leader_frozen_shortly(self) -> None:
        node = self.both.nodes[self._leader()]
        node.freeze()
        time.sleep(self.random.uniform(1.5, 2.6))  # the fault itself: about a term
        node.thaw()

    def leader_stopped(self) -> None:
        name, term = self._leader(), self.both.term()
        self.both.nodes[name].stop()
        self.both.leads_after(term)
        self.both.nodes[name].start()

    def waiting_killed(self) -> None:
        name = next(each for each in self.both.nodes if each != self._leader())
        self.both.nodes[name].kill()
        self.both.nodes[name].start()

    def cut_from_state(self) -> None:
        name, term = self._leader(), self.both.term()
        self.both.to_state[name].cut()
        self.both.leads_after(term)
        time.sleep(self.random.uniform(0, 4))  # the fault itself
        self.both.to_state[name].mend()

    def cut_from_members(self) -> None:
        relay = self.both.to_members[self._leader()]
        relay.cut()
        time.sleep(self.random.uniform(1, 8))  # the fault itself
        relay.mend()

    def state_restarted(self) -> None:
        self.both.postgres.restart()

    def state_paused(self) -> None:
        self.both.postgres.pause(10)

    def member_killed(self) -> None:
        member = self.random.choice(self.members)
        member.kill()
        self.members[self.members.index(member)] = self.both.run.consumer()

    # beside a real cluster

    def master_killed(self) -> None:
        kill_master(self.both.run, self.random.choice(self.both.run.cluster.plan.brokers), freeze=False)
        settle(self.both.run)

    def name_server_frozen(self) -> None:
        """While another coordinator begins to lead."""
        node = stop_node(self.both.run, "name server", self.both.run.cluster.plan.brokers[0], freeze=True)
        self.leader_killed()
        node.thaw()

    # the store goes back

    def replaced_by_replica(self) -> None:
        """Without what was committed after the copy."""
        copy, term = self.both.postgres.copied(), self.both.term()
        time.sleep(BACKUP_SECONDS)  # the commits that are lost
        self.both.postgres.replace_by(copy, promote=True)
        self.both.leads_after(term)

    def restored_from_backup(self) -> None:
        """On the same timeline, while no leader lives that could notice it."""
        copy, term, name = self.both.postgres.copied(), self.both.term(), self._leader()
        self._new_owners()
        self.both.nodes[name].kill()
        self.both.postgres.replace_by(copy, promote=False)
        self.both.leads_after(term)
        self.both.nodes[name].start()

    def _new_owners(self) -> None:
        """Some queues get owners of whom the copy does not know."""
        member = self.random.choice(self.members)
        member.stop()
        self.members[self.members.index(member)] = self.both.run.consumer()
        time.sleep(BACKUP_SECONDS)  # the commits that are lost


FAULTS = (
    "leader_killed", "leader_frozen", "leader_frozen_shortly", "leader_stopped", "waiting_killed", "cut_from_state",
    "cut_from_members", "state_restarted", "state_paused", "member_killed",
)  # fmt: skip
LOSSES = ("replaced_by_replica", "restored_from_backup", "leader_killed", "leader_frozen")


def rounds(place: AbstractContextManager[Pair], kinds: tuple[str, ...], **options: object) -> None:
    with place as both:
        random = Random(SEED)
        faults = Faults(both, random)
        both.run.producer()
        both.run.wait_for("end", 500)
        left: list[str] = []
        for number in range(ROUNDS):
            left = left or random.sample(kinds, len(kinds))
            name, begin = left.pop(), now()
            getattr(faults, name)()
            all_work(faults.members, now())
            print(f"round {number + 1}/{ROUNDS}: {name}, {now() - begin:.0f} s, term {both.term()}", flush=True)
        both.run.finish_clean(**options)


def test_whatever_fails_every_promise_holds(tmp_path: Path) -> None:
    rounds(pair(tmp_path), FAULTS, forgets_ns=int(TERM_SECONDS * 10**9))


def test_a_state_that_goes_back_costs_repeats_and_nothing_else(tmp_path: Path) -> None:
    rounds(pair(tmp_path), LOSSES, forgets_ns=LOST_SECONDS * 10**9)


def test_beside_a_real_cluster_whatever_fails_every_promise_holds(tmp_path: Path) -> None:
    try:
        server_classpath("5")
    except UnavailableError as reason:
        pytest.skip(str(reason))
    plan = ClusterPlan(name_servers=2, replicas=2, controller=True)
    kinds = (
        "leader_killed",
        "leader_frozen",
        "leader_stopped",
        "master_killed",
        "name_server_frozen",
        "state_restarted",
    )
    rounds(pair_beside(plan, tmp_path), kinds, forgets_ns=int(TERM_SECONDS * 10**9))


# how long groups pause


def pauses(folder: Path, fault: Callable[[Pair, str], None], trials: int = TRIALS) -> list[float]:
    """For how long no turn ended, around each fault, in seconds."""
    found = []
    with pair(folder) as both:
        members = [both.run.consumer() for _ in range(2)]
        both.run.producer()
        both.run.wait_for("end", 300)
        for _ in range(trials):
            name, term, begin = both.leader(), both.term(), now()
            assert name is not None
            fault(both, name)
            both.leads_after(term)
            all_work(members, now())
            ends = sorted(note["t"] for note in both.run.notes(members) if note["e"] == "end")
            found.append(max(after - before for before, after in pairwise(ends) if after > begin))
            node = both.nodes[name]
            if node.frozen:
                node.thaw()
            if not node.running:
                node.start()
            time.sleep(3)  # both look at the row again, and members have settled
        both.run.finish_clean(forgets_ns=int(TERM_SECONDS * 10**9))
    print(f"pauses of {trials}: " + " ".join(f"{each:.2f}" for each in sorted(found)), flush=True)
    return sorted(found)


def test_a_killed_leader_pauses_groups_for_five_seconds_at_most(tmp_path: Path) -> None:
    assert pauses(tmp_path, lambda both, name: both.nodes[name].kill())[-1] <= 5


def test_a_frozen_leader_pauses_groups_for_ten_seconds_at_most(tmp_path: Path) -> None:
    assert pauses(tmp_path, lambda both, name: both.nodes[name].freeze())[-1] <= 10


def test_a_hand_over_pauses_groups_for_a_second_at_most(tmp_path: Path) -> None:
    def stop(both: Pair, name: str) -> None:
        os.kill(both.nodes[name].process_id, signal.SIGTERM)

    assert pauses(tmp_path, stop)[-1] <= 1
