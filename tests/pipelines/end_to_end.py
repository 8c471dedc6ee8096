"""The pipeline of the end-to-end test, for `lanemq pipeline run`: every row is shuffled before it is processed."""

import os
from pathlib import Path

from pyspark.sql import DataFrame

from lanemq.pipelines import DeltaSink, Pipeline, Topic, Transitions
from lanemq.testing.dying import DyingSink, DyingStage, KillPoint
from lanemq.testing.order_life import OrderEvent
from lanemq.testing.order_step import OUTPUTS, order_step

FOLDER = Path(os.environ["LANEMQ_PROOF_FOLDER"])
KILL_POINT = KillPoint(FOLDER / "seen")


def shuffled(messages: DataFrame) -> DataFrame:
    """Change the order of rows as a join or a careless `repartition` does."""
    return messages.repartition(3)


pipeline = Pipeline(
    name="proof",
    source=Topic(
        os.environ["LANEMQ_PROOF_SERVERS"],
        os.environ["LANEMQ_PROOF_TOPIC"],
        group="proof",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=os.environ["LANEMQ_PROOF_BATCH"],
    ),
    prepare=shuffled,
    stage=DyingStage(
        Transitions(step=order_step, outputs=OUTPUTS, decode=OrderEvent, sequence="seq", shards=4),
        KILL_POINT,
        FOLDER / "checkpoint",
    ),
    sink=DyingSink(DeltaSink(FOLDER / "table"), KILL_POINT, "sink"),
    checkpoint=FOLDER / "checkpoint",
)
