"""Group commit: when callers are answered, and which records share a write."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanemq.broker.storage import group_commit
from lanemq.broker.storage.disk_thread import DiskThread, outcome_of
from lanemq.broker.storage.group_commit import WAITED_FOR, GroupCommit
from lanemq.broker.storage.topic_keeper import TopicRows
from lanemq.clock import SystemClock
from lanemq.core.brokering.refusals import RefusalCounts
from lanemq.log.appender import Pending
from lanemq.log.options import StoreOptions
from lanemq.log.recovery import IntactRecord, scan
from lanemq.log.store import Store
from lanemq.model.errors import DiskFull, StorageError
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.units import Millis
from lanemq.net.serving.loop_slices import SLICE_NS
from lanemq.net.serving.outbox import Outbox
from lanemq.wire.record import NO_HOST, is_marked_synced

ANN, BOB = 1, 2
"""Numbers of peers."""


class ManualThread:
    """A disk thread whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.in_progress = 0

    def submit(
        self, job: Callable[[], object], done: Callable[[object, StorageError | None], None], *, urgent: bool = False
    ) -> None:
        def run() -> None:
            outcome = outcome_of(job)
            self.in_progress -= 1
            done(*outcome)

        self.in_progress += 1
        self.jobs.append(run)

    def submit_rows(
        self, _: object, job: Callable[[], object], done: Callable[[object, StorageError | None], None]
    ) -> None:
        self.submit(job, done)

    def run_all(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class CountedCommits:
    """A group commit over a real store; counts flushes and collects what was acknowledged."""

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool,
        rows: type[TopicRows] = TopicRows,
        kind: type[GroupCommit] = GroupCommit,
        segment_bytes: int = 1 << 20,
    ) -> None:
        self.store = Store(folder, StoreOptions(durable=durable, segment_bytes=segment_bytes))
        self.store.recover()
        self.flushes = 0
        self._flush = self.store.appender.flush
        self.store.appender.flush = self._counted_flush  # type: ignore[method-assign]
        self.thread = ManualThread()
        self.row_thread = ManualThread()
        thread: Any = self.thread
        row_thread: Any = self.row_thread
        self.rows = rows(self.store.state, row_thread)
        self.outbox = Outbox(asyncio.get_running_loop())
        self.commits = kind(
            self.store,
            thread,
            SystemClock(),
            NO_HOST,
            rows=self.rows,
            refusals=RefusalCounts(),
            outbox=self.outbox,
            on_arrivals=lambda _: self._wake_readers(),
            on_undone=lambda _: None,
        )
        self.acknowledged: list[bytes] = []
        self.steps: list[str] = []
        """What follows the acknowledgements of a group: answers that leave, readers that are woken."""

    def _wake_readers(self) -> None:
        self.steps.append("readers woken")
        self.outbox.add(lambda: self.steps.append("answered readers"))

    def _counted_flush(self, pending: Pending, now: Millis | None = None) -> None:
        self.flushes += 1
        self._flush(pending, now)

    def append(self, body: bytes, topic: str = "T") -> None:
        def done(_: StorageError | None) -> None:
            self.acknowledged.append(body)
            self.outbox.add(lambda: self.steps.append(f"answered {body.decode()}"))

        self.commits.append(topic, 0, [(body, b"", 0, 0, 0, 0, 0)], NO_HOST, 1, done)

    def read(self, peer: int, *bodies: bytes, topic: str = "T") -> None:
        """Append as a server does that handles one socket read."""
        self.commits.begin()
        for body in bodies:
            self.append(body, topic)
        self.commits.end(peer)


def on_a_loop(
    folder: Path,
    test: Callable[[CountedCommits], Any],
    *,
    durable: bool = False,
    **more: Any,
) -> None:
    async def run() -> None:
        counted = CountedCommits(folder, durable=durable, **more)
        try:
            await test(counted)
        finally:
            counted.store.close()

    asyncio.run(run())


