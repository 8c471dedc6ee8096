"""Idle connections, and consumers that do not read, do not slow the others down."""

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from tests.broker.raw_client import RawClient, pull_ext
from tests.chaos.system import Child, SystemUnderTest
from tests.load.gauge import MIB, read

from lanemq.net.address import parse_address
from lanemq.wire.codes import RequestCode

IDLE = int(os.environ.get("LANEMQ_IDLE_CONNECTIONS", "5000"))
MOST_BYTES_EACH = 10 * 1024
ASKED = 1_000
DEAF = 20
DEAF_BYTES = 8 * MIB
"""The unsent answers of one peer (4 MiB and one message) with the copies that are made on the way."""


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough for this process; the broker inherits them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 500:
        pytest.skip(f"{IDLE} connections need {IDLE + 500} open files, the system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask(raw: RawClient, broker: Child) -> tuple[list[float], float]:
    """Milliseconds of round trips that need no disk, sorted; and what one costs the broker, which is a matter of the
    broker alone, however busy the machine is."""
    found, before = [], read(broker.process.pid).cpu
    for _ in range(ASKED):
        begin = time.perf_counter()
        raw.bounds("T")
        found.append((time.perf_counter() - begin) * 500)
    return sorted(found), (read(broker.process.pid).cpu - before) / ASKED * 500


def wait_for_files(system: SystemUnderTest, broker: Child, true: Callable[[int], bool], what: str) -> None:
    system.until(what, lambda: true(read(broker.process.pid).files), 180)


@pytest.mark.slow
@pytest.mark.usefixtures("descriptors")
def test_thousands_of_idle_connections_cost_little_and_do_not_slow_others_down(system: SystemUnderTest) -> None:
    # All of them come from one address, and none ever sends a request.
    broker = system.broker(["patient_server"], default_queues=1, max_connections=3 * IDLE)
    with RawClient(system.address) as raw:
        raw.send("T")
        alone, cost_alone = ask(raw, broker)
        before = read(broker.process.pid)
        begin = time.monotonic()
        idle = [socket.create_connection(parse_address(system.address), timeout=30) for _ in range(IDLE)]
        try:
            wait_for_files(system, broker, lambda files: files >= before.files + IDLE, "all are accepted")
            took = time.monotonic() - begin
            after = read(broker.process.pid)
            crowded, cost_crowded = ask(raw, broker)
            sent = raw.send("T").code
        finally:
            for each in idle:
                each.close()
        wait_for_files(system, broker, lambda files: files <= before.files + 2, "all are let go")
        assert raw.send("T").code == 0
    bytes_each = (after.memory - before.memory) / IDLE
    p99 = {"alone": alone[-ASKED // 100], "crowded": crowded[-ASKED // 100]}
    print(json.dumps({"bytes each": round(bytes_each), "seconds to accept": round(took, 2), "p99 ms": p99}))
    assert sent == 0
    assert bytes_each < MOST_BYTES_EACH
    assert cost_crowded < 3 * cost_alone + 0.2, "ms of the broker for a request"


@pytest.mark.slow
def test_consumers_that_never_read_cost_limited_memory_and_do_not_block_others(system: SystemUnderTest) -> None:
    """Each asks for 200 mebibytes and reads none of it."""
    broker = system.broker(default_queues=1)
    with RawClient(system.address) as raw:
        raw.send("T", bytes(MIB))
        before = read(broker.process.pid).memory
        deaf = [RawClient(system.address) for _ in range(DEAF)]
        for each in deaf:
            ask = [
                each.frame(RequestCode.PULL_MESSAGE, pull_ext("T", 0, laneMaxBytes=str(2 * MIB))) for _ in range(200)
            ]
            each.socket.sendall(b"".join(frame for _, frame in ask))
        begin = time.monotonic()
        for _ in range(100):
            assert raw.send("T", b"others are served").code == 0
        took = time.monotonic() - begin
        grown = read(broker.process.pid).memory - before
        for each in deaf:
            each.close()
    print(json.dumps({"MiB grown": round(grown / MIB, 1), "MiB each": round(grown / MIB / DEAF, 2), "seconds": took}))
    assert grown < DEAF * DEAF_BYTES
    assert took < 60
