"""A disk fails or is full under load: acknowledged messages are stored, reads continue, and a restart repairs it.

A full disk needs no restart.

Processes and real files. The faults are a full file system, and one failing write or fdatasync of the log.
"""

from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient
from tests.chaos import volumes
from tests.chaos.audit import Audit
from tests.chaos.history_follower import HistoryFollower
from tests.chaos.system import Child, SystemUnderTest, complaint

from lanemq.checker.verdict import Verdict
from lanemq.wire.codes import ResponseCode

pytestmark = pytest.mark.slow

QUEUES = 4


def refuses_sends(system: SystemUnderTest) -> bool:
    with RawClient(system.address) as raw:
        runtime = raw.runtime()
        return runtime["laneReadOnly"] != "false" or runtime["lanePaused"] != "false"


def work_until_refused(
    system: SystemUnderTest, without: list[str], file_bytes: int | None = None, **settings: object
) -> tuple[Child, Audit]:
    """Starts a broker, a producer and a consumer; returns when the broker accepts no more messages, or none for now."""
    broker = system.broker(without, default_queues=QUEUES, file_bytes=file_bytes)
    follower = HistoryFollower(system.history)
    system.producer("p", keys=20, ahead=100, **settings)
    system.until("something is stored", lambda: follower.read().acked.total() > 0)
    system.consumer("a")
    system.until("the broker refuses sends", lambda: refuses_sends(system))
    return broker, Audit(follower, QUEUES)


def check_acknowledged_is_readable(
    system: SystemUnderTest, audit: Audit, code: int = ResponseCode.SERVICE_NOT_AVAILABLE
) -> None:
    """The group consumes everything, and new sends are refused with a reason."""
    audit.look(system.address)
    assert audit.stored > 0
    with RawClient(system.address) as raw:
        refused = raw.send("orders", bytes(1 << 20))
        assert refused.code == code
        assert refused.remark


def restart_and_finish(system: SystemUnderTest, broker: Child, audit: Audit) -> None:
    """After the fault, everything acknowledged is there, and more can be sent and consumed."""
    follower = audit._follower
    for child in system.children("p"):
        system.kill(child)
    system.until("what was acknowledged is done", lambda: not follower.read().undone, 60)
    system.kill(broker)
    broker = system.broker(default_queues=QUEUES)
    producer = system.producer("q", keys=20, count=200)
    system.until("the second producer is done", lambda: not producer.alive, 60)
    assert follower.read().acked["q"] == 200
    system.until("everything is done", lambda: not follower.read().undone, 60)
    audit.look(system.address)
    system.finish(*system.children("a"))
    system.finish(broker)


def judge(system: SystemUnderTest) -> None:
    system.dump_log()
    report = system.judge("acked=200")
    assert report.verdict is Verdict.PASS, complaint(report)


@pytest.mark.parametrize("fault", ["failing_write", "failing_sync"])
def test_after_a_failed_write_or_sync_acknowledged_is_stored_and_a_restart_repairs(
    system: SystemUnderTest, fault: str
) -> None:
    broker, audit = work_until_refused(system, [fault], pause_ms=1)
    check_acknowledged_is_readable(system, audit)
    restart_and_finish(system, broker, audit)
    judge(system)


def test_when_the_log_may_not_grow_acknowledged_is_stored_and_a_restart_repairs(system: SystemUnderTest) -> None:
    """Like a full disk, but without root: the kernel refuses a write beyond the limit."""
    broker, audit = work_until_refused(system, [], file_bytes=1 << 20)
    check_acknowledged_is_readable(system, audit, ResponseCode.SYSTEM_BUSY)
    assert max(path.stat().st_size for path in (system.data / "log").iterdir()) <= 1 << 20
    restart_and_finish(system, broker, audit)
    judge(system)


def test_on_a_full_disk_acknowledged_is_stored_and_sends_go_on_by_themselves(
    system: SystemUnderTest, tmp_path: Path
) -> None:
    with volumes.in_memory(tmp_path / "data", 64) as disk:
        with volumes.filled(disk, left=9 << 20):  # sends stop below 6.4 MiB
            broker, audit = work_until_refused(system, [])
            check_acknowledged_is_readable(system, audit, ResponseCode.SYSTEM_BUSY)
        stored = audit.stored
        system.until(
            "more is stored without a restart", lambda: audit._follower.read().acked.total() > stored + 100, 60
        )
        restart_and_finish(system, broker, audit)
        judge(system)
