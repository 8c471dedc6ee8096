"""One writer of progress: changes reach the disk in the order of the decisions, whatever fails and whoever waits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.running import ManualClock

from lanemq.broker.storage.progress_keeper import AFTER_FAILURE_MS, OFFSETS_EVERY_MS, ProgressKeeper, nothing
from lanemq.core.brokering.progress_store import ProgressChange
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import CommitKind, LaneName
from lanemq.core.lane_status import Failure
from lanemq.log.state.database import State
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("t", "b", 0)


class Disk(ProgressRows):
    """Rows in memory, and the thread that writes them, which waits for `run`."""

    def __init__(self) -> None:
        super().__init__(State(Path(":memory:")))
        self.fails = False
        self.jobs: list[tuple[Callable[[], object], Callable[[object, StorageError | None], None]]] = []

    def submit(self, job: Callable[[], object], done: Callable[[object, StorageError | None], None]) -> None:
        self.jobs.append((job, done))

    def save(self, changes: Sequence[ProgressChange], *, synced: bool) -> None:
        if self.fails:
            raise StorageError("as asked")
        super().save(changes, synced=synced)

    def run(self) -> None:
        """One write, and its outcome."""
        job, done = self.jobs.pop(0)
        try:
            job()
        except StorageError as error:
            done(None, error)
        else:
            done(None, None)

    @property
    def stored(self) -> list[int]:
        return [row.offset for row in self.offsets()]


class Kept:
    def __init__(self) -> None:
        self.disk, self.clock, self.table = Disk(), ManualClock(), ProgressTable(serial=1)
        everything: Any = self.disk
        self.keeper = ProgressKeeper(self.table, self.disk, everything, everything, self.clock)

    def commit(self, offset: int) -> None:
        self.table.at("g", Q).commit(QueueOffset(offset), kind=CommitKind.FORWARD)

    def park(self, offset: int, then: Callable[[StorageError | None], None] = nothing) -> None:
        parked = self.table.at("g", Q).park("k", [offset], Failure("broken", 1), now=Millis(1))
        self.keeper.save_lane(LaneName("g", Q, "k"), then, chunks=parked.rows)

    def later(self, millis: int = OFFSETS_EVERY_MS) -> None:
        self.clock.passed += millis
        self.keeper.tick(self.clock.now())


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_offsets_are_written_some_time_later_and_lanes_at_once(kept: Kept) -> None:
    kept.commit(5)
    kept.keeper.tick(kept.clock.now())
    assert kept.disk.jobs == []
    kept.park(3)
    kept.disk.run()
    assert (kept.disk.stored, len(kept.disk.lanes())) == ([], 1)
    kept.later()
    kept.disk.run()
    assert kept.disk.stored == [5]


def test_a_deletion_and_rows_keep_their_order(kept: Kept) -> None:
    """The group begins again, with the same offset, while the row from before its deletion is being written."""
    kept.commit(5)
    kept.later()
    kept.keeper.forget_group("g")
    kept.commit(5)
    kept.later()
    kept.disk.run()
    assert kept.disk.stored == [5]
    kept.later()
    kept.disk.run()
    assert (kept.disk.jobs, kept.disk.stored) == ([], [5])
    kept.keeper.forget_topic("t")
    kept.disk.run()
    assert kept.disk.stored == []


def test_offsets_are_written_although_lanes_change_all_the_time(kept: Kept) -> None:
    kept.park(1)
    kept.commit(5)
    kept.park(2)
    kept.later()
    kept.disk.run()
    kept.disk.run()
    assert (kept.disk.stored, kept.disk.jobs) == ([5], [])


def test_after_a_failed_write_everything_is_written_again(kept: Kept) -> None:
    outcomes: list[StorageError | None] = []
    kept.commit(5)
    kept.clock.passed += OFFSETS_EVERY_MS
    kept.disk.fails = True
    kept.park(1, outcomes.append)
    kept.disk.run()
    assert str(outcomes[0]) == "as asked"
    kept.keeper.settled(outcomes.append)
    kept.disk.run()
    assert outcomes[1] is not None, "what is decided is not on disk"
    kept.later()
    assert kept.disk.jobs == [], "not at once"
    kept.disk.fails = False
    kept.later(AFTER_FAILURE_MS)
    kept.disk.run()
    assert (kept.disk.stored, len(kept.disk.lanes())) == ([5], 1)
    kept.keeper.settled(outcomes.append)
    assert outcomes[2] is None


def test_a_broker_that_was_renamed_keeps_its_progress(kept: Kept) -> None:
    kept.commit(5)
    kept.park(1)
    kept.keeper.save_now()
    kept.disk.name_broker("other")
    restarted = ProgressTable(serial=2)
    restarted.restore(kept.disk.offsets(), kept.disk.lanes())
    progress = restarted.at("g", Q._replace(broker="other"))
    assert (progress.offset, list(progress.lanes["k"].offsets)) == (5, [1])
