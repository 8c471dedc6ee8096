"""A consumer is frozen for longer than its lease and then continues.

Its lease tells it to stop. If it does not, the broker refuses it by its epoch.
"""

import contextlib
import signal
import sqlite3
from collections.abc import Sequence

import pytest
from tests.chaos.system import Child, SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow


def freeze_and_thaw(system: SystemUnderTest, *, broker: Sequence[str] = (), member: Sequence[str] = ()) -> Child:
    """Freezes `a` until `b` works on all its queues; returns `a`, thawed, under load."""
    system.broker(broker, default_queues=4)
    system.producer(pause_ms=3, keys=10)
    system.until("something is stored", lambda: system.seen("acked"))
    settings = {"work_ms": 10, "sink": str(system.folder / "sink.db")}
    a = system.consumer("a", member, **settings)
    system.consumer("b", **settings)
    system.until(
        "both work", lambda: {"a", "b"} == set(system.owners().values()) and len(system.seen("turn", "a")) > 20
    )
    lost = {queue for queue, owner in system.owners().items() if owner == "a"}
    freeze_outside_the_sink(system, a)
    frozen_at = system.seen("fault")[-1]["t"]
    system.until(
        "b works on the queues of a", lambda: lost <= {e["queue"] for e in system.seen("turn", "b", after=frozen_at)}
    )
    system.until(
        "b has committed", lambda: lost <= {e["queue"] for e in system.seen("committed", "b", after=frozen_at)}
    )
    system.thaw(a)
    return a


def freeze_outside_the_sink(system: SystemUnderTest, child: Child) -> None:
    """Freezes a process outside of a transaction, in which it would block all other writers of the table.

    An exclusive lock shows this: even a reader's lock would keep writers from committing.
    """
    with contextlib.closing(sqlite3.connect(system.folder / "sink.db", timeout=0.2, isolation_level=None)) as table:
        for _ in range(50):
            child.stop()
            try:
                table.execute("BEGIN EXCLUSIVE")
                table.execute("ROLLBACK")
            except sqlite3.OperationalError:
                child.signal(signal.SIGCONT)
            else:
                system.frozen(child)
                return
    pytest.fail(f"{child.name} is always inside a transaction")


def test_a_frozen_owner_wakes_without_harm_and_the_next_owner_continues(system: SystemUnderTest) -> None:
    freeze_and_thaw(system)
    thawed_at = system.seen("fault")[-1]["t"]
    ends = ("commit_refused", "lease_expired", "lease_released")
    system.until("a noticed", lambda: any(system.seen(kind, "a", after=thawed_at) for kind in ends))
    system.until("a works again", lambda: len(system.seen("turn", "a", after=thawed_at)) > 20)
    system.until("b still works", lambda: len(system.seen("turn", "b", after=thawed_at)) > 20)
    report = system.judge("faults=2", "rebalance", "effects", drained=False)
    assert report.verdict is Verdict.PASS, complaint(report)


@pytest.mark.row("A43")
def test_an_owner_that_ignores_its_lease_is_refused_by_its_epoch(system: SystemUnderTest) -> None:
    """This member neither checks its lease nor notices that it was lost, so only the broker can refuse it."""
    freeze_and_thaw(system, member=["lease_news"])
    thawed_at = system.seen("fault")[-1]["t"]
    system.until("its commit is refused", lambda: system.seen("commit_refused", "a", after=thawed_at))
    refused = system.seen("commit_refused", "a", after=thawed_at)[0]
    newest = max(e["epoch"] for e in system.seen("committed", "b") if e["queue"] == refused["queue"])
    assert 0 < refused["epoch"] < newest
    # With a new grant it would be an owner again, and its commits would be accepted.
    granted = {(e["topic"], e["queue"], e["epoch"]) for e in system.seen("lease_granted", "a")}
    assert {(e["topic"], e["queue"], e["epoch"]) for e in system.seen("committed", "a")} <= granted
    report = system.judge("faults=2", drained=False)
    assert "C3" not in report.counts, complaint(report)
    assert "P2" not in report.counts, complaint(report)


def test_without_the_epoch_check_a_stale_commit_is_accepted_and_the_checker_finds_it(system: SystemUnderTest) -> None:
    """Negative control: the same member, and a broker that does not check epochs."""
    a = freeze_and_thaw(system, broker=["epoch_check"], member=["lease_news"])
    thawed_at = system.seen("fault")[-1]["t"]

    def stale() -> bool:
        # A commit that was sent before the freeze may be answered after it, and is no violation.
        return any(each["asked"] > thawed_at for each in system.seen("committed", "a", after=thawed_at))

    system.until("its commit is taken", stale, alive=a)
    report = system.judge("faults=2", drained=False)
    assert report.verdict is Verdict.VIOLATION
    assert {"C3", "D1"} & report.counts.keys(), complaint(report)
