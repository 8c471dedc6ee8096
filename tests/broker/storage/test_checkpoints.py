"""Checkpoints: the log is synced before them; the key index gives way to busy sends, but not indefinitely."""

import shutil
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import bodies
from tests.broker.running import ManualClock, RunningBroker
from tests.faulty_disk import FaultyDisk

from lanemq.broker.storage.checkpoints import INDEXES_EVERY_MS, KEY_INDEX_STEP_BYTES, MAX_POSTPONED_TICKS, Checkpoints
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.core.brokering.delay import DelayQueueCursors
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis
from lanemq.wire.codes import ResponseCode


class GrowingLog:
    """Checkpoints over a log that only has a length; counts the steps of the key index."""

    def __init__(self) -> None:
        self.log_end = 0
        self.steps = 0
        self.keys_indexed = False
        self.group_commit: Any = SimpleNamespace(pending_bytes=0)
        clock: Any = SimpleNamespace(now=lambda: Millis(0))
        store_and_thread: Any = self
        unused: Any = {"topic_keeper": None, "producers": None, "slices": None}
        nothing: Any = {"delays": DelayQueueCursors()}
        self._checkpoints = Checkpoints(
            clock,
            store=store_and_thread,
            row_thread=store_and_thread,
            search_thread=store_and_thread,
            group_commit=self.group_commit,
            **unused,
            **nothing,
        )

    def index_keys(self, max_bytes: int) -> bool:
        self.steps += 1
        return True

    def submit(self, job: Any, done: Any) -> None:
        done(job(), None)

    def ticks(self, count: int, *, growth: int) -> int:
        """The number of index steps in `count` ticks, before each of which the log grows."""
        before = self.steps
        for _ in range(count):
            self.log_end += growth
            self._checkpoints.tick(Millis(0))
        return self.steps - before


def test_a_log_that_grows_no_faster_than_the_index_is_indexed_at_every_tick() -> None:
    """Otherwise the index would fall further and further behind under an ordinary load."""
    assert GrowingLog().ticks(10, growth=KEY_INDEX_STEP_BYTES) == 10


def test_busy_sends_postpone_the_index() -> None:
    assert GrowingLog().ticks(MAX_POSTPONED_TICKS, growth=KEY_INDEX_STEP_BYTES + 1) == 0


def test_the_index_advances_under_constant_load() -> None:
    assert GrowingLog().ticks(3 * (MAX_POSTPONED_TICKS + 1), growth=10 * KEY_INDEX_STEP_BYTES) == 3


def test_the_index_continues_at_the_first_quiet_tick() -> None:
    log = GrowingLog()
    log.ticks(5, growth=10 * KEY_INDEX_STEP_BYTES)
    assert log.ticks(1, growth=0) == 1


def test_nothing_is_indexed_while_records_wait_for_the_disk() -> None:
    log = GrowingLog()
    log.group_commit.pending_bytes = 1
    assert log.ticks(5, growth=0) == 0


