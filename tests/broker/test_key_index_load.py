"""The index of keys keeps out of the way of busy sends, and is never given up for them."""

from types import SimpleNamespace
from typing import Any

from lanemq.broker.checkpoints import KEY_INDEX_STEP_BYTES, KEYS_PUT_OFF_TICKS, Checkpoints
from lanemq.model.units import Millis


class Ticking:
    """Checkpoints over a log that only has a length; counts the slices."""

    def __init__(self) -> None:
        self.log_end = 0
        self.slices = 0
        self.keys_indexed = False
        never = SimpleNamespace(save_offsets_every=1e9, checkpoint_every=1e9)
        parts: Any = SimpleNamespace(
            options=never,
            clock=SimpleNamespace(now=lambda: Millis(0)),
            store=self,
            group_commit=SimpleNamespace(pending_bytes=0),
            thread=self,
        )
        self.appender = parts.group_commit
        self._checkpoints = Checkpoints(parts)

    def index_keys(self, most_bytes: int) -> bool:
        self.slices += 1
        return True

    def submit(self, job: Any, done: Any) -> None:
        done(job(), None)

    def ticks(self, count: int, *, growth: int) -> int:
        """How many slices so many ticks bring while the log grows by so much in each."""
        before = self.slices
        for _ in range(count):
            self.log_end += growth
            self._checkpoints.tick(Millis(0))
        return self.slices - before


def test_a_log_that_grows_no_faster_than_the_index_is_indexed_at_every_tick() -> None:
    """Else an ordinary load would leave the index further and further behind."""
    assert Ticking().ticks(10, growth=KEY_INDEX_STEP_BYTES) == 10


def test_busy_sends_put_the_index_off() -> None:
    assert Ticking().ticks(KEYS_PUT_OFF_TICKS, growth=KEY_INDEX_STEP_BYTES + 1) == 0


def test_a_load_that_never_ends_does_not_stop_the_index() -> None:
    assert Ticking().ticks(3 * (KEYS_PUT_OFF_TICKS + 1), growth=10 * KEY_INDEX_STEP_BYTES) == 3


def test_the_index_goes_on_at_the_first_quiet_tick() -> None:
    ticking = Ticking()
    ticking.ticks(5, growth=10 * KEY_INDEX_STEP_BYTES)
    assert ticking.ticks(1, growth=0) == 1


def test_nothing_is_indexed_while_records_wait_for_the_disk() -> None:
    ticking = Ticking()
    ticking.appender.pending_bytes = 1
    assert ticking.ticks(5, growth=0) == 0
