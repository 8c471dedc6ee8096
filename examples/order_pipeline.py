"""Every transition of every order, from a topic into a Delta table, checked against the truth.

Orders are created, paid, packed, shipped and done, or cancelled; a few of their events are sent twice. One event cannot
even be read: its order is parked with everything behind it, while all other orders go on. Half-way the pipeline is
stopped and started again. Then a person discards what could not be read, the parked order goes on where it stood, and
every row of the table is compared with what the generator knows.

    python examples/order_pipeline.py
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import DeltaSink, Park, Pipeline, Progress, Topic, Transitions, start
from lanemq.pipelines.checkpoint.checkpoint import stage_place
from lanemq.pipelines.stages.transitions.operator_requests import request_discard
from lanemq.pipelines.stages.transitions.views import list_parked
from lanemq.spark import recommended
from lanemq.testing.demo.result import compare, read_rows
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.order_life import OrderEvent, order_events, order_truth
from lanemq.testing.order_step import OUTPUTS, order_step

QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
BROKEN_ORDER = "order-7"


def main(spark: SparkSession | None = None, orders: int = 300) -> dict[str, Any]:
    if spark is None:
        spark = recommended().master("local[2]").config(map=QUIET).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="lanemq-orders-") as folder, EmbeddedBroker() as broker:
        return run(spark, broker.address, Path(folder), order_events(orders))


def run(spark: SparkSession, servers: str, folder: Path, events: list[OrderEvent]) -> dict[str, Any]:
    with Admin(servers) as admin:
        admin.create_topic("orders", queues=4, ordered=True)
    pipeline = Pipeline(
        "orders",
        source=Topic(servers, "orders", maxOffsetsPerTrigger=1_000),
        stage=Transitions(step=order_step, outputs=OUTPUTS, decode=OrderEvent, sequence="seq", on_failure=Park()),
        sink=DeltaSink(folder / "transitions"),
        checkpoint=folder / "checkpoint",
    )
    half, told = len(events) // 2, list[Progress]()
    with Producer(servers) as producer:
        send(producer, events[:half])
        work(pipeline, spark, told)
        producer.send("orders", b"{half of an event", key=BROKEN_ORDER)
        send(producer, events[half:])
        work(pipeline, spark, told)
    parked = list_parked(stage_place(pipeline.folder))
    for lane in parked:
        print(f"{lane.lane} is parked with {len(lane.messages)} messages: {lane.reason}")
        request_discard(stage_place(pipeline.folder), lane.lane, first_only=True)
    work(pipeline, spark, told)
    verdict = compare(read_rows(folder / "transitions"), order_truth(events))
    for line in verdict.wrong[:5]:
        print(line)
    return {
        "right": verdict.passed,
        "orders": verdict.orders,
        "rows": verdict.rows,
        "parked": [lane.lane for lane in parked],
        "messages": len(events) + 1,
        "repeats": sum(each.done.counts.get("repeats", 0) for each in told),
    }


def send(producer: Producer, events: list[OrderEvent]) -> None:
    producer.send_many("orders", [(event.order, msgspec.to_builtins(event)) for event in events])


def work(pipeline: Pipeline, spark: SparkSession, told: list[Progress]) -> None:
    """A run from start to stop; each has a higher epoch than the one before, and goes on where that one ended."""
    with start(pipeline, spark, report=told.append) as running:
        if not running.wait_idle(120):
            raise SystemExit("the pipeline did not catch up")


if __name__ == "__main__":
    end = main()
    print(f"{end['messages']} messages, {end['repeats']} of them repeats, made {end['rows']} transitions")
    print(f"all {end['orders']} orders are as they should be" if end["right"] else "the table is wrong")
