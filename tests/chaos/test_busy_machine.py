"""A machine that is busy with other work pauses every process at any point, and the checker raises no alarm."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.system import SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that use all the time they get."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def outside_of_its_transactions(sink: Path) -> Iterator[None]:
    """No member is inside a transaction.

    A kill there would leave an effect in the history that was never committed, and a frozen member would keep the
    database locked for all others.
    """
    with contextlib.closing(sqlite3.connect(sink, timeout=60, isolation_level=None)) as table:
        table.execute("BEGIN IMMEDIATE")
        yield
        table.execute("ROLLBACK")


def test_a_busy_machine_raises_no_alarm(system: SystemUnderTest) -> None:
    """With default settings: a member is killed, one is frozen beyond its lease, and effects go to a sink."""
    sink = {"work_ms": 2, "sink": str(system.folder / "sink.db")}
    broker = system.broker(default_queues=4, recorded=True)
    producer = system.producer(pause_ms=3)
    system.until("something is stored", lambda: system.seen("acked"))
    a, b, c = (system.consumer(name, **sink) for name in "abc")
    system.until("all work", lambda: all(len(system.seen("turn", name)) > 20 for name in "abc"))
    with busy_processes(2 * (os.cpu_count() or 1)):
        busy_since = system.seen("turn")[-1]["t"]
        system.until("all work", lambda: all(len(system.seen("turn", name, after=busy_since)) > 20 for name in "abc"))
        with outside_of_its_transactions(system.folder / "sink.db"):
            system.kill(a)
            system.freeze(b)
        frozen_at = system.seen("fault")[-1]["t"]
        system.until(
            "the third has all queues",
            lambda: len({e["queue"] for e in system.seen("turn", "c", after=frozen_at)}) == 4,
        )
        system.thaw(b)
        thawed_at = system.seen("fault")[-1]["t"]
        system.until("the second works again", lambda: len(system.seen("turn", "b", after=thawed_at)) > 20)
        system.finish(producer)
        system.until("everything is done", system.is_drained)
    system.finish(b, c)
    system.finish(broker)
    report = system.judge("rebalance", "faults=3", "effects")
    assert report.verdict is Verdict.PASS, complaint(report)
