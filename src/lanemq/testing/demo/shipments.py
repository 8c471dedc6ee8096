"""The pipeline of `lanemq up --demo`: a row for every event of an order; some orders fail and are parked.

Address and folder come from the environment; the rest is what a user would write.
"""

import os
from pathlib import Path
from typing import Any

from lanemq.pipelines import DeltaSink, Event, Hold, Pipeline, Topic, Transitions
from lanemq.testing.demo.traffic import TOPIC, DemoFailure

FOLDER = Path(os.environ.get("LANEMQ_DEMO_FOLDER", "var/up/pipeline")).absolute()
SERVERS = os.environ.get("LANEMQ_DEMO_SERVERS", "127.0.0.1:9876")
OUTPUTS = "kind string, topic string, queue_id int, queue_offset long, key string"
"""With the place of each message, by which the checker finds its row."""


def ship(state: dict[str, Any] | None, event: Event) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Fails at every fortieth order, from the seventh on, so that there are keys that wait."""
    kind = event.value["kind"]
    if kind == "packed" and int((event.key or "").removeprefix("order-")) % 40 == 7:
        raise DemoFailure(f"no carrier takes {event.key}: the address has no postal code")
    place = {"topic": event.topic, "queue_id": event.queue_id, "queue_offset": event.offset, "key": event.key}
    return {"status": kind}, [{"kind": kind, **place}]


pipeline = Pipeline(
    name="shipments",
    source=Topic(SERVERS, TOPIC, group="shipments", startingOffsets="earliest"),
    stage=Transitions(step=ship, outputs=OUTPUTS, on_failure=Hold(retries=2, first=2.0)),
    sink=DeltaSink(FOLDER / "table"),
    checkpoint=FOLDER / "shipments",
)
