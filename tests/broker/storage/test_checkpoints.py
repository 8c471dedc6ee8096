"""Checkpoints: the key index gives way to busy sends, but not indefinitely."""

from types import SimpleNamespace
from typing import Any

from lanemq.broker.storage.checkpoints import KEY_INDEX_STEP_BYTES, MAX_POSTPONED_TICKS, Checkpoints
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
        unused: Any = {"topic_keeper": None, "producers": None, "offsets": None, "delays": None}
        self._checkpoints = Checkpoints(
            never,
            clock,
            store=store_and_thread,
            thread=store_and_thread,
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
