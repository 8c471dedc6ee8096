"""Many messages behind one failing key: how fast the others are then.

LANEMQ_BACKLOG=1000000 .venv/bin/pytest -s interop/coordinator/test_backlog.py --backend apache
"""

import json
import os
import time
from pathlib import Path

import pytest

from interop.coordinator.node import CoordinatorNode, coordinate
from interop.coordinator.test_coordinator import member, noted
from interop.ports import eventually
from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.parked import ParkedAdmin

BACKLOG = int(os.environ.get("LANEMQ_BACKLOG", "20000"))
OTHERS, KEYS = 20_000, 50
GROUP = TOPIC = "backlog"
SHARE = 0.95
pytestmark = pytest.mark.timeout(600 + BACKLOG // 500)


class Handled:
    """Counts the lines that a member has written, and reads each once."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._read = 0
        self.times: list[float] = []

    def count(self) -> int:
        with self._notes.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self.times += [json.loads(line)["t"] for line in whole.splitlines()]
        return len(self.times)


def send(address: str, count: int, *, bad: bool) -> None:
    with Producer(address) as producer:
        for number in range(count):
            producer.submit(TOPIC, number, key="bad" if bad else f"k{number % KEYS}")
        producer.flush()


def rate_of_others(address: str, handled: Handled) -> float:
    """Messages a second that one member handles of those that wait."""
    before = handled.count()
    send(address, OTHERS, bad=False)
    eventually(lambda: handled.count() >= before + OTHERS, 300, f"{OTHERS} messages of other keys", every=0.2)
    times = handled.times[before : before + OTHERS]
    return len(times) / (times[-1] - times[0])


def test_other_keys_keep_their_rate_with_a_backlog_behind_a_failing_key(
    address: str, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    with Admin(address) as admin:
        admin.create_topic(TOPIC, 1, ordered=True)
    coordinate(address, GROUP)
    notes = tmp_path / "notes"
    notes.touch()
    handled = Handled(notes)
    with member(address, GROUP, TOPIC, notes), ParkedAdmin(address) as parked:
        rate_of_others(address, handled)  # the process is warm then
        before = max(rate_of_others(address, handled) for _ in range(2))
        with Producer(address) as producer:
            producer.send(TOPIC, "fail", key="bad")
        eventually(lambda: parked.lanes(GROUP), 30, "the parked key")
        began = time.monotonic()
        send(address, BACKLOG, bad=True)
        sent = time.monotonic() - began
        eventually(lambda: parked.lanes(GROUP)[0].messages > BACKLOG, 600, "all of the key are parked", every=1.0)
        settled = time.monotonic() - began
        after = max(rate_of_others(address, handled) for _ in range(2))
        assert parked.lanes(GROUP)[0].messages == BACKLOG + 1
    print(
        f"{BACKLOG} messages behind a failing key, sent within {sent:.0f} s, parked after {settled:.0f} s; "
        f"others: {before:.0f}/s before, {after:.0f}/s with them ({after / before:.0%})",
        flush=True,
    )
    assert after >= SHARE * before


SPARSE, APART = 640, 40
SPARSE_RATE = 200.0
"""Messages a second. One pull after the other would bring about as many in ten seconds on a slow network."""


def test_a_lane_whose_messages_lie_far_apart_is_redriven_with_pulls_side_by_side(
    address: str, coordinator: CoordinatorNode, tmp_path: Path
) -> None:
    topic = group = "sparse"
    with Admin(address) as admin:
        admin.create_topic(topic, 1, ordered=True)
    coordinate(address, group)
    with Producer(address) as producer:
        first = producer.send(topic, "fail", key="bad").offset
        for number in range(SPARSE):
            producer.submit(topic, number, key="bad")
            for other in range(APART):
                producer.submit(topic, other, key=f"k{other}")
        producer.flush()
    notes = tmp_path / "notes"
    notes.touch()

    def times() -> list[float]:
        return [each["t"] for each in noted(notes) if each["key"] == "bad"]

    with member(address, group, topic, notes), ParkedAdmin(address) as parked:
        eventually(lambda: [lane.messages for lane in parked.lanes(group)] == [SPARSE + 1], 120, "all are parked")
        (lane,) = parked.lanes(group)
        parked.discard(lane, first)
        began = time.monotonic()
        parked.redrive(lane)
        eventually(lambda: len(times()) == SPARSE, 60, "all were redriven")
    rate = SPARSE / (max(times()) - began)
    print(f"{SPARSE} messages of a lane, each {APART + 1} offsets apart: {rate:.0f}/s", flush=True)
    assert rate > SPARSE_RATE
