"""Runs that start, write, die and resume in any order: the table always holds a prefix of all batches.

Truth: batch n holds the rows 2n and 2n + 1. Whatever happens, every batch up to some number is there once, and
nothing else; what was acknowledged stays; only the newest run gets True from `write`.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipelines.sinks.targets import (
    QUERY,
    DeltaTarget,
    Died,
    IcebergTarget,
    ParquetTarget,
    SqliteTarget,
    Target,
    dies_at,
    named,
)

from lanemq.model.errors import SinkFenced

TARGETS = {"delta": DeltaTarget, "iceberg": IcebergTarget, "parquet": ParquetTarget, "sqlite": SqliteTarget}
NEVER = 1_000
DONE = ("committed", "placed")

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
    """The runs that have not ended; the last one started is the newest."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.epoch = 0
        self.acknowledged = -1
        self.late = False
        """Whether the newer run started only after the commit of the running write."""
        self.runs: list[tuple[int, Any, int]] = []
        """Epoch, sink, and the next number to write."""

    def start(self) -> None:
        self.epoch += 1
        sink = self.target.opened(epoch=self.epoch)
        applied = sink.applied(QUERY, {})
        self.runs.append((self.epoch, sink, 0 if applied is None else applied + 1))

    def write(self, which: int, dies: int) -> None:
        if not self.runs:
            return
        epoch, sink, number = self.runs.pop(which % len(self.runs))
        dies_at(sink, dies)
        self.late = False
        self._apply(epoch, sink, number)

    def write_overtaken(self, which: int, step: int) -> None:
        """Start a newer run while this one is at a step of its write."""
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
            sink.write(self.target.batch_rows(a=[2 * number], b=[2 * number + 1]), named(epoch, number))
        except SinkFenced:
            assert epoch < self.epoch, "the newest run was refused"
        except Died:
            sink.close()
        else:
            assert epoch == self.epoch or self.late, "a replaced run got True from write"
            self.acknowledged = max(self.acknowledged, number)
            self.runs.append((epoch, sink, number + 1))

    def check(self) -> None:
        numbers = self.target.numbers()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) % 2 == 0
        assert len(numbers) >= 2 * (self.acknowledged + 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "parquet", "sqlite", pytest.param("iceberg", marks=pytest.mark.extended)])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=acts)
def test_a_table_always_holds_a_prefix_of_all_batches(kind: str, history: list[tuple[str, int, int]]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="lanemq-sinks-"))
    target = TARGETS[kind](folder)
    world = World(target)
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
        target.close()
        shutil.rmtree(folder)
