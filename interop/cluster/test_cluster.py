"""Kills and freezes under load on a real cluster: `make interop-cluster ROUNDS=20`.

A round stops one process for a while, waits until everything continues, and starts it again. At the end nothing
acknowledged is lost, no key is in two queues or out of order, and no two members ran a key at the same time.
"""

import os
import time
from collections.abc import Iterator
from itertools import chain, pairwise, takewhile
from pathlib import Path
from random import Random
from statistics import median

import pytest

from interop.cluster.nodes import ClusterPlan, Node
from interop.cluster.run import FORGETS_NS, Run, now, running
from interop.maven import UnavailableError, server_classpath
from interop.ports import eventually

ROUNDS = int(os.environ.get("LANEMQ_CLUSTER_ROUNDS", "3"))
OUTAGE = 5.0
"""Seconds for which a process of a plain cluster is away."""
SWITCH_SECONDS = 120.0
GOES_ON_SECONDS = 2.0
"""How much longer than the cluster's own switch the keys of a killed master may wait, in the middle of all rounds."""
FROZEN, MEMBER_FROZEN = 12.0, 40.0
"""Seconds. A member that is frozen for more than 30 s no longer trusts its locks."""
pytestmark = pytest.mark.timeout(600 + 240 * ROUNDS)
"""Seconds. A round may wait for a switch, for its keys and for the cluster to be complete again."""
FAULTS = [
    (what, freeze) for freeze in (False, True) for what in ("master", "replica", "name server", "controller", "member")
]


@pytest.fixture(autouse=True, scope="module")
def _available() -> None:
    try:
        server_classpath("5")
    except UnavailableError as reason:
        pytest.skip(str(reason))


def start(run: Run) -> None:
    """An ordered topic, two members and a producer that are all at work."""
    assert "ordered by key" in run.create_topic("--ordered")
    for _ in range(2):
        run.consumer(drop_repeats=True)
    run.producer()
    run.wait_for("acked", 500)
    run.wait_for("end", 200)


def acked(run: Run, broker: str, since: float, until: float) -> int:
    """Messages of the broker's keys that were acknowledged in this time."""
    newest = (takewhile(lambda note: note["t"] >= since, reversed(each.seen())) for each in run.producers)
    return sum(
        note["e"] == "acked" and note["t"] < until and note["queue"].startswith(broker)
        for note in chain.from_iterable(newest)
    )


def goes_on(run: Run, broker: str, since: float) -> None:
    eventually(lambda: acked(run, broker, since, now()) > 20, 60, f"keys of {broker} continue")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Run]:
    with running(ClusterPlan(), tmp_path) as run:
        start(run)
        yield run


def test_keys_of_a_killed_master_without_a_replica_wait_and_others_go_on(plain: Run) -> None:
    random, shares = Random(1), []
    for number in range(ROUNDS):
        broker = random.choice(plain.cluster.plan.brokers)
        other = next(each for each in plain.cluster.plan.brokers if each != broker)
        begin = now()
        time.sleep(OUTAGE)
        (node,) = plain.cluster.brokers[broker]
        killed = now()
        node.kill()
        time.sleep(OUTAGE)
        before, during = acked(plain, other, begin, killed), acked(plain, other, killed, killed + OUTAGE)
        shares.append(during / max(1, before))
        back = now()
        node.start()
        plain.cluster.wait_until_registered()
        goes_on(plain, broker, back)
        print(f"round {number + 1}/{ROUNDS}: {broker} killed, others {shares[-1]:.0%} of their rate", flush=True)
    plain.finish_clean(forgets_ns=FORGETS_NS)
    print(f"{ROUNDS} kills: others kept {median(shares):.0%} of their rate (median), {min(shares):.0%} at least")
    assert median(shares) >= 0.9


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Run]:
    plan = ClusterPlan(name_servers=2, replicas=2, controller=True)
    with running(plan, tmp_path) as run:
        start(run)
        yield run


