"""What a coordinator relies on at real Apache brokers, and members that are killed: `make interop-coordinator`.

`--backend apache49` runs the same against RocketMQ 4.9.
"""

import contextlib
import json
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from interop.children import running
from interop.clients import Listening
from interop.coordinator.node import CoordinatorNode, coordinate
from interop.java_client import java_client
from interop.maven import UnavailableError
from interop.ports import ask, eventually
from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin

PULL, LOCK, QUERY, UPDATE, CONFIGURE = 11, 41, 14, 15, 200
NO_PERMISSION = 16


def pull(broker: int, group: str, topic: str) -> int:
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return ask(broker, PULL, ext)[0]


def lock(broker: int, group: str, topic: str, client: str) -> int:
    body = {
        "clientId": client,
        "consumerGroup": group,
        "mqSet": [{"topic": topic, "brokerName": "apache", "queueId": 0}],
    }
    return len(json.loads(ask(broker, LOCK, {}, json.dumps(body).encode())[1])["lockOKMQSet"])


def topic_with(address: str, name: str, count: int = 1) -> str:
    with Admin(address) as admin:
        admin.create_topic(name, 4, ordered=True)
    with Producer(address) as producer:
        for number in range(count):
            producer.send(name, number, key=str(number % 10))
    return name


def test_a_disabled_group_pulls_nothing_and_may_do_everything_else(address: str, broker: int) -> None:
    topic = topic_with(address, "disabled", 40)
    assert pull(broker, "g", topic) == 0
    assert ask(broker, CONFIGURE, {}, b'{"groupName": "g", "consumeEnable": false}')[0] == 0
    assert pull(broker, "g", topic) == NO_PERMISSION
    assert pull(broker, "%LANEMQ%g", topic) == 0
    assert (lock(broker, "g", topic, "coordinator"), lock(broker, "g", topic, "stock")) == (1, 0)
    place = {"consumerGroup": "g", "topic": topic, "queueId": "0"}
    assert ask(broker, UPDATE, {**place, "commitOffset": "5"})[0] == 0
    assert ask(broker, QUERY, place)[2]["offset"] == "5"


def member(address: str, group: str, topic: str, file: Path) -> AbstractContextManager["Popen[bytes]"]:
    command = [sys.executable, "-m", "interop.coordinator.member", address, group, topic, str(file)]
    return running(command, file.with_suffix(".out"))


def noted(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def all_handled(notes: Path, count: int) -> None:
    eventually(lambda: len(noted(notes)) == count, 30, f"LaneMQ's member has all {count} messages")


def test_other_keys_pass_a_parked_one_and_nothing_finished_is_repeated(
    address: str, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    topic, group, notes = topic_with(address, "parked", 0), "parked", tmp_path / "notes"
    coordinate(address, group)
    with Producer(address) as producer:
        producer.send(topic, "fail", key="bad")
        for number in range(10_000):
            producer.submit(topic, number, key=f"k{number % 50}")
        producer.flush()
    with member(address, group, topic, notes) as child, ParkedAdmin(address) as parked:
        eventually(lambda: len(noted(notes)) >= 10_000, 90, "10,000 messages of other keys")
        assert [lane.key for lane in parked.lanes(group)] == ["bad"]
        time.sleep(2)  # longer than a report may take
        child.kill()
    with member(address, group, topic, notes):
        with Producer(address) as producer:
            producer.send(topic, 0, key="after")
        eventually(lambda: any(each["key"] == "after" for each in noted(notes)), 30, "the new member")
    assert len(noted(notes)) == 10_001
    with ParkedAdmin(address) as parked:
        assert [lane.key for lane in parked.lanes(group)] == ["bad"]


def test_a_java_member_of_a_coordinated_group_gets_nothing(
    address: str, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    topic, group = topic_with(address, "java", 20), "java"
    coordinate(address, group)
    folder = tmp_path / "java"
    folder.mkdir()
    try:
        client = java_client("java5", "5", address, folder)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    wanted = 20
    with contextlib.closing(client), member(address, group, topic, tmp_path / "notes"):
        all_handled(tmp_path / "notes", wanted)  # from now on the coordinator has Apache's lock of every queue
        for orderly in (True, False):
            stock = client.member(group, topic, Listening(orderly=orderly), own_process=False)
            with Producer(address) as producer:
                for number in range(20):
                    producer.send(topic, number, key=str(number))
            wanted += 20
            all_handled(tmp_path / "notes", wanted)
            assert not stock.turns()
            stock.stop()
        other = client.member("java-alone", topic, Listening(orderly=True), own_process=False)
        eventually(lambda: len(other.turns()) == 60, 60, "a group that is not coordinated gets all of them")
        other.stop()
