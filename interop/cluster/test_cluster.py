"""Kills and freezes under load on a real cluster: `make interop-cluster ROUNDS=20`.

A round stops one process for a while, waits until everything goes on, and starts it again. At the end nothing
acknowledged is lost, no key is in two queues or out of order, and no two members ran a key at the same time.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from interop.cluster.nodes import ClusterPlan
from interop.cluster.run import Run, now, running
from interop.maven import UnavailableError, server_classpath
from interop.ports import eventually

ROUNDS = int(os.environ.get("LANEMQ_CLUSTER_ROUNDS", "3"))
OUTAGE = 5.0
"""Seconds for which a process of a plain cluster is away."""
SWITCH_SECONDS = 60.0
GOES_ON_SECONDS = 2.0
"""How much longer than the cluster's own switch a key of the killed master may wait; the machine is shared, so tests
allow for ten times as much and print what it was."""


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
    run.wait_for("acked", 1000)
    run.wait_for("end", 500)


def acked(run: Run, broker: str, since: float, until: float) -> int:
    notes = (note for note in run.notes(run.producers) if note["e"] == "acked")
    return sum(since <= note["t"] < until and note["queue"].startswith(broker) for note in notes)


def goes_on(run: Run, broker: str, since: float) -> None:
    eventually(lambda: acked(run, broker, since, now()) > 20, 60, f"keys of {broker} go on")


def finish(run: Run) -> None:
    verdict = run.finish()
    print(verdict)
    assert verdict.is_clean, {
        name: found[:5] for name, found in vars(verdict).items() if isinstance(found, list) and found
    }


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Run]:
    with running(ClusterPlan(), tmp_path) as run:
        start(run)
        yield run


def test_a_key_never_moves_while_masters_without_replicas_are_killed(plain: Run) -> None:
    """Keys of the dead master wait; the others keep their rate."""
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
    finish(plain)
    assert sorted(shares)[len(shares) // 2] >= 0.9


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[Run]:
    plan = ClusterPlan(name_servers=2, replicas=2, controller=True)
    with running(plan, tmp_path) as run:
        start(run)
        yield run


def test_nothing_is_lost_or_reordered_while_masters_of_replicated_pairs_fail(replicated: Run) -> None:
    """Controller mode: a replica that is in sync becomes the master."""
    random, run = Random(2), replicated
    for number in range(ROUNDS):
        what = random.choice(("kill master", "freeze master", "kill replica", "kill name server"))
        broker = random.choice(run.cluster.plan.brokers)
        master = run.cluster.master(broker)
        assert master is not None
        begin = now()
        if what == "kill name server":
            node = random.choice(run.cluster.name_servers)
            node.kill()
            goes_on(run, broker, begin)
        elif what == "kill replica":
            (node,) = run.cluster.replicas(broker)
            node.kill()
            goes_on(run, broker, begin)
        else:
            node = master
            node.freeze() if what == "freeze master" else node.kill()
            eventually(lambda: run.cluster.master(broker) not in (master, None), SWITCH_SECONDS, "a new master")  # noqa: B023
            switched = now()
            goes_on(run, broker, switched)
            first = min(
                note["t"]
                for note in run.notes(run.producers)
                if note["e"] == "acked" and note["t"] > begin + 1 and note["queue"].startswith(broker)
            )
            print(
                f"switched after {switched - begin:.1f} s, keys go on {first - switched:+.1f} s after that", flush=True
            )
            assert first - switched < 10 * GOES_ON_SECONDS
        if node.frozen:
            node.thaw()
        else:
            node.start()
        run.cluster.wait_until_registered()
        run.cluster.wait_until_in_sync()
        print(f"round {number + 1}/{ROUNDS}: {what} of {broker}", flush=True)
    finish(run)
