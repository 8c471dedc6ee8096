"""The pipeline of the main job, for `lanemq pipeline run`: every transition of every order becomes a row.

Address and folder come from the environment; the rest is what a user would write.
"""

import os
from pathlib import Path

from lanemq.pipelines import DeltaSink, Pipeline, Topic, Transitions
from lanemq.testing.demo.plan import EVENTS_PER_BATCH, PIPELINE_GROUP, TOPIC, checkpoint_folder, table_folder
from lanemq.testing.order_life import OrderEvent
from lanemq.testing.order_step import OUTPUTS, order_step

FOLDER = Path(os.environ.get("LANEMQ_DEMO_FOLDER", "var/demo")).absolute()
SERVERS = os.environ.get("LANEMQ_DEMO_SERVERS", "127.0.0.1:9876")

pipeline = Pipeline(
    name="orders",
    source=Topic(
        SERVERS, TOPIC, group=PIPELINE_GROUP, startingOffsets="earliest", maxOffsetsPerTrigger=str(EVENTS_PER_BATCH)
    ),
    stage=Transitions(step=order_step, outputs=OUTPUTS, decode=OrderEvent, sequence="seq"),
    sink=DeltaSink(table_folder(FOLDER)),
    checkpoint=checkpoint_folder(FOLDER),
)
