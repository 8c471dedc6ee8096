"""LaneMQ → Apache and back, with kills: each message once at the target, in the order of its key.

make mirror-proof MESSAGES=1000000 KILLS=20
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documents import ROOT, snippets

from interop.ports import eventually
from lanemq import Admin, App, Producer, PullConsumer
from lanemq.errors import LaneError
from lanemq.testing.embedded import EmbeddedBroker

MESSAGES = int(os.environ.get("LANEMQ_MIRROR_MESSAGES", "20000"))
KILLS = int(os.environ.get("LANEMQ_MIRROR_KILLS", "4"))
KEYS = 1000
SECONDS = 600 + MESSAGES // 200
HERE, THERE = 4, 8
GUIDE = ROOT / "docs" / "guides" / "growing-to-a-cluster.md"


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


@pytest.mark.timeout(SECONDS)
def test_the_script_of_the_guide_moves_a_topic_with_traffic(lane: str, address: str, tmp_path: Path) -> None:
    """A producer sends until the source refuses, and continues at the target; so does a consumer."""
    (script,) = [each.code for each in snippets("sh", [GUIDE]) if "cut-over" in each.code and "set -e" in each.code]
    stop, stopped = tmp_path / "stop", tmp_path / "stopped"
    program(tmp_path / "lanemq", f'exec {sys.executable} -m lanemq.cli.main "$@"')
    program(tmp_path / "stop-consumers", f"touch {stop}; while [ ! -e {stopped} ]; do sleep 0.1; done")
    brokers = brokers_of(address)
    with Admin(lane) as admin:
        admin.create_topic("orders", 4 * brokers, ordered=True)
    sender, handled = Sender(lane), Handled()
    consumer = handled.consume(lane)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FROM": lane, "TO": address,
        "STOP_CONSUMERS": "stop-consumers",
    }  # fmt: skip
    watcher = threading.Thread(target=stop_when_told, args=(stop, stopped, consumer))
    watcher.start()
    try:
        eventually(lambda: len(handled.seen) > 200, 60, "traffic at the source")
        done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    finally:
        stop.touch()
        watcher.join()
        sent = sender.join()
    assert done.returncode == 0, done.stdout + done.stderr
    consumer = handled.consume(address)
    try:
        with Producer(address) as producer:
            for number in range(sent, sent + 500):
                producer.send("orders", number, key=f"k{number % 10}")
        eventually(lambda: len(set(handled.seen)) == sent + 500, SECONDS, "everything handled")
    finally:
        consumer.stop()
    for key in range(10):
        numbers = [number for number in handled.seen if number % 10 == key]
        firsts = list(dict.fromkeys(numbers))
        assert firsts == list(range(key, sent + 500, 10)), f"k{key} is not complete and in order"
    again = len(handled.seen) - len(set(handled.seen))
    print(f"\n{sent} messages before the move, 500 after it, {again} handled twice; all keys complete and in order")


def program(path: Path, code: str) -> None:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


class Sender(threading.Thread):
    """Sends numbers, one after the other, until the broker refuses."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._sent = 0
        self._enough = threading.Event()
        self.start()

    def run(self) -> None:
        with Producer(self._address) as producer:
            while not self._enough.is_set():
                try:
                    producer.send("orders", self._sent, key=f"k{self._sent % 10}")
                except LaneError:
                    return
                self._sent += 1
                time.sleep(0.002)

    def join(self, timeout: float | None = None) -> int:  # type: ignore[override]
        """How many messages were stored."""
        self._enough.set()
        super().join(timeout)
        return self._sent


class Handled:
    """What consumers of the group have handled, in order."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def consume(self, address: str) -> App:
        app = App(address, group="billing")

        @app.ordered("orders")
        def handle(number: int) -> None:
            self.seen.append(number)

        app.start()
        return app


def stop_when_told(stop: Path, stopped: Path, consumer: App) -> None:
    while not stop.exists():
        time.sleep(0.05)
    consumer.stop()
    stopped.touch()


def brokers_of(address: str) -> int:
    with Admin(address) as admin:
        admin.create_topic("count-brokers", 1)
        return eventually(
            lambda: len({each.queue.broker for each in admin.describe_topic("count-brokers").queues}), 60, "it"
        )
