"""What a coordinator costs: 100 members with 1,000 queues, without messages and with some."""

import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from interop.children import running
from interop.coordinator.node import CoordinatorNode, coordinate
from interop.ports import eventually
from lanemq import Producer
from lanemq.client.admin.admin import Admin

MEMBERS, PROCESSES, QUEUES = 100, 4, 1_000
MEASURED_SECONDS = 30.0
RATE = 200
CORE = 0.10
GROUP = TOPIC = "crowd"
pytestmark = pytest.mark.timeout(600)


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_while_sending(address: str, process: int, rate: int) -> float:
    """Which part of a core the process used while so many messages a second were sent and handled."""
    before, began = cpu_seconds(process), time.monotonic()
    with Producer(address) as producer:
        number = 0
        while (passed := time.monotonic() - began) < MEASURED_SECONDS:
            for _ in range(max(0, int(passed * rate) - number)):
                producer.submit(TOPIC, number, key=str(number))
                number += 1
            time.sleep(0.05)
        producer.flush()
    return (cpu_seconds(process) - before) / (time.monotonic() - began)


def test_a_hundred_members_with_a_thousand_queues_take_less_than_a_tenth_of_a_core(
    address: str, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as ending, Admin(address) as admin:
        admin.create_topic(TOPIC, QUEUES, ordered=True)
        coordinate(address, GROUP)
        for number in range(PROCESSES):
            words = [address, GROUP, TOPIC, str(MEMBERS // PROCESSES)]
            command = [sys.executable, "-m", "interop.coordinator.crowd", *words]
            ending.enter_context(running(command, tmp_path / f"{number}.out"))

        def shared() -> bool:
            owners = [each.owner for each in admin.locks(GROUP)]
            return len(owners) == QUEUES and len(set(owners)) == MEMBERS

        eventually(shared, 300, "all members own queues", every=2.0)
        idle, busy = (used_while_sending(address, coordinator.process_id, rate) for rate in (0, RATE))
    print(f"{MEMBERS} members, {QUEUES} queues: {idle:.1%} of a core, {busy:.1%} with {RATE} messages/s", flush=True)
    assert idle < CORE
