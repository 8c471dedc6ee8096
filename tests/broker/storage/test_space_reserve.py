"""On a disk that other programs have filled, rows are saved in space that was reserved for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient, bodies, lock_body
from tests.broker.running import ManualClock, RunningBroker
from tests.chaos import volumes

from lanemq.broker.housekeeping import RESERVE_EVERY_MS
from lanemq.log.state.space_reserve import MAX_RESERVE_BYTES, SpaceReserve, reserve_bytes
from lanemq.model.errors import LogInUse, StorageError
from lanemq.wire.codes import RequestCode, ResponseCode

MEBIBYTES = 64
RESET = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker with default settings on a small disk, which has just started."""
    with volumes.in_memory(tmp_path / "disk", MEBIBYTES) as disk:
        made = RunningBroker(disk / "data", clock=ManualClock())
        made.connect().create("T", 4)
        yield made
        made.stop()


def reserved(running: RunningBroker) -> int:
    """Bytes of the disk that the reserve takes."""
    path = running.options.data / "reserve"
    return path.stat().st_blocks * 512 if path.exists() else 0


def answers(raw: RawClient) -> list[int]:
    """Of new locks and of a reset, which are all saved before they are answered."""
    asked = [raw.post(RequestCode.LOCK_BATCH_MQ, {}, lock_body("c", "T", (0, 1, 2, 3), f"g{n}")) for n in range(100)]
    asked.append(raw.post(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET))
    return [raw.answer(each).code for each in asked]


def test_locks_and_resets_go_on_although_other_programs_have_filled_the_disk(running: RunningBroker) -> None:
    raw = running.connect()
    assert raw.send("T", b"stored").code == 0
    assert reserved(running) >= reserve_bytes((MEBIBYTES << 20) // 10) > 1 << 20
    with volumes.filled(running.options.data.parent):
        running.advance(50)
        assert raw.send("T").code == ResponseCode.SYSTEM_BUSY
        assert answers(raw) == [0] * 101
        assert reserved(running) == 0
        assert bodies(raw.read("T")) == [b"stored"]
    running.advance(RESERVE_EVERY_MS)
    assert raw.send("T").code == 0
    assert reserved(running) > 1 << 20, "there is room again"


def test_a_start_on_a_full_disk_uses_the_reserve(running: RunningBroker) -> None:
    assert running.connect().send("T", b"stored").code == 0
    running.stop()
    (running.options.data / "lock").unlink()  # it can be missing, and is written before the reserve is released
    with volumes.filled(running.options.data.parent):
        running.restart()
        raw = running.connect()
        assert bodies(raw.read("T")) == [b"stored"]
        assert answers(raw) == [0] * 101
        assert reserved(running) == 0


def test_a_start_after_a_kill_on_a_full_disk_uses_the_reserve(running: RunningBroker) -> None:
    """It must write a checkpoint."""
    assert running.connect().send("T", b"stored").code == 0
    crashed = running.crash_image(running.options.data.parent / "crashed")
    running.stop()
    with volumes.filled(crashed.parent):
        again = RunningBroker(crashed)
        try:
            raw = again.connect()
            assert bodies(raw.read("T")) == [b"stored"]
            assert answers(raw) == [0] * 101
        finally:
            again.stop()


def test_a_start_that_is_refused_leaves_the_reserve_to_the_broker_that_has_it(running: RunningBroker) -> None:
    def files() -> dict[str, tuple[int, int]]:
        found = ((path, path.stat()) for path in running.options.data.rglob("*"))
        return {path.name: (stat.st_size, stat.st_mtime_ns) for path, stat in found}

    with volumes.filled(running.options.data.parent):
        before = files()
        with pytest.raises(LogInUse, match="is used by another broker"):
            RunningBroker(running.options.data)
        assert files() == before
        assert answers(running.connect()) == [0] * 101, "the running broker needs the reserve, and has it"
    assert "reserve" in before


def test_a_disk_that_is_too_small_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with volumes.in_memory(tmp_path / "disk", 3) as disk:
        with pytest.raises(
            StorageError, match="has 3 MiB, and a broker needs 16 MiB or more: choose a folder on a larger"
        ):
            RunningBroker(disk / "data")
        assert list(disk.iterdir()) == []


def test_control_without_the_reserve_they_are_refused(running: RunningBroker) -> None:
    raw = running.connect()
    running.broker.running.housekeeping._space_reserve.held = False  # so that it is not released
    with volumes.filled(running.options.data.parent):
        assert ResponseCode.SYSTEM_BUSY in answers(raw)


def test_the_reserve_is_a_part_of_the_watermark_and_needs_one() -> None:
    assert reserve_bytes(512 << 20) == MAX_RESERVE_BYTES
    assert reserve_bytes(4 << 20) == 1 << 20
    assert reserve_bytes(0) == 0


def test_a_reserve_that_does_not_fit_is_not_taken(tmp_path: Path) -> None:
    with volumes.in_memory(tmp_path / "disk", 1) as disk:
        reserve = SpaceReserve(disk)
        reserve.take(2 << 20)
        assert (reserve.held, reserve.release(), list(disk.iterdir())) == (False, False, [])
        reserve.take(1 << 19)
        assert SpaceReserve(disk).held, "also after a restart"
        assert reserve.release()