async def loop_iteration() -> None:
    """Let everything run that was scheduled with `call_soon`."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_a_lone_sender_is_answered_at_the_end_of_its_read(tmp_path: Path) -> None:
    async def test(counted: CountedCommits) -> None:
        counted.read(ANN, b"1")
        await loop_iteration()
        counted.read(ANN, b"2", b"3")
        assert counted.acknowledged == [b"1", b"2", b"3"]
        assert counted.flushes == 2

    on_a_loop(tmp_path, test)


@pytest.mark.parametrize("durable", [True, False])
def test_answers_to_senders_and_to_the_readers_they_wake_are_written_at_once(tmp_path: Path, durable: bool) -> None:
    async def test(counted: CountedCommits) -> None:
        counted.read(ANN, b"1")
        counted.read(BOB, b"2")
        await loop_iteration()
        counted.thread.run_all()
        assert counted.acknowledged == [b"1", b"2"]
        assert counted.steps == ["answered 1", "answered 2", "readers woken", "answered readers"]

    on_a_loop(tmp_path, test, durable=durable)


def test_peers_that_send_at_the_same_time_share_a_write(tmp_path: Path) -> None:
    async def test(counted: CountedCommits) -> None:
        for _ in range(3):
            before = counted.flushes
            counted.read(ANN, b"a")
            counted.read(BOB, b"b")
            await loop_iteration()
            assert counted.flushes == before + 1
        assert counted.acknowledged == [b"a", b"b"] * 3

    on_a_loop(tmp_path, test)


def test_no_sender_is_answered_before_a_durable_write_has_ended(tmp_path: Path) -> None:
    async def test(counted: CountedCommits) -> None:
        counted.read(ANN, b"1")
        await loop_iteration()
        counted.thread.run_all()
        counted.read(ANN, b"2")
        assert (counted.acknowledged, len(counted.thread.jobs)) == ([b"1"], 1)
        counted.read(ANN, b"3")
        await loop_iteration()
        assert (counted.acknowledged, len(counted.thread.jobs)) == ([b"1"], 1)
        counted.thread.run_all()
        assert counted.acknowledged == [b"1", b"2", b"3"]

    on_a_loop(tmp_path, test, durable=True)


def test_a_write_waits_for_earlier_jobs_of_the_log_thread(tmp_path: Path) -> None:
    """Such a job may sync what was written before."""

    async def test(counted: CountedCommits) -> None:
        counted.read(ANN, b"1")
        await loop_iteration()
        counted.thread.submit(lambda: None, lambda *_: None)
        counted.read(ANN, b"2")
        assert counted.acknowledged == [b"1"]
        counted.thread.run_all()
        assert counted.acknowledged == [b"1", b"2"]

    on_a_loop(tmp_path, test)


class WaitsForSyncs(GroupCommit):
    """Writes only while the log thread does nothing."""

    def _may_write_here(self, pending: Pending) -> bool:
        return self._thread.in_progress == 0


class WritesAlways(GroupCommit):
    """Also writes the first records of a new file during a sync."""

    def _may_write_here(self, pending: Pending) -> bool:
        return True


async def acknowledged_during_a_sync(counted: CountedCommits) -> list[bytes]:
    """What is acknowledged while the log thread syncs; everything is afterwards."""
    counted.read(ANN, b"1")
    await loop_iteration()
    counted.thread.run_all()
    counted.commits.sync(lambda _: None)
    counted.read(ANN, b"2" * 3000)
    await loop_iteration()
    early = list(counted.acknowledged)
    counted.thread.run_all()
    await loop_iteration()
    assert counted.acknowledged == [b"1", b"2" * 3000]
    return early


@pytest.mark.parametrize(("kind", "early"), [(GroupCommit, 2), (WaitsForSyncs, 1)])
def test_without_durable_a_send_does_not_wait_for_a_sync(tmp_path: Path, kind: type[GroupCommit], early: int) -> None:
    async def test(counted: CountedCommits) -> None:
        assert len(await acknowledged_during_a_sync(counted)) == early

    on_a_loop(tmp_path, test, kind=kind)


@pytest.mark.parametrize(("kind", "early"), [(GroupCommit, 1), (WritesAlways, 2)])
def test_a_new_file_waits_for_the_sync_of_the_one_before(tmp_path: Path, kind: type[GroupCommit], early: int) -> None:
    """Otherwise a power cut could keep a record of the new file and lose an earlier one."""

    async def test(counted: CountedCommits) -> None:
        counted.read(ANN, b"0" * 3000)
        await loop_iteration()
        counted.thread.run_all()
        counted.acknowledged.clear()
        assert len(await acknowledged_during_a_sync(counted)) == early

    on_a_loop(tmp_path, test, kind=kind, segment_bytes=4096)


async def marked_records(counted: CountedCommits) -> int:
    """How many of 20 records carry the mark of a sync, if each is sent while the disk syncs."""
    counted.read(ANN, b"first")
    await loop_iteration()
    log = counted.store.appender._log
    sync = log._disk.fdatasync

    def fdatasync(fd: int) -> None:
        counted.read(ANN, b"during the sync")
        sync(fd)

    log._disk.fdatasync = fdatasync  # type: ignore[method-assign]
    for _ in range(20):
        counted.commits.sync(lambda _: None)
        counted.thread.run_all()
    log._disk.fdatasync = sync  # type: ignore[method-assign]
    found = [part for part in scan(log, 0) if isinstance(part, IntactRecord)]
    assert len(found) == 21 + 20 // group_commit.WAITED_FOR
    return sum(is_marked_synced(part.buffer, part.start) for part in found[1:])


@pytest.mark.parametrize(("every", "marked"), [(WAITED_FOR, 2), (1000, 0)])
def test_however_busy_a_sender_is_some_records_carry_the_mark_of_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, marked: int
) -> None:
    """Recovery tells damage from a torn end by it. If no sync is waited for, no record does."""
    monkeypatch.setattr(group_commit, "WAITED_FOR", every)

    async def test(counted: CountedCommits) -> None:
        assert await marked_records(counted) == marked

    on_a_loop(tmp_path, test)


def test_writes_wait_for_a_sync_of_what_came_during_the_one_before(tmp_path: Path) -> None:
    """The first one may have a second of a busy sender to take to the disk, and delays nobody."""
    at_once: list[bool] = []

    async def test(counted: CountedCommits) -> None:
        counted.read(ANN, b"first")
        await loop_iteration()
        disk = counted.store.appender._log._disk
        sync = disk.fdatasync

        def fdatasync(fd: int) -> None:
            before = len(counted.acknowledged)
            counted.read(ANN, b"during the sync")
            at_once.append(len(counted.acknowledged) > before)
            sync(fd)

        disk.fdatasync = fdatasync  # type: ignore[method-assign]
        for _ in range(WAITED_FOR):
            counted.commits.sync(lambda _: None)
            counted.thread.run_all()
        disk.fdatasync = sync  # type: ignore[method-assign]

    on_a_loop(tmp_path, test)
    assert at_once == [True] * WAITED_FOR + [False]


class UnorderedRows(TopicRows):
    """Lets no message wait for a row."""

    def needed_by(self, queues: object) -> bool:
        return False


async def first_written(counted: CountedCommits, topic: str) -> list[bytes]:
    """What is acknowledged while the row of the topic `new` waits for the disk, and a message was sent to `topic`."""
    counted.rows.save("new", "{}", lambda _: None)
    counted.read(ANN, b"1", topic=topic)
    await loop_iteration()
    counted.thread.run_all()
    early = list(counted.acknowledged)
    counted.row_thread.run_all()
    counted.thread.run_all()
    assert counted.acknowledged == [b"1"]
    assert counted.store.state.topics() == {"new": "{}"}
    return early


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("topic", ["new", SCHEDULE_TOPIC])
def test_a_message_waits_for_the_row_of_its_topic(tmp_path: Path, topic: str, durable: bool) -> None:
    """A delayed message too, which is stored under another topic."""

    async def test(counted: CountedCommits) -> None:
        assert await first_written(counted, topic) == []

    async def control(counted: CountedCommits) -> None:
        assert await first_written(counted, topic) == [b"1"]

    on_a_loop(tmp_path / "ordered", test, durable=durable)
    on_a_loop(tmp_path / "unordered", control, durable=durable, rows=UnorderedRows)


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_does_not_wait_for_the_rows_of_other_topics(tmp_path: Path, durable: bool) -> None:
    async def test(counted: CountedCommits) -> None:
        assert await first_written(counted, "T") == [b"1"]

    on_a_loop(tmp_path, test, durable=durable)


class ForgetfulRows(TopicRows):
    """Does not keep a row that a full disk did not take."""

    def _save(self, name: str, settings: str) -> None:
        self._state.save_topic(name, settings)


async def rows_after_a_full_disk(counted: CountedCommits) -> dict[str, str]:
    """The rows on disk when a message is stored after a full disk has refused the row of `new`."""
    works, errors = counted.store.state.save_topic, []

    def full(name: str, settings: str) -> None:
        raise DiskFull("as asked")

    counted.store.state.save_topic = full  # type: ignore[method-assign]
    counted.rows.save("new", "{}", errors.append)
    counted.row_thread.run_all()
    counted.read(ANN, b"1")
    await loop_iteration()
    counted.row_thread.run_all()
    counted.thread.run_all()
    assert [type(error) for error in errors] == [DiskFull]
    assert counted.acknowledged == [b"1"], "with an error, or because nothing was left to save"
    counted.store.state.save_topic = works  # type: ignore[method-assign]
    counted.commits.resume()
    counted.read(ANN, b"2")
    await loop_iteration()
    counted.row_thread.run_all()
    rows = counted.store.state.topics()
    counted.thread.run_all()
    assert counted.acknowledged == [b"1", b"2"]
    return rows


def test_a_row_that_a_full_disk_did_not_take_is_saved_before_the_next_message(tmp_path: Path) -> None:
    """Whatever its topic: the disk that took the message took the row."""

    async def test(counted: CountedCommits) -> None:
        assert await rows_after_a_full_disk(counted) == {"new": "{}"}
        assert counted.commits.undone == 1
        assert counted.store.bounds("T", 0) == (0, 1)

    async def control(counted: CountedCommits) -> None:
        assert await rows_after_a_full_disk(counted) == {}

    on_a_loop(tmp_path / "kept", test, durable=True)
    on_a_loop(tmp_path / "forgotten", control, durable=True, rows=ForgetfulRows)


async def flushes_after_a_failed_row(counted: CountedCommits) -> int:
    """How often the log is written after the row of `new` could not be saved, and a message was sent to `new`."""

    def broken(name: str, settings: str) -> None:
        raise StorageError("as asked")

    counted.store.state.save_topic = broken  # type: ignore[method-assign]
    counted.rows.save("new", "{}", lambda error: counted.commits.stop_writing(error or StorageError("none")))
    counted.read(ANN, b"1", topic="new")
    await loop_iteration()
    counted.row_thread.run_all()
    counted.thread.run_all()
    return counted.flushes


def test_a_group_whose_rows_failed_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could outlive its topic."""

    async def test(counted: CountedCommits) -> None:
        assert await flushes_after_a_failed_row(counted) == 0
        assert counted.acknowledged == [b"1"], "with an error"

    async def control(counted: CountedCommits) -> None:
        assert await flushes_after_a_failed_row(counted) == 1

    on_a_loop(tmp_path / "checked", test, durable=True)
    monkeypatch.setattr(
        GroupCommit,
        "_rows_saved",
        lambda self, pending, waiting, _error: self._write_group(pending, waiting),
    )
    on_a_loop(tmp_path / "unchecked", control, durable=True)


