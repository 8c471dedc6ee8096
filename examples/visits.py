"""A pipeline declared in a file: `visits.toml` declares it, and this module has the function that it calls.

Visitors open pages and sometimes buy. A visit ends when they buy or leave. The pipeline writes one row per finished
visit and keeps the open ones as state. It runs twice with the same checkpoint, the second time with new messages only,
and the rows are compared with a plain count in Python.

    python examples/visits.py
"""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from lanemq import Admin, Producer
from lanemq.pipelines import Event, load, run
from lanemq.spark import recommended
from lanemq.testing.embedded import EmbeddedBroker

DECLARED = Path(__file__).with_suffix(".toml")
State = dict[str, int]


def step(state: State | None, event: Event) -> tuple[State, list[dict[str, Any]]]:
    """Counts the visits of a visitor and the pages of the open one."""
    known = state or {"visits": 0, "pages": 0}
    what = event.value["what"]
    if what == "page":
        return {**known, "pages": known["pages"] + 1}, []
    visit = known["visits"] + 1
    row = {"visitor": event.key, "visit": visit, "pages": known["pages"], "bought": what == "buy"}
    return {"visits": visit, "pages": 0}, [row]


def events(count: int, dice: random.Random) -> Iterator[tuple[str, dict[str, str]]]:
    for _ in range(count):
        yield f"visitor-{dice.randrange(60)}", {"what": dice.choice(["page", "page", "page", "buy", "leave"])}


def counted(sent: list[tuple[str, dict[str, str]]]) -> list[tuple[Any, ...]]:
    """The same rows, counted without LaneMQ."""
    pages: dict[str, int] = {}
    visits: dict[str, int] = {}
    rows: list[tuple[Any, ...]] = []
    for visitor, event in sent:
        if event["what"] == "page":
            pages[visitor] = pages.get(visitor, 0) + 1
            continue
        visits[visitor] = visits.get(visitor, 0) + 1
        rows.append((visitor, visits[visitor], pages.pop(visitor, 0), event["what"] == "buy"))
    return sorted(rows)


def main(spark: SparkSession | None = None) -> dict[str, Any]:
    if spark is None:
        session = recommended().master("local[2]").config("spark.ui.enabled", "false")
        spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="lanemq-visits-") as folder, EmbeddedBroker() as broker:
        os.environ |= {"VISITS_SERVERS": broker.address, "VISITS_FOLDER": folder}
        sent = list(events(3_000, random.Random(7)))
        with Admin(broker.address) as admin:
            admin.create_topic("visits", queues=4, ordered=True)
        with Producer(broker.address) as producer:
            for part in (sent[:2_000], sent[2_000:]):
                producer.send_many("visits", part)
                run(load(DECLARED), spark, once=True)
        table = pq.read_table(Path(folder) / "visits", partitioning=None)
        found = sorted(tuple(row.values()) for row in table.to_pylist())
        return {"right": found == counted(sent), "events": len(sent), "visits": len(found)}


if __name__ == "__main__":
    end = main()
    print(f"{end['events']} events made {end['visits']} visits")
    print("the same as counted by hand" if end["right"] else "the rows are wrong")
