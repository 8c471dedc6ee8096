"""A mirror that is killed again and again: each message once, in the order of its key.

`make mirror-proof MESSAGES=1000000 KILLS=20` runs the large form against Apache RocketMQ.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.mirror.pair import Pair, by_key, send

from lanemq.client.admin.admin import Admin
from lanemq.mirror.verifying import compare

SECONDS = 240


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
def test_a_mirror_that_is_killed_stores_each_message_once_in_order(pair: Pair, tmp_path: Path) -> None:
    run(pair, tmp_path, "killed", there=3, messages=12_000, kills=2)


@pytest.mark.extended
@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("there", [3, 4])
def test_a_mirror_that_is_killed_many_times_stores_each_message_once_in_order(
    pair: Pair, tmp_path: Path, there: int
) -> None:
    run(pair, tmp_path, f"often-killed-{there}", there=there, messages=200_000, kills=20)


def run(pair: Pair, folder: Path, topic: str, *, there: int, messages: int, kills: int) -> None:
    log = folder / "mirror.log"
    pair.create(topic, 4, there)
    send(pair.source, topic, messages, keys=100)
    found_at_kill = []
    for number in range(kills):
        child = start(pair, topic, log)
        try:
            found_at_kill.append(wait_for(pair, topic, 1 + number * messages // (kills + 1)))
            assert child.poll() is None, log.read_text()
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    last = start(pair, topic, log, "--until-drained")
    assert last.wait(SECONDS) == 0, log.read_text()
    copies, originals = by_key(pair.target, topic), by_key(pair.source, topic)
    assert copies == originals
    assert sum(map(len, copies.values())) == messages
    assert compare(pair.options(topic)).equal
    print(f"messages at the target at each kill: {found_at_kill}")


def start(pair: Pair, topic: str, log: Path, *more: str) -> "subprocess.Popen[bytes]":
    words = ["mirror", "run", topic, "--from", pair.source, "--to", pair.target, *more]
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, "-m", "lanemq.cli.main", *words], stdout=out, stderr=out)


def wait_for(pair: Pair, topic: str, wanted: int) -> int:
    """Waits until the target has so many messages; how many it has then."""
    end = time.monotonic() + SECONDS
    with Admin(pair.target) as admin:
        while True:
            found = sum(each.messages for each in admin.describe_topic(topic).queues)
            if found >= wanted:
                return found
            assert time.monotonic() < end, f"{found} of {wanted} messages after {SECONDS} s"
            time.sleep(0.002)
