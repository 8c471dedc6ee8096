"""The pipeline of `test_killed_timers.py`, for `lanemq pipeline run`: timers in both clocks, into an Iceberg table."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lanemq.files import locate
from lanemq.pipelines import Event, EventTime, IcebergSink, Pipeline, StepContext, Timer, Topic, Transitions
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Rows
from lanemq.testing.dying import STAGED, DyingSink, DyingStage, KillPoint

FOLDER = Path(os.environ["LANEMQ_PROOF_FOLDER"])
KILL_POINT = KillPoint(FOLDER / "seen")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SILENCE_SECONDS = 5
EVERY = 3


def step(state: Any, event: Event, context: StepContext) -> tuple[Any, list[dict[str, object]]]:
    """Every event sets a timer in event time, which is called before the next event of its key; some set another."""
    number, count = event.value["n"], (state or {"count": 0})["count"] + 1
    context.set_timer("silence", after=SILENCE_SECONDS)
    if number % EVERY == 0:
        context.set_timer(f"wall {number}", after=0, clock="processing")
    return {"count": count, "n": number}, [{"key": event.key, "what": "event", "n": number, "count": count}]


def on_timer(state: Any, timer: Timer, context: StepContext) -> tuple[Any, list[dict[str, object]]]:
    what, _, number = timer.name.partition(" ")
    row = {"key": timer.key, "what": what, "n": int(number or state["n"]), "count": state["count"]}
    return state, [row]


class DyingIceberg(IcebergSink):
    """An Iceberg sink whose driver may also die when the files are written and the catalog does not know them."""

    writing: Batch | None = None

    def write(self, rows: Rows, batch: Batch) -> bool:
        self.writing = batch
        return super().write(rows, batch)

    def _publish(self, change: Any) -> None:
        if self.writing is not None:
            KILL_POINT.reached(STAGED, self.writing)
        super()._publish(change)


pipeline = Pipeline(
    name="timers",
    source=Topic(
        os.environ["LANEMQ_PROOF_SERVERS"],
        os.environ["LANEMQ_PROOF_TOPIC"],
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
    ),
    stage=DyingStage(
        Transitions(
            step=step,
            on_timer=on_timer,
            event_time=EventTime(of="at"),
            outputs="key string, what string, n long, count long",
        ),
        KILL_POINT,
        locate(str(FOLDER / "checkpoint")),
    ),
    sink=DyingSink(DyingIceberg("shop.rows", warehouse=FOLDER / "lake"), KILL_POINT, "sink"),
    checkpoint=FOLDER / "checkpoint",
)