@pytest.mark.parametrize("durable", [True, False])
def test_records_appended_outside_a_read_are_committed_in_the_same_loop_iteration(
    tmp_path: Path, durable: bool
) -> None:
    """Delayed messages are appended without a request."""

    async def test(counted: CountedCommits) -> None:
        counted.read(ANN)
        counted.append(b"due")
        await loop_iteration()
        counted.thread.run_all()
        assert counted.acknowledged == [b"due"]

    on_a_loop(tmp_path, test, durable=durable)


def _handled(rows: list[StorageError | None], *, share: float = 0.25) -> list[str]:
    """The order in which outcomes of row jobs, of an urgent job and of another one behind them are handled.

    Each takes a share of a turn.
    """

    async def run() -> list[str]:
        handled, clock = [], 0

        def note(name: str, error: StorageError | None) -> None:
            nonlocal clock
            handled.append("error" if error is not None else name)
            clock += int(SLICE_NS * share)

        thread = DiskThread(asyncio.get_running_loop(), "test")
        thread._slices.nanoseconds = lambda: clock
        thread._rows_finished([(lambda _, error: note("row", error), (None, error)) for error in rows])
        thread._one_finished(lambda _, error: note("urgent", error), (None, None), urgent=True)
        thread._one_finished(lambda _, error: note("last", error), (None, None), urgent=False)
        await thread.call(lambda: None)
        thread.stop()
        return handled

    return asyncio.run(run())


def test_an_urgent_outcome_does_not_wait_for_hundreds_of_saved_rows() -> None:
    assert _handled([None] * 200) == ["row"] * 4 + ["urgent"] + ["row"] * 196 + ["last"]


def test_a_failed_row_is_handled_before_anything_behind_it_is_answered() -> None:
    failed = StorageError("as asked")
    assert _handled([None] * 50 + [failed]) == ["row"] * 50 + ["error", "urgent", "last"]


def test_without_turns_an_urgent_outcome_waits_for_all_rows() -> None:
    """Negative control of the first of these tests."""
    assert _handled([None] * 200, share=0) == ["row"] * 200 + ["urgent", "last"]
