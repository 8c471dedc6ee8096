"""RocketMQ 5's gRPC clients at an Apache cluster, through a front that is an ordinary member of their group."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.coordinator.node import CoordinatorNode, coordinate
from interop.grpc.programs import CLIENTS, ClientRun, FrontRun, by_key, messages
from interop.maven import UnavailableError
from interop.ports import eventually
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin

KEYS, EACH = ["a", "b", "c"], 5
IN_ORDER = {key: list(range(EACH)) for key in KEYS}
TAKE_OVER_SECONDS = 2.5
"""0.8 s for a new connection, and the time of a busy machine."""

Start = Callable[..., ClientRun]


@contextlib.contextmanager
def front_with_clients(address: str, folder: Path, topic: str, group: str) -> Iterator[tuple[FrontRun, Start]]:
    try:
        command = CLIENTS["go"]()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    front = FrontRun(address, folder, "--retries", "2").start()
    runs: list[ClientRun] = []

    def start(role: str, **options: object) -> ClientRun:
        given = {"server": front.address, "topic": topic, **({} if role == "send" else {"group": group}), **options}
        runs.append(ClientRun(command, role, folder / f"{role}-{len(runs)}.log", {}, **given))
        return runs[-1].ready()

    try:
        yield front, start
    finally:
        for each in runs:
            each.close()
        front.close()


def finished(*runs: ClientRun) -> list[str]:
    return [body for run in runs for body in run.column("done")]


def keys_in_order_with_a_failure(start: Start) -> ClientRun:
    """A consumer that has processed the messages of three keys, one of them at its second attempt."""
    start("send").send(messages(KEYS, EACH))
    consumer = start("push", fail="b:2")
    consumer.wait(lambda run: len(finished(run)) == len(KEYS) * EACH, "everything processed")
    assert by_key(finished(consumer)) == IN_ORDER
    assert by_key(consumer.column("got"))["b"] == [0, 1, 2, 2, 3, 4]
    return consumer


def a_killed_consumer_is_replaced(start: Start) -> None:
    first = start("push", seconds=600)
    start("send").send(messages(["k"], 2))
    first.wait(lambda run: run.column("got"), "the first message there")
    second = start("push")
    time.sleep(2)  # the second one asks for messages by now
    first.kill()
    killed = time.time()
    second.wait(lambda run: finished(run) == ["k:0", "k:1"], "all messages at the other consumer")
    assert next(line["at"] for line in second.lines if line.get("got") == "k:0") - killed < TAKE_OVER_SECONDS
    second.stop()


def test_a_front_before_a_cluster(address: str, tmp_path: Path) -> None:
    """Without a coordinator, a key that is parked waits in the front's memory; others pass it."""
    with Admin(address) as admin:
        admin.create_topic("front-plain", 4, ordered=True)
    with front_with_clients(address, tmp_path, "front-plain", "front-plain") as (_, start):
        keys_in_order_with_a_failure(start).stop()
        a_killed_consumer_is_replaced(start)
        consumer = start("push", fail="bad:0", fails="always")
        start("send").send([*messages(["bad"], 2), *messages(["good"], 2)])
        consumer.wait(lambda run: len([each for each in run.column("got") if each == "bad:0"]) == 3, "all attempts")
        assert finished(consumer) == ["good:0", "good:1"]


def test_a_front_before_a_cluster_with_a_coordinator(
    address: str, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    """The parked key is known outside of the front: it stays parked when the front is killed, and is redriven."""
    with Admin(address) as admin:
        admin.create_topic("front-lanes", 4, ordered=True)
    coordinate(address, "front-lanes")
    with front_with_clients(address, tmp_path, "front-lanes", "front-lanes") as (front, start):
        keys_in_order_with_a_failure(start).stop()
        a_killed_consumer_is_replaced(start)
        consumer = start("push", fail="bad:0", fails="always")
        start("send").send([*messages(["bad"], 2), *messages(["good"], 2)])
        with ParkedAdmin(address) as lanes:
            parked = eventually(lambda: lanes.lanes("front-lanes"), 60, "the key is parked")
            assert [lane.key for lane in parked] == ["bad"]
            assert finished(consumer) == ["good:0", "good:1"]
            consumer.stop()
            front.stop(9)
            front.start()
            healthy = start("push")
            assert [lane.key for lane in lanes.lanes("front-lanes")] == ["bad"]
            assert lanes.redrive(parked[0])
        healthy.wait(lambda run: finished(run) == ["bad:0", "bad:1"], "the parked messages processed, and no others")
