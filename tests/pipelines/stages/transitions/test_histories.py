"""Random pipelines compared with a model without files, batches and crashes.

A history is a list of batches, each with messages, failures and the points where its attempts crash. The sink must hold
every key's events once and in order, up to the first one that never succeeds.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipelines.stages.transitions.pipeline_fixture import Crash, Pipeline, Sent, never

from lanemq.pipelines import Hold, StateLimits
from lanemq.pipelines.operate.parked import list_parked
from lanemq.pipelines.stages.transitions.operator_requests import request_redrive
from lanemq.pipelines.stages.transitions.shard import CACHE

RETRIES = 2
NEVER = 99
CRASH_POINTS = ("before", "first task", "after tasks", "before sink", "before finish")


class RandomBatch(NamedTuple):
    """One batch: (queue, key, fails, repeat of the message before) of every message, and where its attempts crash."""

    messages: list[tuple[int, int, int, bool]]
    crashes: list[str]
    pass_crashes: list[str]
    lose_cache: bool


random_batches = st.builds(
    RandomBatch,
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1, 2, NEVER]), st.booleans()),
        max_size=8,
    ),
    st.lists(st.sampled_from(CRASH_POINTS), max_size=2),
    st.lists(st.sampled_from(CRASH_POINTS), max_size=1),
    st.booleans(),
)


class World:
    """The topic, the pipeline and the expected result."""

    def __init__(self, folder: Path) -> None:
        limits = StateLimits(snapshot_every=3, max_waiting_per_lane=1_000)
        self.pipeline = Pipeline(folder, on_failure=Hold(retries=RETRIES, first=0.01, max=0.02), limits=limits)
        self.sent: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.offsets = [0, 0]
        self.sequences = [0, 0]
        self.number = 0
        self.stamped = 0

    def messages(self, batch: RandomBatch) -> list[Sent]:
        made: list[Sent] = []
        for queue, key, fails, repeat in batch.messages:
            before = [each for each in made if each.queue == queue]
            if repeat and before:
                made.append(before[-1]._replace(offset=self.offsets[queue]))
            else:
                made.append(self._fresh(queue, f"key-{queue}-{key}", fails))
            self.offsets[queue] += 1
        return made

    def _fresh(self, queue: int, key: str, fails: int) -> Sent:
        self.number += 1
        self.sent[key].append((self.number, fails))
        sequence = self.sequences[queue]
        self.sequences[queue] += 1
        value = {"n": self.number, "fails": fails}
        return Sent(queue, self.offsets[queue], key, value, ("producer", 1, sequence))

    def attempt(self, crash_at: str | None, work: Callable[[], Any]) -> None:
        """Runs a unit of work and crashes at the given point."""
        pipeline = self.pipeline

        def lose(at: int | None) -> None:
            if (crash_at, at) in {("before", 0), ("first task", 1), ("after tasks", None)}:
                raise Crash

        finished, written = pipeline.stage.finished, pipeline.sink.write

        def die(*_: object) -> None:
            raise Crash

        pipeline.lose = lose
        if crash_at == "before sink":
            pipeline.sink.write = die  # type: ignore[method-assign]
        if crash_at == "before finish":
            pipeline.stage.finished = die  # type: ignore[method-assign]
        try:
            work()
        except Crash:
            pipeline.restart()
        else:
            pipeline.stage.finished = finished  # type: ignore[method-assign]
        finally:
            pipeline.lose = never
            pipeline.sink.write = written  # type: ignore[method-assign]

    def process(self, batch: RandomBatch) -> None:
        pipeline, messages = self.pipeline, self.messages(batch)
        pipeline.batch, pipeline.passes = pipeline.batch + 1, 0
        for crash_at in [*batch.crashes, None]:
            if batch.lose_cache:
                CACHE._shards.clear()
            self.attempt(crash_at, lambda: pipeline.process(*messages, again=True))
        for crash_at in batch.pass_crashes:
            pipeline.clock.time += 20
            self.attempt(crash_at, pipeline.process_retry_pass)

    def settle(self) -> None:
        """Runs retry passes until none is due."""
        while self.pipeline.stage.due(self.pipeline.clock.wall()) is not None:
            self.pipeline.clock.time += 20
            self.pipeline.process_retry_pass()

    def expected(self, key: str) -> list[int]:
        ends = [at for at, (_, fails) in enumerate(self.sent[key]) if fails > RETRIES]
        return [number for number, _ in self.sent[key][: ends[0] if ends else None]]


@contextmanager
def run_history(history: list[RandomBatch]) -> Iterator[tuple[World, Path]]:
    """Runs all batches, then retry passes until none is due."""
    CACHE._shards.clear()
    with tempfile.TemporaryDirectory() as folder:
        stage_folder = Path(folder) / "stage"
        stage_folder.mkdir()
        world = World(stage_folder)
        for batch in history:
            world.process(batch)
        world.settle()
        yield world, stage_folder


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(random_batches, min_size=1, max_size=5))
def test_every_event_is_applied_once_and_in_order_through_crashes(history: list[RandomBatch]) -> None:
    with run_history(history) as (world, folder):
        for key in world.sent:
            assert world.pipeline.outputs(key) == world.expected(key)
            seen = [row["seen"] for row in world.pipeline.sink.rows() if row["key"] == key]
            assert seen == list(range(1, len(seen) + 1))
        waiting = {lane.key: len(lane.messages) for lane in list_parked(folder)}
        left = {key: len(sent) - len(world.expected(key)) for key, sent in world.sent.items()}
        assert waiting == {key: count for key, count in left.items() if count}


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(random_batches, min_size=1, max_size=3))
def test_redriving_all_lanes_with_a_corrected_step_applies_everything_in_order(history: list[RandomBatch]) -> None:
    with run_history(history) as (world, folder):
        world.pipeline.restart(step=corrected)
        request_redrive(folder, everything=True)
        world.settle()
        for key, sent in world.sent.items():
            assert world.pipeline.outputs(key) == [number for number, _ in sent]
        assert list_parked(folder) == []


def corrected(state: Any, event: Any) -> tuple[Any, list[dict[str, object]]]:
    return state or {"seen": 0}, [{"key": event.key, "n": event.value["n"]}]
