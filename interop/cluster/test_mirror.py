"""A mirror that is killed while a replica of its target is frozen.

What it sent last is stored and not readable, and the broker reports nothing of it. The next mirror must not send it
again.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.cluster.nodes import Cluster, ClusterPlan, running_cluster
from interop.maven import UnavailableError, server_classpath
from interop.ports import eventually
from lanemq import Admin, Producer, PullConsumer
from lanemq.mirror import Mirror, MirrorOptions, copying
from lanemq.testing.embedded import EmbeddedBroker

MESSAGES = 400
BROKER = "broker-a"
FROZEN = 6.0
"""Seconds for which the replica stays frozen after the mirror was killed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        server_classpath("5")
    except UnavailableError as reason:
        pytest.skip(str(reason))
    plan = ClusterPlan(brokers=(BROKER,), replicas=2, controller=True)
    with running_cluster(plan, tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.wait_until_registered()
        cluster.wait_until_in_sync()
        yield cluster


@pytest.mark.timeout(300)
def test_what_waits_for_a_frozen_replica_is_not_copied_again(cluster: Cluster, tmp_path: Path) -> None:
    found = copied_through_a_kill(cluster, "stalled", tmp_path)
    assert sorted(found) == list(range(MESSAGES))


@pytest.mark.timeout(300)
def test_without_a_marker_it_is(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(copying, "wait_until_confirmed", lambda *_: None)
    assert len(copied_through_a_kill(cluster, "without-marker", tmp_path)) > MESSAGES


def copied_through_a_kill(cluster: Cluster, topic: str, folder: Path) -> list[int]:
    """Bodies at the target, after a mirror process was killed and a second mirror in this process finished."""
    with EmbeddedBroker() as source:
        for server in (source.address, cluster.address):
            with Admin(server) as admin:
                admin.create_topic(topic, 2, ordered=True)
        options = MirrorOptions(source=source.address, target=cluster.address, topics=(topic,))
        feeder = threading.Thread(target=feed, args=(source.address, topic))
        feeder.start()
        words = ["mirror", "run", topic, "--from", options.source, "--to", options.target]
        with (folder / "mirror.log").open("wb") as out:
            first = subprocess.Popen([sys.executable, "-m", "lanemq.cli.main", *words], stdout=out, stderr=out)
        try:
            eventually(lambda: stored(cluster.address, topic) >= 20, 60, "the first copies")
            (replica,) = cluster.replicas(BROKER)
            replica.freeze()
            time.sleep(1)  # what is copied now is stored, and waits for the replica
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        thawing = threading.Timer(FROZEN, replica.thaw)
        thawing.start()
        try:
            Mirror(options).run(until_drained=True)
        finally:
            thawing.join()
            feeder.join()
        cluster.wait_until_in_sync()
        Mirror(options).run(until_drained=True)
    with PullConsumer(cluster.address, group="proof") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        consumer.seek_to_first()
        return [message.value() for queue in queues for message in consumer.read(queue, 10 * MESSAGES)]


def feed(server: str, topic: str) -> None:
    with Producer(server) as producer:
        for number in range(MESSAGES):
            producer.send(topic, number, key=f"k{number % 20}")
            time.sleep(0.02)


def stored(server: str, topic: str) -> int:
    with Admin(server) as admin:
        return sum(each.messages for each in admin.describe_topic(topic).queues)
