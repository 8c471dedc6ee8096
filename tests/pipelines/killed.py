"""The pipeline whose driver is killed, for `lanemq pipeline run`: its step answers differently in every other run."""

import os
from pathlib import Path
from typing import Any

from lanemq.files import locate
from lanemq.pipelines import DeadLetter, DeltaSink, Event, Pipeline, Topic, Transitions
from lanemq.testing.dying import DyingSink, DyingStage, KillPoint

PLACE = os.environ["LANEMQ_PROOF_PLACE"]
"""A folder, or an address on another file system, for checkpoint and tables."""
DEAD = f"{PLACE}/dead"
KILL_POINT = KillPoint(Path(os.environ["LANEMQ_PROOF_FOLDER"]) / "seen")


def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    """Every third event needs a service that is down in runs with an odd number."""
    number = event.value["n"]
    if number % 3 == 0 and int(os.environ["LANEMQ_PROOF_RUN"]) % 2 == 1:
        raise ConnectionError("the service is away")
    count = (state or 0) + 1
    return count, [{"key": event.key, "n": number, "count": count}]


pipeline = Pipeline(
    name="killed",
    source=Topic(
        os.environ["LANEMQ_PROOF_SERVERS"],
        os.environ["LANEMQ_PROOF_TOPIC"],
        group=os.environ["LANEMQ_PROOF_GROUP"] or None,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=20,
    ),
    stage=DyingStage(
        Transitions(step=step, outputs="key string, n long, count long", on_failure=DeadLetter(skip=True)),
        KILL_POINT,
        locate(f"{PLACE}/checkpoint"),
    ),
    sink=DyingSink(DeltaSink(f"{PLACE}/table"), KILL_POINT, "sink"),
    dead_letters=DyingSink(DeltaSink(DEAD), KILL_POINT, "dead_letters"),
    checkpoint=f"{PLACE}/checkpoint",
)
