"""Promise 10: a pipeline applies every message once, in the order of its key, whatever dies in between.

With executors and drivers really killed: tests/pipelines/test_end_to_end.py and test_killed.py; every sink at every
step of a batch: tests/pipelines/sinks/test_contract.py.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lanemq import Producer
from lanemq.pipelines import Event, Pipeline, SqliteSink, Topic, Transitions, start
from lanemq.pipelines.running.progress import Progress
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.timeout(900)

KEYS, COUNT = 4, 60


@pytest.fixture
def sent(broker: EmbeddedBroker, topic: str) -> dict[str, list[int]]:
    """What is in the topic, by key."""
    with Producer(broker.address) as producer:
        for number in range(COUNT):
            producer.send(topic, number, key=f"k{number % KEYS}")
    return {f"k{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}


def die_before_the_last_note(checkpoint: Path) -> None:
    """The state after a driver died between the sink's commit and Spark's record of the batch."""
    notes = sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(notes[-1])).unlink()


def by_key(rows: Iterator[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, number in rows:
        found.setdefault(key, []).append(number)
    return found


def running_count(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    seen = (state or 0) + 1
    return seen, [{"key": event.key, "n": event.value, "seen": seen}]


def test_rows_and_state_are_those_of_one_run_although_a_batch_is_repeated(
    spark: Any, broker: EmbeddedBroker, topic: str, sent: dict[str, list[int]], tmp_path: Path
) -> None:
    """ "Every message has its effect on state and table once, in the order of its key.\""""
    pipeline = Pipeline(
        "promise",
        Topic(broker.address, topic, maxOffsetsPerTrigger=25),
        Transitions(step=running_count, outputs="key string, n long, seen long"),
        SqliteSink(tmp_path / "rows.db", "rows"),
        tmp_path / "checkpoint",
    )
    progress: list[Progress] = []
    assert start(pipeline, spark, once=True).await_end(600)
    die_before_the_last_note(tmp_path / "checkpoint")
    with Producer(broker.address) as producer:
        for number in range(COUNT, COUNT + KEYS):
            producer.send(topic, number, key=f"k{number % KEYS}")
            sent[f"k{number % KEYS}"].append(number)
    assert start(pipeline, spark, once=True, report=progress.append).await_end(600)
    assert progress[0].applied.repeated, "no batch was repeated, so this proves nothing"
    with sqlite3.connect(tmp_path / "rows.db") as table:
        rows = table.execute("SELECT key, n, seen FROM rows ORDER BY rowid").fetchall()
    table.close()
    assert by_key((key, n) for key, n, _ in rows) == sent
    assert by_key((key, seen) for key, _, seen in rows) == {key: list(range(1, len(sent[key]) + 1)) for key in sent}


def test_appending_in_foreach_batch_writes_a_repeated_batch_twice(
    spark: Any, broker: EmbeddedBroker, topic: str, sent: dict[str, list[int]], tmp_path: Path
) -> None:
    """Negative control: the same crash with code that relies on Spark's checkpoint alone."""
    lines = tmp_path / "rows.jsonl"

    def append(rows: Any, batch: int) -> None:
        with lines.open("a") as file:
            file.writelines(f"{row.value.decode()}\n" for row in rows.select("value").collect())

    def run() -> None:
        reader = spark.readStream.format("lanemq").option("servers", broker.address).option("topic", topic)
        frame = reader.option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(append).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    run()
    die_before_the_last_note(tmp_path / "checkpoint")
    run()
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted(found) == sorted([*range(COUNT), *range(COUNT)])
