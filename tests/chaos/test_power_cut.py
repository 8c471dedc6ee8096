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
from tests.chaos.diary import Diary, Place
from tests.chaos.stage import Part, Stage, stored_records

from lanemq.log.store import Store

pytestmark = pytest.mark.slow

CUTS = int(os.environ.get("LANEMQ_POWER_CUTS", "5"))
QUEUES = 4
MEBIBYTES = 48


def recovered(copy: Path, folder: Path) -> dict[Place, tuple[str, int, str]]:
    """Key, step and message id of everything a recovery of the copy finds."""
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


def has_acked(diary: Diary, enough: int) -> bool:
    return diary.read().acked.total() > enough


def cut(stage: Stage, broker: Part, diary: Diary) -> tuple[dict[Place, str], dict[Place, tuple[str, int, str]]]:
    """What was acknowledged until now, and what a cut at this moment leaves. The broker goes on afterwards."""
    copy = stage.folder / "copy.img"
    broker.stop()
    told = dict(diary.read().news)
    shutil.copyfile(stage.folder / "disk.img", copy)
    found = recovered(copy, stage.folder)
    broker.signal(signal.SIGCONT)
    return told, found


def lost(told: dict[Place, str], found: dict[Place, tuple[str, int, str]]) -> list[Place]:
    return [place for place, name in told.items() if place not in found or found[place][2] != name]


def start(stage: Stage, without: list[str], **options: object) -> tuple[Part, Diary]:
    stage.data = stage.folder / "before" / "data"
    broker = stage.broker(without, default_queues=QUEUES, **options)
    diary = Diary(stage.history)
    stage.producer("p", keys=40, ahead=300, pause_ms=1)
    return broker, diary


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return volumes.make_image(tmp_path / "disk.img", MEBIBYTES)


@pytest.mark.timeout(300 + 60 * CUTS)
def test_a_power_cut_takes_nothing_that_was_acknowledged(stage: Stage, disk: Path) -> None:
    with volumes.image(disk, stage.folder / "before"):
        broker, diary = start(stage, [])
        seen = 0
        for number in range(CUTS):
            enough = diary.read().acked.total() + 100 + 37 * number % 150
            stage.until("messages flow", partial(has_acked, diary, enough))
            told, found = cut(stage, broker, diary)
            assert not lost(told, found), lost(told, found)[:5]
            steps: dict[str, int] = {}
            for _, (key, step, _) in sorted(found.items()):
                assert step == steps.get(key, -1) + 1, f"key {key} jumps to step {step}"
                steps[key] = step
            seen = len(told)
        for part in stage.parts("p", "broker"):
            stage.kill(part)
    print(json.dumps({"cuts": CUTS, "acknowledged before the last": seen}))
    assert seen > 100 * CUTS


def test_a_broker_that_does_not_sync_loses_acknowledged_messages_in_a_power_cut(stage: Stage, disk: Path) -> None:
    """Negative control, of the broker and of the method: what was not synced is not in the copy."""
    with volumes.image(disk, stage.folder / "before"):
        broker, diary = start(stage, ["sync_before_ack"])
        for _ in range(5):
            enough = diary.read().acked.total() + 200
            stage.until("messages flow", partial(has_acked, diary, enough))
            missing = lost(*cut(stage, broker, diary))
            if missing:
                break
        for part in stage.parts("p", "broker"):
            stage.kill(part)
    assert missing
