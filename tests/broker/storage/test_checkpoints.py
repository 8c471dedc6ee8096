"""Checkpoints: the log is synced before them; the key index gives way to busy sends, but not indefinitely."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.conftest import Start

from lanemq.broker.storage.checkpoints import KEY_INDEX_STEP_BYTES, MAX_POSTPONED_TICKS, Checkpoints
from lanemq.core.brokering.dedup import ProducerTable
from lanemq.model.units import Millis


class GrowingLog:
    """Checkpoints over a log that only has a length; counts the steps of the key index."""

    def __init__(self) -> None:
        self.log_end = 0
        self.steps = 0
        self.keys_indexed = False
        self.group_commit: Any = SimpleNamespace(pending_bytes=0)
        clock: Any = SimpleNamespace(now=lambda: Millis(0))
        never: Any = SimpleNamespace(save_offsets_every=1e9, checkpoint_every=1e9)
        store_and_thread: Any = self
        unused: Any = {"topic_keeper": None, "producers": None, "offsets": None, "delays": None, "turns": None}
        self._checkpoints = Checkpoints(
            never,
            clock,
            store=store_and_thread,
            row_thread=store_and_thread,
            search_thread=store_and_thread,
            group_commit=self.group_commit,
            **unused,
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
        options: Any = SimpleNamespace(save_offsets_every=1e9, checkpoint_every=1)
        clock: Any = SimpleNamespace(now=lambda: Millis(0))
        group_commit: Any = SimpleNamespace(
            pending_bytes=0,
            failure=None,
            undone=0,
            sync=lambda done: self.jobs.append((store.appender.sync, lambda _, error: done(error))),
        )
        keeper: Any = SimpleNamespace(unfinished_deletions=())
        turns: Any = SimpleNamespace(begin=lambda steps: deque(steps, maxlen=0))
        unused: Any = {"offsets": None, "delays": None}
        self.checkpoints = Checkpoints(
            options,
            clock,
            store=store,
            row_thread=thread,
            search_thread=thread,
            group_commit=group_commit,
            topic_keeper=keeper,
            producers=ProducerTable(),
            turns=turns,
            **unused,
        )

    def tick(self) -> None:
        """One tick, and then the jobs that it gave to the threads."""
        self.checkpoints.tick(Millis(2_000))
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
    monkeypatch.setattr(Checkpoints, "_is_synced", lambda _checkpoints, _mark: True)
    broker = RelaxedBroker()
    broker.tick()
    assert broker.happened == ["checkpoint"]


def test_a_broker_that_stops_while_index_entries_are_taken_finds_all_of_them_again(start: Start) -> None:
    running = start(checkpoint_every=1e6)
    raw, checkpoints = running.connect(), running.broker.running.checkpoints
    for queue in range(3):
        raw.send("T", b"x", queue=queue)

    def take_one() -> None:
        turns: Any = SimpleNamespace(begin=lambda steps: next(steps, None))
        checkpoints._turns = turns
        checkpoints._take_mark()
        assert checkpoints._mark is not None
        checkpoints._save_index(checkpoints._mark)
        assert checkpoints._saving_index

    running.call(take_one)
    running.restart()
    assert [running.connect().bounds("T", queue) for queue in range(3)] == [(0, 1)] * 3
