"""Backups taken under load and restored, again and again: what was acknowledged before a backup is in it, in order."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import BrokerProcess

CYCLES = int(os.environ.get("LANEMQ_BACKUP_CYCLES", "20"))
SENDERS = 3


class Sender(threading.Thread):
    """Sends numbers to a queue of its own, each after the acknowledgement of the one before."""

    def __init__(self, address: str, queue: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.ends = threading.Event()
        self._queue = queue
        self._address = address

    def run(self) -> None:
        with RawClient(self._address) as raw:
            while not self.ends.is_set():
                assert raw.send("T", b"%d" % self.acknowledged, queue=self._queue).code == 0
                self.acknowledged += 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data")
    yield process
    process.kill()


def lanemq(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "lanemq.cli.main", *map(str, arguments)], check=True, capture_output=True)


@pytest.mark.extended
@pytest.mark.timeout(120 + 30 * CYCLES)
def test_every_backup_under_load_can_be_restored_and_is_complete(broker: BrokerProcess, tmp_path: Path) -> None:
    with RawClient(broker.address) as raw:
        raw.create("T", SENDERS)
    senders = [Sender(broker.address, queue) for queue in range(SENDERS)]
    for each in senders:
        each.start()
    restored, seconds = 0, []
    for _ in range(CYCLES):
        before = [each.acknowledged for each in senders]
        began = time.monotonic()
        lanemq("backup", tmp_path / "backup", "--data", tmp_path / "data")
        seconds.append(time.monotonic() - began)
        lanemq("restore", tmp_path / "backup", "--data", tmp_path / "restored")
        copy = BrokerProcess(tmp_path / "restored")
        with RawClient(copy.address) as raw:
            found = [[int(body) for body in bodies(raw.read("T", queue))] for queue in range(SENDERS)]
        copy.kill()
        for queue, numbers in enumerate(found):
            assert numbers == list(range(len(numbers))), f"queue {queue} is complete and in order"
            assert len(numbers) >= before[queue], f"everything acknowledged before the backup is in queue {queue}"
        restored += sum(map(len, found))
        shutil.rmtree(tmp_path / "backup")
        shutil.rmtree(tmp_path / "restored")
    for each in senders:
        each.ends.set()
        each.join()
    sent = sum(each.acknowledged for each in senders)
    figures = {"backups": CYCLES, "sent": sent, "messages read back": restored}
    print(json.dumps({**figures, "longest backup s": round(max(seconds), 2)}))
    assert sent > CYCLES * SENDERS
