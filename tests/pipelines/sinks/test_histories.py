"""Runs that start, write, die and wake up in any order: what is in the table is always a beginning of the truth.

Truth: batch n holds the rows 2n and 2n + 1. Whatever happens, every batch up to some number is there once, and
nothing else; what was acknowledged stays; only the newest run is ever told that it applied something.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipelines.sinks.places import DeltaPlace, Died, ParquetPlace, Place, SqlitePlace, dies_at, named

from lanemq.model.errors import SinkFenced

PLACES = {"delta": DeltaPlace, "parquet": ParquetPlace, "sqlite": SqlitePlace}
NEVER = 1_000
DONE = ("committed", "published")

acts = st.lists(
    st.one_of(
        st.just(("start", 0, 0)),
        st.tuples(st.just("write"), st.integers(0, 3), st.sampled_from([0, 1, 2, 3, NEVER, NEVER, NEVER])),
        st.tuples(st.just("overtaken"), st.integers(0, 3), st.integers(0, 3)),
    ),
    min_size=4,
    max_size=14,
)


class World:
    """The runs that believe to be alive; the last one started is the newest."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.epoch = 0
        self.acknowledged = -1
        self.late = False
        """Whether the running write was overtaken only after its commit."""
        self.runs: list[tuple[int, Any, int]] = []
        """Epoch, sink, and the number it would write next."""

    def start(self) -> None:
        self.epoch += 1
        sink = self.place.opened(epoch=self.epoch)
        applied = sink.applied()
        self.runs.append((self.epoch, sink, 0 if applied is None else applied + 1))

    def write(self, which: int, dies: int) -> None:
        if not self.runs:
            return
        epoch, sink, number = self.runs.pop(which % len(self.runs))
        dies_at(sink, dies)
        self.late = False
        self._apply(epoch, sink, number)

    def write_overtaken(self, which: int, step: int) -> None:
        """A newer run starts while this one is at a step of its write."""
        if not self.runs:
            return
        epoch, sink, number = self.runs.pop(which % len(self.runs))
        passed: list[str] = []

        def reached(name: str) -> None:
            passed.append(name)
            if len(passed) == step + 1:
                self.start()
                self.late = name in DONE

        sink.reached, self.late = reached, False
        self._apply(epoch, sink, number)

    def _apply(self, epoch: int, sink: Any, number: int) -> None:
        try:
            sink.write(self.place.batch_rows(a=[2 * number], b=[2 * number + 1]), named(epoch, number))
        except SinkFenced:
            assert epoch < self.epoch, "the newest run was refused"
        except Died:
            sink.close()
        else:
            assert epoch == self.epoch or self.late, "a replaced run was told that it applied a batch"
            self.acknowledged = max(self.acknowledged, number)
            self.runs.append((epoch, sink, number + 1))

    def check(self) -> None:
        numbers = self.place.numbers()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) % 2 == 0
        assert len(numbers) >= 2 * (self.acknowledged + 1)


@pytest.mark.parametrize("kind", PLACES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=acts)
def test_a_table_is_always_a_beginning_of_the_truth(kind: str, history: list[tuple[str, int, int]]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="lanemq-sinks-"))
    place = PLACES[kind](folder)
    world = World(place)
    try:
        world.start()
        for act, which, dies in history:
            if act == "start":
                world.start()
            elif act == "overtaken" and kind != "sqlite":  # whose successor would wait for the lock
                world.write_overtaken(which, dies)
            else:
                world.write(which, dies)
            world.check()
    finally:
        place.close()
        shutil.rmtree(folder)
