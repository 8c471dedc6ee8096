"""Data folders that earlier versions wrote: every one starts, with its messages, offsets, topics and epochs.

`folders/` has one archive for each version and way to end: `killed` is the image of a kill, `stopped` of a clean stop.
They are never written anew. Add one for every release, and for every change of the layout before it.
"""

import tarfile
from pathlib import Path

import pytest
from tests.broker.raw_client import bodies
from tests.broker.running import RunningBroker

from lanemq.log.folder import backup
from lanemq.log.folder.examination import examine
from lanemq.log.state import database
from lanemq.log.state.database import VERSION

FOLDERS = Path(__file__).with_name("folders")
ARCHIVES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDERS.glob("*.tar.xz"))


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(FOLDERS / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def check_contents(data: Path) -> None:
    """A broker on the folder has everything, and takes more."""
    running = RunningBroker(data, segment_bytes=64 * 1024)
    try:
        raw = running.connect()
        for queue in range(4):
            found = [int(body.rstrip(b"\0")) for body in bodies(raw.read("T", queue=queue))]
            assert found[:10] == list(range(queue, 40, 4))
        assert raw.committed() == 5
        (lease,) = raw.lane_lock("another", millis=500, queues=(1,)).lane_leases
        assert lease.epoch >= 1
        assert "ordered" in running.broker.running.parts.state.topics()
        assert raw.send("T", b"40", queue=0).code == 0
    finally:
        running.stop()


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_folder_of_an_earlier_version_starts_with_everything(tmp_path: Path, name: str) -> None:
    data = unpacked(name, tmp_path / "data")
    before = examine(data, scan=True)
    assert before.state_problem is None
    assert before.layout is not None
    assert before.layout <= VERSION
    for _ in range(2):
        check_contents(data)
    assert examine(data).layout == VERSION


@pytest.mark.parametrize("name", ["0.1.0-killed", "layout-3-stopped"])
def test_a_backup_that_an_earlier_version_made_is_restored_with_everything(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = unpacked(name, tmp_path / "old")
    layout = examine(data).layout
    with monkeypatch.context() as earlier:
        for module in (database, backup):
            earlier.setattr(module, "VERSION", layout)
        assert backup.back_up(data, tmp_path / "backup", made_at=1_000, version="earlier").layout == layout
    backup.restore(tmp_path / "backup", tmp_path / "data", now=1_000)
    check_contents(tmp_path / "data")
    assert examine(tmp_path / "data").layout == VERSION


def test_there_is_a_folder_of_the_last_release_and_of_the_layout_before_this_one(tmp_path: Path) -> None:
    """A change of `VERSION` comes with a folder that the code before it has written."""
    assert {"0.1.0-killed", "0.1.0-stopped"} <= {*ARCHIVES}
    layouts = {examine(unpacked(name, tmp_path / name)).layout for name in ARCHIVES}
    assert VERSION - 1 in layouts
