"""A disk that fails or is full while everybody works: told is stored, the broker goes on reading, a restart heals.

Processes and real files. The faults are a full file system, and one failing write or fdatasync of the log.
"""

from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient
from tests.chaos import volumes
from tests.chaos.audit import Audit
from tests.chaos.diary import Diary
from tests.chaos.stage import Part, Stage, complaint

from lanemq.checker.verdict import Verdict
from lanemq.wire.codes import ResponseCode

pytestmark = pytest.mark.slow

QUEUES = 4


def is_read_only(stage: Stage) -> bool:
    with RawClient(stage.address) as raw:
        return raw.runtime()["laneReadOnly"] not in ("", "false")


def work_until_read_only(
    stage: Stage, without: list[str], file_bytes: int | None = None, **settings: object
) -> tuple[Part, Audit]:
    """A broker, a producer and a consumer; returns when the broker takes nothing more."""
    broker = stage.broker(without, default_queues=QUEUES, file_bytes=file_bytes)
    diary = Diary(stage.history)
    stage.producer("p", keys=20, ahead=100, **settings)
    stage.until("something is stored", lambda: diary.read().acked.total() > 0)
    stage.consumer("a")
    stage.until("the broker is read-only", lambda: is_read_only(stage))
    return broker, Audit(diary, QUEUES)


def check_told_is_readable(stage: Stage, audit: Audit) -> None:
    """And more: the group goes on to its end, new sends are refused with a reason."""
    audit.look(stage.address)
    assert audit.stored > 0
    with RawClient(stage.address) as raw:
        refused = raw.send("orders")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark


def restart_and_finish(stage: Stage, broker: Part, audit: Audit) -> None:
    """With the fault gone: everything told is there, and more can be sent and consumed."""
    diary = audit._diary
    for part in stage.parts("p"):
        stage.kill(part)
    stage.until("what was told is done", lambda: not diary.read().undone, 60)
    stage.kill(broker)
    broker = stage.broker(default_queues=QUEUES)
    producer = stage.producer("q", keys=20, count=200)
    stage.until("the second producer is done", lambda: not producer.alive, 60)
    assert diary.read().acked["q"] == 200
    stage.until("everything is done", lambda: not diary.read().undone, 60)
    audit.look(stage.address)
    stage.finish(*stage.parts("a"))
    stage.finish(broker)


def judge(stage: Stage) -> None:
    stage.dump_log()
    report = stage.judge("acked=200")
    assert report.verdict is Verdict.PASS, complaint(report)


@pytest.mark.parametrize("fault", ["failing_write", "failing_sync"])
def test_after_a_failed_write_or_sync_told_is_stored_and_a_restart_heals(stage: Stage, fault: str) -> None:
    broker, audit = work_until_read_only(stage, [fault], pause_ms=1)
    check_told_is_readable(stage, audit)
    restart_and_finish(stage, broker, audit)
    judge(stage)


def test_when_the_log_may_not_grow_told_is_stored_and_room_and_a_restart_heal(stage: Stage) -> None:
    """As a full disk, on any machine and without root: the kernel refuses the write that would pass the limit."""
    broker, audit = work_until_read_only(stage, [], file_bytes=1 << 20)
    check_told_is_readable(stage, audit)
    assert max(path.stat().st_size for path in (stage.data / "log").iterdir()) <= 1 << 20
    restart_and_finish(stage, broker, audit)
    judge(stage)


def test_on_a_full_disk_told_is_stored_and_room_and_a_restart_heal(stage: Stage, tmp_path: Path) -> None:
    with volumes.in_memory(tmp_path / "data", 2):
        broker, audit = work_until_read_only(stage, [])
        check_told_is_readable(stage, audit)
        volumes.enlarge(tmp_path / "data", 64)
        restart_and_finish(stage, broker, audit)
        judge(stage)
