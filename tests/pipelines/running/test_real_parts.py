"""Real stages and sinks in a pipeline, and a crash between the sink's commit and Spark's record."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.model.errors import InvalidOption
from lanemq.pipelines import DeltaSink, LastState, Pipeline, Project, Topic, TopicSink, read_table, start
from lanemq.pipelines.running.nothing_new import is_nothing_new
from lanemq.pipelines.running.progress import Progress
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def forget_last_note(checkpoint: Path) -> None:
    """Remove Spark's record of the last batch, as if the driver had died before it."""
    notes = sorted(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    notes[-1].unlink()


def test_a_table_is_replicated_and_a_crash_changes_nothing(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    rows = {f"{n}": {"id": n, "name": f"n{n}"} for n in range(20)}
    with Producer(broker.address) as producer:
        for round_ in range(3):
            for key, row in rows.items():
                producer.send(topic, row | {"name": f"{row['name']}-{round_}"}, key=key)
        producer.send(topic, b"{broken", key="5")
        producer.send(topic, b"", key="7")
    pipeline = Pipeline(
        "replica",
        Topic(broker.address, topic, maxOffsetsPerTrigger=25),
        LastState("id bigint, name string", ["id"]),
        DeltaSink(tmp_path / "table"),
        tmp_path / "checkpoint",
    )
    assert start(pipeline, spark, once=True).await_end(600)
    forget_last_note(tmp_path / "checkpoint")
    reported: list[Progress] = []
    assert start(pipeline, spark, once=True, report=reported.append).await_end(600)
    assert reported[0].applied.repeated
    found = {row["id"]: row["name"] for row in read_table(tmp_path / "table").to_pylist()}
    assert {n: name for n, name in found.items() if n != 7} == {n: f"n{n}-2" for n in range(20) if n != 7}
    assert is_nothing_new(pipeline)
    changed = replace(pipeline, stage=LastState("id bigint, name string", ["name"]))
    for _ in range(2):
        assert not is_nothing_new(changed), "a start that was refused is not recorded"
        with pytest.raises(InvalidOption, match="keys is name"):
            start(changed, spark, once=True)


def test_a_topic_is_copied_without_duplicates_after_a_crash(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """A topic has no ledger, so the repeated batch is sent again, and the broker drops it."""
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-copy", 2)
    with Producer(broker.address) as producer:
        for n in range(40):
            producer.send(topic, n, key=f"k{n % 5}")
    pipeline = Pipeline(
        "copy",
        Topic(broker.address, topic),
        Project(["key", "value"]),
        TopicSink(broker.address, f"{topic}-copy", key="key", value="value"),
        tmp_path / "checkpoint",
    )
    for _ in range(2):
        assert start(pipeline, spark, once=True).await_end(600)
        forget_last_note(tmp_path / "checkpoint")
    copied = spark.read.format("lanemq").options(servers=broker.address, topic=f"{topic}-copy").load().collect()
    by_key: dict[str, list[int]] = {}
    for row in copied:
        by_key.setdefault(row.key, []).append(json.loads(bytes(row.value)))
    assert by_key == {f"k{k}": list(range(k, 40, 5)) for k in range(5)}
