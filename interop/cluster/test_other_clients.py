"""RocketMQ's own client on a cluster with fail-over, and reading from a slave of a cluster without one."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.clients import ClientError, Listening, Producer, Receipt
from interop.cluster.nodes import Cluster, ClusterPlan, running_cluster
from interop.cluster.run import TOPIC, Run, now
from interop.java_client import java_client
from interop.judge import bodies, done, in_order_with_repeats
from interop.maven import UnavailableError, server_classpath
from interop.ports import eventually
from lanemq import Message, PullConsumer
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.errors import TransportError

KEYS, BEFORE, AFTER = 8, 20, 20
SECONDS = 150.0


@pytest.fixture(autouse=True, scope="module")
def _available() -> None:
    try:
        server_classpath("5")
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    plan = ClusterPlan(name_servers=2, replicas=2, controller=True, layouts_in_routes=True)
    with running_cluster(plan, tmp_path) as cluster:
        yield cluster


def test_the_java_client_keeps_the_order_of_keys_through_a_fail_over(cluster: Cluster, tmp_path: Path) -> None:
    """Its keys stay where they are because the name servers put the layout into routes (`orderMessageEnable`)."""
    run = Run(cluster, tmp_path)
    said = run.create_topic("--ordered")
    assert "not protected" not in said
    java = java_client("java5", "5", cluster.address, tmp_path)
    try:
        member = java.member("java-billing", TOPIC, Listening())
        producer = java.producer("java-producers")
        send_all(producer, range(BEFORE))
        master = cluster.master("broker-a")
        assert master is not None
        master.kill()
        send_all(producer, range(BEFORE, BEFORE + AFTER))
        expected = {f"k{key}": [f"k{key}:{n}" for n in range(BEFORE + AFTER)] for key in range(KEYS)}
        stored = stored_bodies(cluster)
        assert all(len(queues) == 1 for queues in stored.values()), {key: set(each) for key, each in stored.items()}
        for key, queues in stored.items():
            (line,) = queues.values()
            assert in_order_with_repeats(line, expected[key]), (key, line)
        everything = {text for texts in expected.values() for text in texts}
        turns = member.wait(lambda seen: everything <= set(bodies(done(seen))), SECONDS)
        for key, texts in expected.items():
            handled = [text for text in bodies(done(turns)) if text.startswith(f"{key}:")]
            assert in_order_with_repeats(handled, texts), (key, handled)
    finally:
        java.close()


def send_all(producer: Producer, numbers: range) -> None:
    """Sends numbered messages of each key. An ordered send of the Java client is not retried by itself."""
    for number in numbers:
        for key in range(KEYS):
            name = f"k{key}"
            text = f"{name}:{number}"
            eventually(lambda text=text, name=name: tried(lambda: producer.send(TOPIC, text, name)), SECONDS, text)  # type: ignore[misc]


def tried(send: Callable[[], Receipt]) -> Receipt | None:
    try:
        return send()
    except ClientError:
        return None


def stored_bodies(cluster: Cluster) -> dict[str, dict[str, list[str]]]:
    """The bodies of each key in order, by queue."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    with TopicReader(cluster.address, TOPIC) as reader:
        for queue in reader.queues:
            for message in reader.read(queue, *reader.bounds(queue)):
                text = bytes(message.body).decode()
                found[text.split(":")[0]][str(queue)].append(text)
    return found


@pytest.fixture
def with_slave(tmp_path: Path) -> Iterator[Run]:
    """Fixed roles: a master and a slave that may be read (`slaveReadEnable`)."""
    plan = ClusterPlan(brokers=("broker-a",), replicas=2, settings={"slaveReadEnable": "true"})
    with running_cluster(plan, tmp_path) as cluster:
        run = Run(cluster, tmp_path)
        yield run
        run.close()


def test_reading_goes_on_at_a_slave_and_an_ordered_group_waits_for_its_master(with_slave: Run) -> None:
    run = with_slave
    run.create_topic("--ordered")
    run.consumer(drop_repeats=True)
    producer = run.producer()
    run.wait_for("acked", 500)
    run.wait_for("end", 300)
    (master, _) = run.cluster.brokers["broker-a"]
    master.kill()
    killed = now()
    with PullConsumer(run.cluster.address, group="reader") as reader:
        seen = eventually(lambda: read_all(reader), SECONDS, "messages at the slave")
    per_key: dict[str, list[int]] = defaultdict(list)
    for message in seen:
        per_key[message.value()["key"]].append(message.value()["n"])
    assert len(seen) >= 300
    assert all(numbers == list(range(len(numbers))) for numbers in per_key.values())
    time.sleep(15)
    assert run.count(run.producers, "acked", killed + 5) == 0, "a slave takes no messages"
    assert run.count(run.consumers, "turn", killed + 10) == 0, "locks are the master's"
    master.start()
    run.wait_for("acked", 300, since=now())
    assert producer.process.poll() is None
    verdict = run.finish()
    assert verdict.is_clean, vars(verdict)


def read_all(reader: PullConsumer) -> list[Message]:
    """All messages that can be read now; empty while the broker's addresses are not known."""
    found: list[Message] = []
    try:
        reader.assign(reader.queues(TOPIC))
        for queue in reader.queues(TOPIC):
            reader.seek(queue, 0)
        while messages := reader.poll(1.0):
            found += messages
    except TransportError:
        return []
    return found
