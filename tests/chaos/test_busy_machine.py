"""A machine that is busy with other work pauses every process at any point, and the checker raises no alarm."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.chaos.stage import Stage, complaint

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


def test_a_busy_machine_raises_no_alarm(stage: Stage) -> None:
    """With default settings: a member is killed, one is frozen beyond its lease, and effects go to a sink."""
    sink = {"work_ms": 2, "sink": str(stage.folder / "sink.db")}
    with busy_processes(4 * (os.cpu_count() or 1)):
        broker = stage.broker(default_queues=4, recorded=True)
        producer = stage.producer(pause_ms=3)
        stage.until("something is stored", lambda: stage.seen("acked"))
        a, b, c = (stage.consumer(name, **sink) for name in "abc")
        stage.until("all work", lambda: all(len(stage.seen("turn", name)) > 20 for name in "abc"))
        stage.kill(a)
        stage.freeze(b)
        frozen_at = stage.seen("fault")[-1]["t"]
        stage.until(
            "the third has all queues", lambda: len({e["queue"] for e in stage.seen("turn", "c", after=frozen_at)}) == 4
        )
        stage.thaw(b)
        thawed_at = stage.seen("fault")[-1]["t"]
        stage.until("the second works again", lambda: len(stage.seen("turn", "b", after=thawed_at)) > 20)
        stage.finish(producer)
        stage.until("everything is done", stage.is_drained)
        stage.finish(b, c)
        stage.finish(broker)
    report = stage.judge("rebalance", "faults=3", "effects")
    assert report.verdict is Verdict.PASS, complaint(report)
