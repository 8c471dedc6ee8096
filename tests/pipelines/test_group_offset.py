"""After a clean end the broker has the checkpoint's offsets for the group."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.spark_driver import Query, send

from lanemq.client.admin.admin import Admin
from lanemq.model.queue import MessageQueue
from lanemq.pipelines import Pipeline, Project, SqliteSink, Topic, start
from lanemq.spark.offsets import from_json
from lanemq.spark.read.stream_driver import is_committed
from lanemq.testing.embedded import EmbeddedBroker


def until(is_true: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not is_true() and time.monotonic() < end:
        time.sleep(0.02)
    return is_true()


def group_total(address: str, topic: str, group: str) -> int:
    """The sum of the offsets of both queues."""
    with Admin(address) as admin:
        name = admin.describe_topic(topic).queues[0].queue.broker
        return sum(admin.committed(group, MessageQueue(topic, name, queue)) or 0 for queue in range(2))


def note(folder: Path, end: dict[str, dict[str, int]], batch: int = 0, *, done: bool) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
    if done:
        (folder / "commits" / str(batch)).write_text("v1\n{}")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_the_last_batch_is_committed_at_the_end_if_spark_recorded_it(
    broker: EmbeddedBroker, topic: str, group: str, tmp_path: Path, done: bool, ordered: bool
) -> None:
    send(broker.address, topic, range(20))
    options = {"servers": broker.address, "topic": topic, "group": group, "ordered": str(ordered).lower()}
    query = Query(startingOffsets="earliest", **options)
    query.reader._driver._checkpoint = str(tmp_path)
    assert query.plan()
    query.read(query.partitions())
    note(tmp_path, json.loads(query.checkpoint.ends[-1]), done=done)
    query.stop()
    assert group_total(broker.address, topic, group) == (20 if done else 0)


def test_only_the_batch_that_was_planned_last_is_committed(tmp_path: Path) -> None:
    """An interrupted batch is not done, even if the one before it is."""
    first, second = {"t": {"b/0": 5}}, {"t": {"b/0": 9}}
    note(tmp_path, first, 0, done=True)
    note(tmp_path, second, 1, done=False)
    assert is_committed(str(tmp_path), from_json(first))
    assert not is_committed(f"file://{tmp_path}", from_json(second))
    note(tmp_path, second, 1, done=True)
    assert is_committed(f"file://{tmp_path}", from_json(second))
    (tmp_path / "offsets" / "1").write_text("v1\n")
    assert not is_committed(str(tmp_path), from_json(second))
    assert not is_committed(None, {})
    assert not is_committed(str(tmp_path / "nothing"), {})


def test_a_stop_right_after_a_batch_commits_its_offsets(
    spark: Any, broker: EmbeddedBroker, topic: str, group: str, tmp_path: Path
) -> None:
    """Spark itself would report this batch only when it plans the next one, half a minute later."""
    send(broker.address, topic, range(20))
    pipeline = Pipeline(
        "reported",
        Topic(broker.address, topic, group=group, startingOffsets="earliest"),
        Project(["key", "queue_offset"]),
        SqliteSink(tmp_path / "rows.db", "rows"),
        tmp_path / "checkpoint",
        trigger="30s",
    )
    with start(pipeline, spark) as running:
        assert running.wait_idle(600)
    assert until(lambda: group_total(broker.address, topic, group) == 20)
