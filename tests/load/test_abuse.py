"""A good client sends beside each abuse: it never fails, is hardly slower, and the broker's memory stays small.

`make abuse` prints a line for each; `docs/reference/evidence.md` has the figures. A short form is in
`tests/broker/test_limits.py`.
"""

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient
from tests.load.abuses import ABUSES, TOPIC
from tests.load.gauge import MIB, read

SECONDS = float(os.environ.get("LANEMQ_ABUSE_SECONDS", "5"))
STORED = int(os.environ.get("LANEMQ_ABUSE_STORED", "100000"))
"""Messages in the log before the abuse begins; searches look through them."""
MAX_RATIO = 5.0
FLOOR_MS = 20.0
"""On a busy machine a quiet p99 may be a lucky one: below this, no ratio is judged."""
MAX_MEMORY = 512 * MIB


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`lanemq broker` with default settings, with the 1,024 descriptors that most shells give."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and " on 127.0.0.1:" not in line:
        line = process.stderr.readline()
    assert line, "the broker did not start"
    drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    yield process, line.split(" on ")[1].split(",")[0]
    process.kill()
    process.wait()
    process.stderr.close()
    drain.wait()


def p99(times: list[float]) -> float:
    return sorted(times)[-max(1, len(times) // 100)]


def send_for(raw: RawClient, seconds: float, pid: int) -> tuple[list[float], int, int]:
    """Milliseconds of each send, how many failed, and the largest memory of the broker."""
    times, failed, memory, end = [], 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        failed += raw.send(TOPIC, b"x" * 100).code != 0
        times.append((time.perf_counter() - begin) * 1000)
        if len(times) % 20 == 0:
            memory = max(memory, read(pid).memory)
        time.sleep(0.002)
    return times, failed, max(memory, read(pid).memory)


@pytest.mark.extended
@pytest.mark.parametrize("name", ABUSES)
def test_a_good_client_goes_on_beside(name: str, broker: tuple["subprocess.Popen[str]", str]) -> None:
    process, address = broker
    with RawClient(address) as raw:
        for begin in range(0, STORED, 1000):
            raw.send_batch(TOPIC, [(b"y" * 200, {"KEYS": f"k{begin + each}"}) for each in range(1000)])
        quiet, _, _ = send_for(raw, SECONDS, process.pid)
        command = [sys.executable, "-m", "tests.load.abuses", name, address]
        abuser = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert abuser.stdout is not None
            first: list[float] = []
            while not select.select([abuser.stdout], [], [], 0)[0]:
                first += send_for(raw, 0.2, process.pid)[0]
            busy, failed, memory = send_for(raw, SECONDS, process.pid)
        finally:
            abuser.kill()
            abuser.communicate()
        assert raw.send(TOPIC).code == 0, "it goes on"
    ratio = p99(first + busy) / p99(quiet)
    figures = {"quiet p99 ms": p99(quiet), "p99 ms": p99(first + busy), "worst ms": max(first + busy)}
    rounded = {key: round(value, 1) for key, value in figures.items()}
    print(json.dumps({"abuse": name, **rounded, "ratio": round(ratio, 1), "MiB": memory // MIB, "failed": failed}))
    assert failed == 0
    assert memory < MAX_MEMORY
    assert ratio < MAX_RATIO or p99(first + busy) < FLOOR_MS
