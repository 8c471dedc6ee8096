"""Source, group, sink and a pipeline on Spark, against the broker that `--backend` names.

The client is always LaneMQ's. docs/reference/compatibility.md lists what differs with an Apache cluster: it grants no
epochs and drops no repeats; order and offsets are the same.
"""

import json
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.ports import eventually
from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.client.receipt import Receipt
from lanemq.pipelines import Event, Pipeline, SqliteSink, Topic, Transitions, start

QUEUES, KEYS, ROUNDS = 4, 10, 30
PATIENCE = 60.0


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java runtime, version 17 or newer: scripts/java.sh says how to get one")
    from lanemq.spark import recommended, register

    builder = recommended().master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    register(session)
    yield session
    session.stop()


@pytest.fixture
def topic(address: str) -> str:
    name = f"spark-{uuid.uuid4().hex[:12]}"
    with Admin(address) as admin:
        admin.create_topic(name, QUEUES, ordered=True)
    return name


def filled(address: str, topic: str, first: int = 0) -> list[Receipt]:
    """Sends numbers, in each round one for every key."""
    with Producer(address) as producer:
        numbers = range(first, first + KEYS * ROUNDS)
        futures = [producer.submit(topic, number, key=f"k{number % KEYS}") for number in numbers]
        return [future.result(PATIENCE) for future in futures]


def by_key(rows: list[Any]) -> dict[str, list[int]]:
    """The numbers of each key in the order of its queue."""
    found = defaultdict[str, list[int]](list)
    for row in sorted(rows, key=lambda row: (row.broker, row.queue_id, row.queue_offset)):
        found[row.key].append(json.loads(bytes(row.value)))
    return dict(found)


def sent_by_key(first: int = 0) -> dict[str, list[int]]:
    return {f"k{key}": list(range(first + key, first + KEYS * ROUNDS, KEYS)) for key in range(KEYS)}


def test_a_batch_has_every_message_at_the_offset_of_its_receipt(spark: Any, address: str, topic: str) -> None:
    receipts = filled(address, topic)
    rows = spark.read.format("lanemq").options(servers=address, topic=topic, columns="*").load().collect()
    assert by_key(rows) == sent_by_key()
    places = {(row.broker, row.queue_id, row.queue_offset, row.message_id) for row in rows}
    assert places == {(each.queue.broker, each.queue.queue_id, each.offset, each.message_id) for each in receipts}


def test_a_stream_continues_from_its_checkpoint(spark: Any, address: str, topic: str, tmp_path: Path) -> None:
    seen: list[Any] = []

    def run() -> list[int]:
        frame = spark.readStream.format("lanemq").options(
            servers=address, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=100
        )
        sizes: list[int] = []

        def take(rows: Any, number: int) -> None:
            batch = rows.collect()
            sizes.append(len(batch))
            seen.extend(batch)

        writer = frame.load().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        return sizes

    filled(address, topic)
    first = run()
    assert len(first) >= 3
    assert max(first) <= 100
    filled(address, topic, KEYS * ROUNDS)
    assert sum(run()) == KEYS * ROUNDS
    both = {key: numbers + sent_by_key(KEYS * ROUNDS)[key] for key, numbers in sent_by_key().items()}
    assert by_key(seen) == both


def test_a_query_stores_its_offsets_for_a_group(spark: Any, address: str, topic: str, tmp_path: Path) -> None:
    group = f"g-{uuid.uuid4().hex[:12]}"
    filled(address, topic)
    taken: list[tuple[str, int, int]] = []

    def take(rows: Any, number: int) -> None:
        taken.extend((row.broker, row.queue_id, row.queue_offset) for row in rows.collect())

    reader = spark.readStream.format("lanemq").options(servers=address, topic=topic, group=group)
    writer = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    eventually(lambda: len(taken) == KEYS * ROUNDS or None, PATIENCE, "the query has read everything")
    eventually(lambda: _committed(address, group) == KEYS * ROUNDS or None, PATIENCE, "the query has reported it")
    query.stop()
    assert len(taken) == len(set(taken))


def _committed(address: str, group: str) -> int:
    with Admin(address) as admin:
        return sum(max(0, each.offset) for each in admin.describe_group(group).queues)


def test_rows_become_messages_of_their_keys_in_order(spark: Any, address: str, topic: str) -> None:
    rows = [(f"k{number % KEYS}", str(number).encode()) for number in range(KEYS * ROUNDS)]
    frame = spark.createDataFrame(rows, "key string, value binary").coalesce(1)
    frame.write.format("lanemq").mode("append").options(servers=address, topic=topic).save()
    stored = spark.read.format("lanemq").options(servers=address, topic=topic).load().collect()
    assert by_key(stored) == sent_by_key()


def step(state: list[int] | None, event: Event) -> tuple[list[int], list[dict[str, Any]]]:
    seen = [*(state or []), event.value]
    return seen, [{"key": event.key, "place": len(seen), "number": event.value}]


def test_a_pipeline_applies_every_event_of_a_key_once_and_in_order(
    spark: Any, address: str, topic: str, tmp_path: Path
) -> None:
    import sqlite3

    pipeline = Pipeline(
        "interop",
        Topic(address, topic, maxOffsetsPerTrigger=90),
        Transitions(step=step, outputs="key string, place long, number long"),
        SqliteSink(tmp_path / "table.db", "numbers"),
        tmp_path / "checkpoint",
    )
    for first in (0, KEYS * ROUNDS):
        filled(address, topic, first)
        assert start(pipeline, spark, once=True).await_end(2 * PATIENCE)
    with sqlite3.connect(tmp_path / "table.db") as database:
        rows = database.execute("select key, place, number from numbers order by key, place").fetchall()
    database.close()
    found = defaultdict[str, list[int]](list)
    for key, _, number in rows:
        found[key].append(number)
    assert found == {key: numbers + sent_by_key(KEYS * ROUNDS)[key] for key, numbers in sent_by_key().items()}
