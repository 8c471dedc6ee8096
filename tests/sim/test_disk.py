"""The simulated disk loses what a real one may lose, and nothing that was synced."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.log.filesystem import write_fully
from lanemq.log.state.database import State
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.testing.sim.disk import SimDisk, SimState, StateImage
from lanemq.testing.sim.trace import Trace

Make = Callable[[int], SimDisk]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda seed: SimDisk(Random(seed), Trace(lambda: 0.0, str(tmp_path)))


def write_file(disk: SimDisk, path: Path, *parts: bytes, synced: bool) -> None:
    fd = disk.create(path)
    at = 0
    for part in parts:
        write_fully(disk, fd, part, at)
        at += len(part)
    if synced:
        disk.fdatasync(fd)
        disk.fsync_dir(path.parent)
    disk.close(fd)


def test_what_was_synced_survives_a_power_cut(make: Make, tmp_path: Path) -> None:
    disk = make(1)
    write_file(disk, tmp_path / "a", b"one", b"two", synced=True)
    assert disk.lose_power() == 0
    assert (tmp_path / "a").read_bytes() == b"onetwo"


def test_any_sectors_of_unsynced_writes_may_survive(make: Make, tmp_path: Path) -> None:
    """Also later ones without earlier ones. Missing ones read as zeros, and synced bytes are untouched."""
    kept = set()
    for seed in range(150):
        disk, path = make(seed), tmp_path / f"{seed}"
        write_file(disk, path, b"s" * 500, synced=True)
        fd = disk.open(path)
        write_fully(disk, fd, b"a" * 12 + b"b" * 512 + b"c" * 512, 500)
        disk.close(fd)
        disk.lose_power()
        left = path.read_bytes()
        assert left.startswith(b"s" * 500)
        kept.add((left.count(b"a"), left.count(b"b"), left.count(b"c")))
    assert {(0, 512, 512), (12, 0, 512), (12, 512, 0)} < kept


def test_the_beginning_of_an_unsynced_write_may_survive(make: Make, tmp_path: Path) -> None:
    """All of it, nothing, or a part of it, perhaps with a flipped bit; never anything else."""
    seen, flipped = set(), 0
    for seed in range(60):
        disk, path = make(seed), tmp_path / f"{seed}"
        write_file(disk, path, b"start", synced=True)
        fd = disk.open(path)
        write_fully(disk, fd, b"unsynced", 5)
        disk.close(fd)
        disk.lose_power()
        left = path.read_bytes()
        assert left.startswith(b"start")
        wrong = (int.from_bytes(left, "big") ^ int.from_bytes(b"startunsynced"[: len(left)], "big")).bit_count()
        assert b"startunsynced".startswith(left.rstrip(b"\0")) or wrong == 1
        flipped += wrong == 1
        seen.add(left)
    assert {b"start", b"startunsynced"} < seen
    assert any(left.endswith(b"\0") for left in seen)
    assert flipped


def test_a_file_name_surely_survives_only_if_its_folder_was_synced(make: Make, tmp_path: Path) -> None:
    survived = set()
    for seed in range(20):
        disk, path = make(seed), tmp_path / f"{seed}"
        fd = disk.create(path)
        disk.fdatasync(fd)
        disk.close(fd)
        disk.lose_power()
        survived.add(path.exists())
    assert survived == {True, False}


def test_a_sync_after_a_failed_one_does_not_repair_it(make: Make, tmp_path: Path) -> None:
    """As on Linux: the second call succeeds, and the pages are lost."""
    disk, path = make(1), tmp_path / "a"
    write_file(disk, path, b"old", synced=True)
    fd = disk.open(path)
    write_fully(disk, fd, b"new", 3)
    disk.failing["sync"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)
    assert disk.read_at(fd, 9, 0) == b"oldnew"
    disk.drop_cache(fd)
    assert disk.read_at(fd, 9, 0) == b"old\0\0\0"
    disk.close(fd)
    disk.lose_power()
    assert path.read_bytes() == b"old"


def test_after_a_power_cut_nothing_is_written(make: Make, tmp_path: Path) -> None:
    disk = make(1)
    cuts: list[bool] = []
    disk.on_power_cut = lambda: cuts.append(True)
    disk.cut_after = 2
    fd = disk.create(tmp_path / "a")
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            disk.write_at(fd, memoryview(b"x"), 0)
    assert cuts == [True]
    disk.close(fd)


ROW = SavedOffset("g", MessageQueue("t", "b", 0), QueueOffset(6))


@pytest.fixture
def open_state(make: Make, tmp_path: Path) -> Callable[[StateImage], State]:
    return lambda image: SimState(tmp_path / "state.db", image, make(1))


def test_a_full_commit_survives_and_a_normal_one_may_not(open_state: Callable[[StateImage], State]) -> None:
    kept = set()
    for seed in range(20):
        image = StateImage(Random(seed))
        state = open_state(image)
        ProgressRows(state).save([ROW._replace(offset=QueueOffset(5))], synced=True)
        ProgressRows(state).save([ROW], synced=False)
        state.close()
        image.lose_power()
        after = open_state(image)
        (row,) = ProgressRows(after).offsets()
        kept.add(row.offset)
        after.close()
    assert kept == {5, 6}


def test_a_killed_process_loses_no_commit(open_state: Callable[[StateImage], State]) -> None:
    image = StateImage(Random(1))
    state = open_state(image)
    ProgressRows(state).save([ROW], synced=False)
    state.close()
    after = open_state(image)
    assert [row.offset for row in ProgressRows(after).offsets()] == [6]
    after.close()
