"""A consumer stands still for longer than its lease (a long pause, a swapped-out machine) and then goes on.

It cannot know what happened meanwhile. Its lease tells it to stop; if it does not, its epoch gives it away.
"""

import contextlib
import signal
import sqlite3
from collections.abc import Sequence

import pytest
from tests.chaos.stage import Part, Stage, complaint

from lanemq.checker.verdict import Verdict

pytestmark = pytest.mark.slow


def freeze_and_thaw(stage: Stage, *, broker: Sequence[str] = (), member: Sequence[str] = ()) -> Part:
    """`a` is frozen until `b` works on all its queues, then goes on; returns `a`, thawed, under load."""
    stage.broker(broker, default_queues=4)
    stage.producer(pause_ms=3, keys=10)
    stage.until("something is stored", lambda: stage.seen("acked"))
    settings = {"work_ms": 10, "sink": str(stage.folder / "sink.db")}
    a = stage.consumer("a", member, **settings)
    stage.consumer("b", **settings)
    stage.until("both work", lambda: {"a", "b"} == set(stage.owners().values()) and len(stage.seen("turn", "a")) > 20)
    lost = {queue for queue, owner in stage.owners().items() if owner == "a"}
    freeze_outside_the_sink(stage, a)
    frozen_at = stage.seen("fault")[-1]["t"]
    stage.until(
        "b works on the queues of a", lambda: lost <= {e["queue"] for e in stage.seen("turn", "b", after=frozen_at)}
    )
    stage.until("b has committed", lambda: lost <= {e["queue"] for e in stage.seen("committed", "b", after=frozen_at)})
    stage.thaw(a)
    return a


def freeze_outside_the_sink(stage: Stage, part: Part) -> None:
    """A process frozen inside a transaction would hold up everybody; that is the database's story, not ours.

    Exclusive: who begins a transaction holds the lock of a reader first, and that alone keeps writers from committing.
    """
    with contextlib.closing(sqlite3.connect(stage.folder / "sink.db", timeout=0.2, isolation_level=None)) as table:
        for _ in range(50):
            part.stop()
            try:
                table.execute("BEGIN EXCLUSIVE")
                table.execute("ROLLBACK")
            except sqlite3.OperationalError:
                part.signal(signal.SIGCONT)
            else:
                stage.frozen(part)
                return
    pytest.fail(f"{part.name} is always inside a transaction")


def test_a_frozen_owner_wakes_without_harm_and_its_rival_goes_on(stage: Stage) -> None:
    freeze_and_thaw(stage)
    thawed_at = stage.seen("fault")[-1]["t"]
    ends = ("commit_refused", "lease_expired", "lease_released")
    stage.until("a noticed", lambda: any(stage.seen(kind, "a", after=thawed_at) for kind in ends))
    stage.until("a works again", lambda: len(stage.seen("turn", "a", after=thawed_at)) > 20)
    stage.until("b still works", lambda: len(stage.seen("turn", "b", after=thawed_at)) > 20)
    report = stage.judge("faults=2", "rebalance", "effects", drained=False)
    assert report.verdict is Verdict.PASS, complaint(report)


@pytest.mark.row("A43")
def test_an_owner_that_ignores_its_lease_is_refused_by_its_epoch(stage: Stage) -> None:
    """The broker's own line of defence: this member neither looks at its lease nor hears that it was lost."""
    freeze_and_thaw(stage, member=["lease_news"])
    thawed_at = stage.seen("fault")[-1]["t"]
    stage.until("its commit is refused", lambda: stage.seen("commit_refused", "a", after=thawed_at))
    refused = stage.seen("commit_refused", "a", after=thawed_at)[0]
    newest = max(e["epoch"] for e in stage.seen("committed", "b") if e["queue"] == refused["queue"])
    assert 0 < refused["epoch"] < newest
    # With a new grant it would be an owner again, and its commits would be accepted.
    granted = {(e["topic"], e["queue"], e["epoch"]) for e in stage.seen("lease_granted", "a")}
    assert {(e["topic"], e["queue"], e["epoch"]) for e in stage.seen("committed", "a")} <= granted
    report = stage.judge("faults=2", drained=False)
    assert "C3" not in report.counts, complaint(report)
    assert "P2" not in report.counts, complaint(report)


def test_without_the_epoch_check_a_stale_commit_is_taken_and_the_checker_says_so(stage: Stage) -> None:
    """Negative control: the same member and a broker that believes everybody."""
    a = freeze_and_thaw(stage, broker=["epoch_check"], member=["lease_news"])
    thawed_at = stage.seen("fault")[-1]["t"]
    stage.until("its commit is taken", lambda: stage.seen("committed", "a", after=thawed_at), alive=a)
    report = stage.judge("faults=2", drained=False)
    assert report.verdict is Verdict.VIOLATION
    assert {"C3", "D1"} & report.counts.keys(), complaint(report)