def test_nothing_is_lost_or_reordered_while_masters_of_replicated_pairs_are_killed(replicated: Run) -> None:
    """Controller mode: a replica that is in sync becomes the master."""
    random, run = Random(2), replicated
    switches, pauses = [], []
    for number in range(ROUNDS):
        broker = random.choice(run.cluster.plan.brokers)
        switch, pause = kill_master(run, broker, freeze=False)
        switches.append(switch)
        pauses.append(pause)
        print(
            f"round {number + 1}/{ROUNDS}: master of {broker} killed, a new one after {switch:.1f} s, "
            f"keys continue {pause:+.1f} s after that",
            flush=True,
        )
    run.finish_clean(forgets_ns=FORGETS_NS)
    print(
        f"{ROUNDS} kills: a new master after {median(switches):.1f} s (median), {max(switches):.1f} s at most; "
        f"its keys continue {median(pauses):+.1f} s after that (median), {max(pauses):+.1f} s at most"
    )
    assert median(pauses) < GOES_ON_SECONDS


def kill_master(run: Run, broker: str, *, freeze: bool) -> tuple[float, float]:
    """Kills or freezes a master until another one is at work, and brings it back as a replica.

    Returns how long the cluster took to have a new master, and how much longer the broker's keys waited.
    """
    settle(run)  # a starved broker may have been replaced in the meantime
    master = run.cluster.master(broker)
    assert master is not None
    begin = now()
    master.freeze() if freeze else master.kill()
    eventually(lambda: run.cluster.master(broker) not in (master, None), SWITCH_SECONDS, "a new master", every=0.05)
    switched = now()
    goes_on(run, broker, switched)
    notes = (note for note in run.notes(run.producers) if note["e"] == "acked" and note["queue"].startswith(broker))
    pause = max(0.0, longest_pause(sorted(note["t"] for note in notes if note["t"] > begin - 5)) - (switched - begin))
    master.thaw() if freeze else master.start()
    settle(run)
    return switched - begin, pause


def longest_pause(times: list[float]) -> float:
    return max((after - before for before, after in pairwise(times)), default=0.0)


def settle(run: Run) -> None:
    """Waits until the cluster is complete again: with a replica out of sync, the next kill would stop its keys."""
    run.cluster.wait_until_registered()
    run.cluster.wait_until_in_sync()


def test_nothing_is_lost_or_reordered_whatever_process_fails(replicated: Run) -> None:
    """Masters, replicas, name servers, the controller and members, in turn; each is killed and each is frozen."""
    random, run = Random(3), replicated
    for number in range(max(ROUNDS, len(FAULTS))):
        what, freeze = FAULTS[number % len(FAULTS)]
        broker = random.choice(run.cluster.plan.brokers)
        begin = now()
        if what == "master":
            kill_master(run, broker, freeze=freeze)
        elif what == "member":
            stop_member(run, freeze=freeze)
        else:
            node = stop_node(run, what, broker, freeze=freeze)
            for each in run.cluster.plan.brokers:
                goes_on(run, each, begin)
            time.sleep(FROZEN if freeze else 0)
            node.thaw() if freeze else node.start()
            settle(run)
        for each in run.cluster.plan.brokers:
            goes_on(run, each, now())
        print(f"round {number + 1}: {what} {'frozen' if freeze else 'killed'}, {now() - begin:.0f} s", flush=True)
    run.finish_clean(forgets_ns=FORGETS_NS)


def stop_node(run: Run, what: str, broker: str, *, freeze: bool) -> Node:
    if what == "replica":
        (node,) = run.cluster.replicas(broker)
    elif what == "controller":
        assert run.cluster.controller is not None
        node = run.cluster.controller
    else:
        node = run.cluster.name_servers[0]  # the one that clients ask first
    node.freeze() if freeze else node.kill()
    return node


def stop_member(run: Run, *, freeze: bool) -> None:
    """A killed member is replaced; a frozen one comes back after its queues could have gone to the other one."""
    member = run.consumers[-1]
    if freeze:
        member.freeze()
        time.sleep(MEMBER_FROZEN)
        member.thaw()
    else:
        member.kill()
        run.consumer(drop_repeats=True)
    behind = now()
    eventually(lambda: run.count(run.consumers, "end", behind) > 100, 150, "members continue")
