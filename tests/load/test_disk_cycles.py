"""A disk is filled and freed again and again under load: nothing acknowledged is lost, and no restart is needed."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.raw_client import bodies
from tests.broker.running import RunningBroker
from tests.chaos import volumes

from lanemq.wire.codes import ResponseCode

CYCLES = int(os.environ.get("LANEMQ_DISK_CYCLES", "20"))
MEBIBYTES = 48


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Another program takes all space that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    try:
        yield
    finally:
        path.unlink()


@pytest.mark.extended
def test_a_disk_that_is_filled_and_freed_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with volumes.in_memory(tmp_path / "disk", MEBIBYTES) as disk:
        # Without the watermark, so that writes really meet the full disk in every other cycle.
        running = RunningBroker(disk / "data", min_free_bytes=0, segment_bytes=1 << 20)
        raw, stored, number, waits = running.connect(), [], 0, []

        def send() -> int:
            nonlocal number
            code = raw.send("T", b"%d" % number + bytes(20_000), stamp=f"p.0.{number}").code
            if code == 0:
                stored.append(number)
                number += 1
            return code

        for _ in range(10):
            assert send() == 0
        for _ in range(CYCLES):
            with filled(disk):
                while (code := send()) == 0:
                    pass
                assert code == ResponseCode.SYSTEM_BUSY
            begin = time.monotonic()
            while send() != 0:
                time.sleep(0.02)
                assert time.monotonic() - begin < 60, "sends go on by themselves"
            waits.append(time.monotonic() - begin)
        found = [int(body[:-20_000]) for body in bodies(raw.read("T"))]
        running.restart()
        again = [int(body[:-20_000]) for body in bodies(running.connect().read("T"))]
        running.stop()
    print(json.dumps({"cycles": CYCLES, "stored": len(stored), "longest wait s": round(max(waits), 2)}))
    assert found == again == stored
