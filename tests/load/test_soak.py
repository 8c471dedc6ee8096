"""Steady load for a while: memory, descriptors and threads stay flat; `make soak MINUTES=10` takes longer.

Producers and consumers work at a steady pace and write their histories; at the end everything is done and judged.
"""

import json
import os
import time

import pytest
from tests.chaos.history_follower import HistoryFollower
from tests.chaos.system import Child, SystemUnderTest, complaint
from tests.load.gauge import MIB, Reading, read

from lanemq.checker.verdict import Verdict

SECONDS = float(os.environ.get("LANEMQ_SOAK_SECONDS", "20"))
EVERY = max(0.2, SECONDS / 400)
SEGMENT_BYTES = MIB
"""The keys of the newest segment are kept in memory, some 20 bytes a message. Small ones are finished many times, so
that what is seen is not the first of them filling up."""
KEPT_BYTES = 4 * SEGMENT_BYTES
"""Every segment that is kept is an open file: old ones have to go for the count to be flat."""
FILES_GROWTH = 10
"""Retention looks every ten seconds, so the count goes up and down by a few; a leak would be one for every segment."""
PRINT_SECONDS = 20
"""Between two lines of progress."""
GROWTH_BYTES = 6 * MIB
"""Between the second quarter of the run and the last; the first is for caches to fill."""


def quarters(readings: list[Reading]) -> tuple[list[Reading], list[Reading]]:
    part = len(readings) // 4
    return readings[part : 2 * part], readings[3 * part :]


def growth(readings: list[Reading], field: str) -> int:
    before, after = ([getattr(each, field) for each in part] for part in quarters(readings))
    return int(max(after) - max(before))


@pytest.mark.extended
@pytest.mark.timeout(240 + 2 * SECONDS)
def test_memory_descriptors_and_threads_stay_flat_under_steady_load(system: SystemUnderTest) -> None:
    broker = system.broker(default_queues=4, recorded=True, segment_bytes=SEGMENT_BYTES, retention_bytes=KEPT_BYTES)
    follower = HistoryFollower(system.history)
    producers = [system.producer(name, keys=100, ahead=500, pause_ms=1) for name in ("p", "q")]
    system.until("both producers are heard", lambda: len(follower.read().acked) == 2)
    consumers = [system.consumer(name) for name in ("a", "b")]
    system.until("both consumers work", lambda: len(follower.read().turns) == 2)
    parts = [broker, *producers, *consumers]
    seen = watch(follower, parts)
    system.finish(*producers)
    system.until("everything is done", lambda: not follower.read().undone, 60)
    system.finish(*consumers)
    system.finish(broker)
    report = system.judge("acked=1000")
    print(json.dumps(summary(seen, follower)))
    assert report.verdict is Verdict.PASS, complaint(report)
    for name, readings in seen.items():
        assert growth(readings, "memory") < GROWTH_BYTES, (name, summary(seen, follower))
        assert growth(readings, "files") <= FILES_GROWTH, name
        assert growth(readings, "threads") <= 2, name


def watch(follower: HistoryFollower, parts: list[Child]) -> dict[str, list[Reading]]:
    """Waits for a given time, which is the purpose of a soak test."""
    seen: dict[str, list[Reading]] = {part.name: [] for part in parts}
    began = printed = time.monotonic()
    end = began + SECONDS
    while (now := time.monotonic()) < end:
        if now > printed + PRINT_SECONDS:
            printed = now
            print(f"{now - began:.0f} of {SECONDS:.0f} s: {follower.acked.total()} acknowledged", flush=True)
        time.sleep(EVERY)
        follower.read()
        for part in parts:
            assert part.alive, part.name
            seen[part.name].append(read(part.process.pid))
    return seen


def summary(seen: dict[str, list[Reading]], follower: HistoryFollower) -> dict[str, object]:
    return {
        "seconds": SECONDS,
        "acked": follower.acked.total(),
        "MiB at the end": {name: round(each[-1].memory / MIB, 1) for name, each in seen.items()},
        "MiB grown": {name: round(growth(each, "memory") / MIB, 2) for name, each in seen.items()},
        "files grown": {name: growth(each, "files") for name, each in seen.items()},
    }
