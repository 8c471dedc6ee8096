"""LaneMQ → Apache and back, with kills: each message once at the target, in the order of its key.

make mirror-proof MESSAGES=1000000 KILLS=20
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanemq import Admin, Producer, PullConsumer
from lanemq.testing.embedded import EmbeddedBroker

MESSAGES = int(os.environ.get("LANEMQ_MIRROR_MESSAGES", "20000"))
KILLS = int(os.environ.get("LANEMQ_MIRROR_KILLS", "4"))
KEYS = 1000
SECONDS = 600 + MESSAGES // 200
HERE, THERE = 4, 8


@pytest.fixture(scope="module")
def lane() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.address


@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("queues", [(HERE, HERE), (HERE, THERE)])
@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_killed_mirror_stores_each_message_once_in_order(
    lane: str, address: str, tmp_path: Path, direction: str, queues: tuple[int, int]
) -> None:
    source, target = (lane, address) if direction == "to" else (address, lane)
    topic = f"mirror-{direction}-{queues[0]}-{queues[1]}"
    for server, count in zip((source, target), queues, strict=True):
        with Admin(server) as admin:
            admin.create_topic(topic, count, ordered=True)
    fill(source, topic)
    log = tmp_path / "mirror.log"
    words = ["mirror", "run", topic, "--from", source, "--to", target, "--json"]
    dice, began = random.Random(f"{direction}{queues}"), time.monotonic()
    for number in range(KILLS):
        child = start(words, log)
        try:
            wait_until_stored(
                target, topic, (number + 1) * MESSAGES // (KILLS + 1) - MESSAGES // (2 * KILLS + 2), child
            )
            time.sleep(dice.random() * 0.5)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    last = start([*words, "--until-drained"], log)
    assert last.wait(SECONDS) == 0, log.read_text()
    took = time.monotonic() - began
    found = read(target, topic)
    repeated = sum(count - 1 for count in Counter(found).values())
    assert repeated == 0, f"{repeated} messages are stored more than once"
    assert len(found) == MESSAGES
    assert in_order(found)
    verified = subprocess.run(
        [sys.executable, "-m", "lanemq.cli.main", "mirror", "verify", topic, "--from", source, "--to", target],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr
    print(
        f"\n{direction} Apache, {queues}: {MESSAGES} messages, {KILLS} kills, {took:.0f} s; {verified.stdout.strip()}"
    )


@pytest.mark.timeout(SECONDS)
def test_a_frozen_mirror_is_waited_for_and_stores_nothing_when_it_wakes_up(
    lane: str, address: str, tmp_path: Path
) -> None:
    """Its connection is closed by the Apache broker after two minutes; until then its last send may still arrive."""
    topic, log = "mirror-frozen", tmp_path / "mirror.log"
    for server in (lane, address):
        with Admin(server) as admin:
            admin.create_topic(topic, HERE, ordered=True)
    fill(lane, topic)
    words = ["mirror", "run", topic, "--from", lane, "--to", address]
    frozen = start(words, log)
    try:
        wait_until_stored(address, topic, 1, frozen)
        frozen.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        second = start([*words, "--until-drained"], log)
        assert second.wait(SECONDS) == 0, log.read_text()
        print(f"\nthe second mirror finished {time.monotonic() - began:.0f} s after the first was frozen")
        frozen.send_signal(signal.SIGCONT)
        time.sleep(5)
        frozen.send_signal(signal.SIGTERM)
        assert frozen.wait(SECONDS) == 0, log.read_text()
    finally:
        frozen.kill()
        frozen.wait()
    found = read(address, topic)
    assert sorted(found) == list(range(MESSAGES))
    assert in_order(found)


def fill(server: str, topic: str) -> None:
    with Producer(server) as producer:
        producer.send_many(topic, ((f"k{number % KEYS}", number) for number in range(MESSAGES)))


def start(words: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, "-m", "lanemq.cli.main", *words], stdout=out, stderr=out)


def wait_until_stored(server: str, topic: str, wanted: int, child: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS
    with Admin(server) as admin:
        while sum(each.messages for each in admin.describe_topic(topic).queues) < wanted:
            assert child.poll() is None, "the mirror ended"
            assert time.monotonic() < end, f"{wanted} messages were not copied within {SECONDS} s"
            time.sleep(0.02)


def read(server: str, topic: str) -> list[int]:
    """All bodies, queue by queue."""
    with PullConsumer(server, group="proof") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        consumer.seek_to_first()
        return [message.value() for queue in queues for message in consumer.read(queue, MESSAGES * 2)]


def in_order(found: list[int]) -> bool:
    """The numbers of a key, which are equal modulo `KEYS`, only grow."""
    last: dict[int, int] = {}
    for number in found:
        if number <= last.get(number % KEYS, -1):
            return False
        last[number % KEYS] = number
    return True
