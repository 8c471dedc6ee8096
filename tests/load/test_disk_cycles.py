"""A disk is filled and freed again and again under load: nothing acknowledged is lost, and no restart is needed.

With default settings, sends stop at the low-space watermark, and everything else continues. Without the watermark,
writes of messages and rows really meet the full disk.
"""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import RunningBroker
from tests.chaos import volumes

from lanemq.wire.codes import ResponseCode

CYCLES = int(os.environ.get("LANEMQ_DISK_CYCLES", "20"))
MEBIBYTES = 128
"""The watermark is a tenth of it."""
PATIENT = 60.0


class Sender(threading.Thread):
    """Sends numbers one after the other, each until it is acknowledged, and does not wait after a "busy" for long."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.ends = threading.Event()
        self.number = 0
        """How many are acknowledged."""
        self.busy = False
        """Whether the last answer was "busy"."""
        self.other: list[int] = []
        """Answers that are neither."""
        self._address = address

    def run(self) -> None:
        with RawClient(self._address) as raw:
            while not self.ends.is_set():
                code = raw.send("T", b"%d" % self.number, stamp=f"p.0.{self.number}").code
                self.number += code == 0
                self.busy = code == ResponseCode.SYSTEM_BUSY
                if code not in (0, ResponseCode.SYSTEM_BUSY):
                    self.other.append(code)
                if code:
                    time.sleep(0.01)

    def until(self, what: str, *, busy: bool) -> float:
        """Wait until sends are refused, or continue; returns the seconds."""
        begin, number = time.monotonic(), self.number
        while self.busy is not busy or (not busy and self.number == number):
            assert time.monotonic() - begin < PATIENT, what
            time.sleep(0.005)
        return time.monotonic() - begin


@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("watermark", [True, False], ids=["default settings", "without the watermark"])
def test_a_disk_that_is_filled_and_freed_loses_nothing_acknowledged(tmp_path: Path, watermark: bool) -> None:
    with volumes.in_memory(tmp_path / "disk", MEBIBYTES) as disk:
        # Without the watermark, small files: a roll meets the full disk too.
        running = RunningBroker(disk / "data", **({} if watermark else {"min_free_bytes": 0, "segment_bytes": 1 << 20}))
        sender, raw, waits, locks = Sender(running.address), running.connect(), [], 0
        raw.create("T", 1)
        sender.start()
        for cycle in range(CYCLES):
            # Every other cycle leaves half of the watermark, so that all but sends must continue.
            left = (MEBIBYTES << 20) // 20 if watermark and cycle % 2 else 0
            with volumes.filled(disk, left):
                sender.until(f"cycle {cycle}: sends are refused", busy=True)
                if left:
                    assert raw.lane_lock("c", group=f"g{cycle}").lane_leases, "locks continue below the watermark"
                    assert raw.commit(cycle).code == 0
                    locks += 1
            waits.append(sender.until(f"cycle {cycle}: sends continue by themselves", busy=False))
        sender.ends.set()
        sender.join(PATIENT)
        found = [int(body) for body in bodies(raw.read("T"))]
        running.restart()
        again = [int(body) for body in bodies(running.connect().read("T"))]
        running.stop()
    shown = {"cycles": CYCLES, "watermark": watermark, "stored": sender.number, "longest wait s": round(max(waits), 2)}
    print(json.dumps({**shown, "locks below the watermark": locks, "other answers": sender.other}))
    assert found == again == list(range(sender.number))
    assert not sender.other
