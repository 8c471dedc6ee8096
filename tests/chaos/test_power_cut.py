"""Power cuts on a real file system: the broker's disk is an image file, and a cut is a copy of that file under load.

The copy holds what had reached the device and nothing that was only in memory, as a disk does when the power goes.
The broker stands still while it is copied, so that the copy is one moment. It is mounted elsewhere and recovered:
everything acknowledged before that moment must be there, in order. `LANEMQ_POWER_CUTS` asks for more cuts.
"""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.chaos import volumes
from tests.chaos.history_follower import HistoryFollower, Place
from tests.chaos.system import Child, SystemUnderTest, stored_records

from lanemq.log.store import Store

pytestmark = pytest.mark.slow

CUTS = int(os.environ.get("LANEMQ_POWER_CUTS", "5"))
QUEUES = 4
MEBIBYTES = 48


def recovered(copy: Path, folder: Path) -> dict[Place, tuple[str, int, str]]:
    """Key, step and message id of everything that recovery finds in the copy."""
    found: dict[Place, tuple[str, int, str]] = {}
    with volumes.image(copy, folder / "after"):
        store = Store(folder / "after" / "data")
        store.recover()
        for queue in range(QUEUES):
            for record in stored_records(store, queue):
                names = record.properties
                step = json.loads(record.body)["step"]
                found[queue, record.queue_offset] = names["__SHARDINGKEY"], step, names["UNIQ_KEY"]
        store.close()
    return found


def has_acked(follower: HistoryFollower, enough: int) -> bool:
    return follower.read().acked.total() > enough


def cut(
    system: SystemUnderTest, broker: Child, follower: HistoryFollower
) -> tuple[dict[Place, str], dict[Place, tuple[str, int, str]]]:
    """What was acknowledged so far, and what a power cut now would leave. The broker continues."""
    copy = system.folder / "copy.img"
    broker.stop()
    acknowledged = dict(follower.read().news)
    shutil.copyfile(system.folder / "disk.img", copy)
    found = recovered(copy, system.folder)
    broker.signal(signal.SIGCONT)
    return acknowledged, found


def lost(acknowledged: dict[Place, str], found: dict[Place, tuple[str, int, str]]) -> list[Place]:
    return [place for place, name in acknowledged.items() if place not in found or found[place][2] != name]


def start(system: SystemUnderTest, without: list[str], **options: object) -> tuple[Child, HistoryFollower]:
    system.data = system.folder / "before" / "data"
    broker = system.broker(without, default_queues=QUEUES, **options)
    follower = HistoryFollower(system.history)
    system.producer("p", keys=40, ahead=300, pause_ms=1)
    return broker, follower


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return volumes.make_image(tmp_path / "disk.img", MEBIBYTES)


@pytest.mark.timeout(300 + 60 * CUTS)
def test_a_power_cut_loses_nothing_that_was_acknowledged(system: SystemUnderTest, disk: Path) -> None:
    with volumes.image(disk, system.folder / "before"):
        broker, follower = start(system, [])
        seen = 0
        for number in range(CUTS):
            enough = follower.read().acked.total() + 100 + 37 * number % 150
            system.until("messages flow", partial(has_acked, follower, enough))
            acknowledged, found = cut(system, broker, follower)
            assert not lost(acknowledged, found), lost(acknowledged, found)[:5]
            steps: dict[str, int] = {}
            for _, (key, step, _) in sorted(found.items()):
                assert step == steps.get(key, -1) + 1, f"key {key} jumps to step {step}"
                steps[key] = step
            seen = len(acknowledged)
        for child in system.children("p", "broker"):
            system.kill(child)
    print(json.dumps({"cuts": CUTS, "acknowledged before the last": seen}))
    assert seen > 100 * CUTS


def test_a_broker_that_does_not_sync_loses_acknowledged_messages_in_a_power_cut(
    system: SystemUnderTest, disk: Path
) -> None:
    """Negative control of broker and method: what was not synced is not in the copy."""
    with volumes.image(disk, system.folder / "before"):
        broker, follower = start(system, ["sync_before_ack"])
        for _ in range(5):
            enough = follower.read().acked.total() + 200
            system.until("messages flow", partial(has_acked, follower, enough))
            missing = lost(*cut(system, broker, follower))
            if missing:
                break
        for child in system.children("p", "broker"):
            system.kill(child)
    assert missing
