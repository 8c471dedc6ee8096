"""Data folders that earlier versions wrote: every one starts, with its messages, offsets, topics and epochs.

`folders/` has one archive for each version and way to end: `killed` is the image of a kill, `stopped` of a clean stop.
They are never written anew. Add one for every release, and for every change of the layout before it.
"""

import tarfile
from pathlib import Path

import pytest
from tests.broker.raw_client import bodies
from tests.broker.running import RunningBroker

from lanemq.log.examination import examine
from lanemq.log.state import VERSION

FOLDERS = Path(__file__).with_name("folders")
ARCHIVES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDERS.glob("*.tar.xz"))


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_folder_of_an_earlier_version_starts_with_everything(tmp_path: Path, name: str) -> None:
    with tarfile.open(FOLDERS / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    before = examine(tmp_path / "data", scan=True)
    assert before.state_problem is None
    assert before.layout is not None
    assert before.layout <= VERSION
    for _ in range(2):
        running = RunningBroker(tmp_path / "data", segment_bytes=64 * 1024)
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
    assert examine(tmp_path / "data").layout == VERSION


def test_there_are_folders() -> None:
    assert {"0.1.0-killed", "0.1.0-stopped"} <= {*ARCHIVES}
