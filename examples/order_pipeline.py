"""Every transition of every order, from a topic into a Delta table, compared with what should be there.

Orders are created, paid, packed, shipped and done, or cancelled. Some events are sent twice. One event cannot be
decoded: its order is parked with everything behind it, and other orders continue. Halfway the pipeline is stopped and
started again. Then the event is discarded, the parked order continues, and every row of the table is checked.

    python examples/order_pipeline.py
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import DeltaSink, Park, Pipeline, Progress, Topic, Transitions, parked, start
from lanemq.spark import recommended
from lanemq.testing.demo.result import compare, read_rows
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.order_life import OrderEvent, order_events, order_truth
from lanemq.testing.order_step import OUTPUTS, order_step

BROKEN_ORDER = "order-7"


def main(spark: SparkSession | None = None, orders: int = 300) -> dict[str, Any]:
    if spark is None:
        session = recommended().master("local[2]").config("spark.ui.enabled", "false")
        spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()
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
    half, progress = len(events) // 2, list[Progress]()
    with Producer(servers) as producer:
        send(producer, events[:half])
        work(pipeline, spark, progress)
        producer.send("orders", b"{half of an event", key=BROKEN_ORDER)
        send(producer, events[half:])
        work(pipeline, spark, progress)
    lanes = parked(pipeline)
    waiting = lanes.waiting()
    for lane in waiting:
        print(f"{lane.lane} is parked with {len(lane.messages)} messages: {lane.reason}")
        lanes.discard(lane.lane, first_only=True)
    work(pipeline, spark, progress)
    verdict = compare(read_rows(folder / "transitions"), order_truth(events))
    for line in verdict.wrong[:5]:
        print(line)
    return {
        "right": verdict.passed,
        "orders": verdict.orders,
        "rows": verdict.rows,
        "parked": [lane.lane for lane in waiting],
        "messages": len(events) + 1,
        "repeats": sum(each.applied.counts.get("repeats", 0) for each in progress),
    }


def send(producer: Producer, events: list[OrderEvent]) -> None:
    producer.send_many("orders", [(event.order, msgspec.to_builtins(event)) for event in events])


def work(pipeline: Pipeline, spark: SparkSession, progress: list[Progress]) -> None:
    """Runs the pipeline from start to stop. Each run has a higher epoch and continues where the last one ended."""
    with start(pipeline, spark, report=progress.append) as running:
        if not running.wait_idle(120):
            raise SystemExit("the pipeline did not catch up")


if __name__ == "__main__":
    end = main()
    print(f"{end['messages']} messages, {end['repeats']} of them repeats, made {end['rows']} transitions")
    print(f"all {end['orders']} orders are as they should be" if end["right"] else "the table is wrong")