class RelaxedBroker:
    """Checkpoints of a broker without `durable`; notes the order of syncs of the log and writes of checkpoints."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.jobs: list[tuple[Any, Any]] = []
        sync = SimpleNamespace(staged=100, sync=lambda: self.happened.append("sync"))
        written: Any = SimpleNamespace(
            ready=lambda _: True,
            take_steps=lambda _: iter(()),
            write=lambda *_: self.happened.append("checkpoint"),
            finish_steps=lambda _: iter(()),
        )
        store: Any = SimpleNamespace(
            log_end=100, keys_indexed=True, appender=sync, checkpoints=written, options=SimpleNamespace(durable=False)
        )
        thread: Any = SimpleNamespace(submit=lambda job, done: self.jobs.append((job, done)))
        clock: Any = SimpleNamespace(now=lambda: Millis(0))
        group_commit: Any = SimpleNamespace(
            pending_bytes=0,
            failure=None,
            undone=0,
            sync=lambda done: self.jobs.append((store.appender.sync, lambda _, error: done(error))),
        )
        keeper: Any = SimpleNamespace(unfinished_deletions=())
        slices: Any = SimpleNamespace(begin=lambda steps: deque(steps, maxlen=0))
        nothing: Any = {"delays": DelayQueueCursors()}
        self.checkpoints = Checkpoints(
            clock,
            store=store,
            row_thread=thread,
            search_thread=thread,
            group_commit=group_commit,
            topic_keeper=keeper,
            producers=ProducerTable(),
            slices=slices,
            **nothing,
        )

    def tick(self) -> None:
        """One tick, and then the jobs that it gave to the threads."""
        self.checkpoints.tick(Millis(2 * INDEXES_EVERY_MS))
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            done(job(), None)


def test_without_durable_the_log_is_synced_before_a_checkpoint() -> None:
    """A checkpoint that claims records which a power cut takes would leave their stamps: repeats would be lost."""
    broker = RelaxedBroker()
    broker.tick()
    assert broker.happened == ["sync"]
    broker.tick()
    assert broker.happened == ["sync", "checkpoint"]


def test_control_a_checkpoint_that_does_not_ask_for_the_sync_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = RelaxedBroker()
    monkeypatch.setattr(broker.checkpoints, "_synced", 100)
    broker.tick()
    assert broker.happened == ["checkpoint"]


def test_a_broker_that_stops_while_index_entries_are_taken_finds_all_of_them_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.broker.storage.checkpoints.INDEXES_EVERY_MS", 2**50)
    running = start()
    raw, checkpoints = running.connect(), running.broker.running.checkpoints
    for queue in range(3):
        raw.send("T", b"x", queue=queue)

    begun: list[Iterator[None]] = []
    taken: list[object] = []

    def begin(steps: Iterator[None]) -> None:
        begun.append(steps)
        taken.append(next(steps, "all"))

    checkpoints._slices = SimpleNamespace(begin=begin)  # type: ignore[assignment]
    running.call(lambda: checkpoints.tick(Millis(2**60)))
    assert taken == ["all", None], "all stamps, and the entries of one queue"
    running.restart()
    assert [running.connect().bounds("T", queue) for queue in range(3)] == [(0, 1)] * 3


# what a checkpoint says of producers, after a crash


@contextmanager
def slow_log(running: RunningBroker) -> Iterator[None]:
    """Messages do not reach the disk; rows do."""
    opened = threading.Event()
    running.call(partial(running.broker.running.context.thread.submit, lambda: opened.wait(60), lambda *_: None))
    yield
    opened.set()


def ticks(running: RunningBroker, millis: int = 0) -> None:
    """Some ticks after so long; with 6,000 ms, they begin a checkpoint."""
    context, tick = running.broker.running.context, running.broker.running.housekeeping.tick
    assert running.clock is not None
    running.clock.passed += millis
    for _ in range(3):
        running.call(tick)
        running.wait_for(context.row_thread.call(lambda: None))
    running.wait_for(context.search_thread.call(lambda: None))


def test_a_message_that_a_crash_takes_is_no_duplicate_when_it_is_repeated(start: Start, folder: Path) -> None:
    running = start(clock=ManualClock())
    raw = running.connect()
    raw.send("T", stamp="p.0.0")
    with slow_log(running):
        late = raw.post_send("T", stamp="p.0.1")
        raw.bounds("T")
        ticks(running, 6_000)
        image = shutil.copytree(running.options.data, folder / "image")
    assert raw.answer(late).code == 0
    assert "laneDuplicate" not in start(image).connect().send("T", stamp="p.0.1").ext


def test_a_message_that_was_undone_during_a_checkpoint_is_no_duplicate_after_a_crash(
    start: Start, folder: Path
) -> None:
    disk = FaultyDisk()
    running = start(clock=ManualClock(), disk=disk)
    raw = running.connect()
    raw.send("T", stamp="p.0.0")
    with slow_log(running):
        refused = raw.post_send("T", stamp="p.0.1")
        raw.bounds("T")
        ticks(running, 6_000)
        disk.space = 10
    assert raw.answer(refused).code == ResponseCode.SYSTEM_BUSY
    disk.space = None
    while raw.send("T", b"longer than the one that was undone").code == ResponseCode.SYSTEM_BUSY:
        running.run_for(1_000)
    ticks(running)
    again = start(running.crash_image(folder / "image")).connect()
    assert "laneDuplicate" not in again.send("T", stamp="p.0.1").ext


def test_a_checkpoint_is_not_written_before_the_stamps_of_all_producers_are_copied(start: Start) -> None:
    running = start(clock=ManualClock())
    raw, context, checkpoints = running.connect(), running.broker.running.context, running.broker.running.checkpoints
    for number in range(5):
        raw.send("T", stamp=f"p{number}.0.0")
    copying: list[Iterator[None]] = []

    def begin(steps: Iterator[None]) -> None:
        """A busy loop: only one row is copied at first."""
        next(steps) if not copying else deque(steps, maxlen=0)
        copying.append(steps)

    checkpoints._slices = SimpleNamespace(begin=begin)  # type: ignore[assignment]
    ticks(running, 6_000)
    assert list(context.state.producers()) == []
    running.call(lambda: deque(copying[0], maxlen=0))
    ticks(running)
    assert len(list(context.state.producers())) == 5


def test_what_a_failed_checkpoint_had_is_in_the_next_one(start: Start, folder: Path) -> None:
    running = start(clock=ManualClock())
    raw, checkpoints = running.connect(), running.broker.running.context.store.checkpoints
    raw.send("T", b"x", stamp="p.0.0")
    write, failed = checkpoints.write, list[object]()

    def fail_once(*work: Any) -> None:
        if not failed:
            failed.append(work)
            raise StorageError("as asked")
        write(*work)

    checkpoints.write = fail_once  # type: ignore[method-assign]
    ticks(running, 6_000)
    assert failed
    ticks(running, 6_000)
    assert len(list(running.broker.running.context.state.producers())) == 1
    again = start(running.crash_image(folder / "image")).connect()
    assert bodies(again.read("T")) == [b"x"]
    assert again.send("T", stamp="p.0.0").ext["laneDuplicate"] == "true"
