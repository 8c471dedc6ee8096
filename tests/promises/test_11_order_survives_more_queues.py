"""Promise 11: more queues break no key's order: they are refused, stop the work, or sequence numbers restore it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import QUERY, Pipeline, Sent, arrow
from tests.spark.spark_driver import Query, send

from lanemq.client.admin.admin import Admin
from lanemq.model.errors import BrokerRefused, OrderError
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint.queues import QueueSet
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.stages.transitions.messages import SHARD
from lanemq.spark.offsets import from_json
from lanemq.testing.embedded import EmbeddedBroker

BEFORE = [Sent(0, at, "k", {"n": at + 1}) for at in range(3)]
"""Messages of a key sent while the topic had one queue."""
AFTER = [Sent(1, at, "k", {"n": at + 4}) for at in range(3)]
"""Messages sent when there were two, and its hash chose the other."""


def test_the_broker_refuses_it_for_an_ordered_topic(broker: EmbeddedBroker, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-ordered", 2, ordered=True)
        with pytest.raises(BrokerRefused, match="queue count of an ordered topic cannot change"):
            admin.create_topic(f"{topic}-ordered", 4, ordered=True)
        assert len(admin.describe_topic(f"{topic}-ordered").queues) == 2


def test_a_pipeline_stops_before_it_reads_a_new_queue(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """A topic can grow on an Apache broker, or if it is not ordered."""
    known = QueueSet(RunLog(tmp_path, lambda runs: 1), "fail")
    send(broker.address, topic, range(10))
    with Query(servers=broker.address, topic=topic, startingOffsets="earliest") as query:
        query.batch()
        known.check(from_json(json.loads(query.checkpoint.ends[-1])))
        with Admin(broker.address) as admin:
            admin.create_topic(topic, 4)
        assert query.plan()
        with pytest.raises(OrderError, match=f"topic {topic} had 2 queues"):
            known.check(from_json(json.loads(query.checkpoint.ends[-1])))


class ByKey(Pipeline):
    """A pipeline with `shards=<number>`: a key's state is found in whichever queue the key is."""

    def process(self, *messages: Sent, again: bool = False, settle: bool = True) -> dict[str, int]:
        self.batch += 1
        batch, rows = Batch(QUERY, batch_number(self.batch), 1), arrow(messages)
        shared = rows.append_column(SHARD, pa.array([0] * rows.num_rows, pa.int32()))
        self.stage._arranged = lambda frame: frame  # type: ignore[method-assign]
        return self._settle(self.stage.process(self.frame([[shared]]), batch), batch)


def stage_in(folder: Path) -> Path:
    """A stage's folder, beside which the log of its pipeline is."""
    (folder / "stage").mkdir()
    return folder / "stage"


def seen(pipeline: Pipeline) -> list[tuple[int, int]]:
    """What the key's rows say: its number, and how many events its state knew of."""
    return [(row["n"], row["seen"]) for row in pipeline.sink.rows()]


@pytest.mark.parametrize("batches", [[BEFORE, AFTER], [AFTER, BEFORE], [[*BEFORE, *AFTER]]])
def test_numbers_keep_a_key_in_order_in_two_queues(tmp_path: Path, batches: list[list[Sent]]) -> None:
    """Whichever queue is read first; the key waits for the number that is missing."""
    pipeline = ByKey(stage_in(tmp_path), shards=1, sequence="n", on_gap="hold")
    for messages in batches:
        pipeline.process(*messages)
    while pipeline.process_retry_pass() is not None:
        pass
    assert seen(pipeline) == [(n, n) for n in range(1, 7)]


def test_a_key_without_numbers_is_refused_in_a_second_queue(tmp_path: Path) -> None:
    pipeline = ByKey(stage_in(tmp_path), shards=1)
    pipeline.process(*BEFORE)
    with pytest.raises(OrderError, match="key 'k' has messages in"):
        pipeline.process(*AFTER)


def test_continuing_after_a_change_breaks_order_and_state(tmp_path: Path) -> None:
    """Negative control: `on_queue_change="continue"`, or any consumer that takes queues as they come."""
    options: dict[str, Any] = {"on_queue_change": "continue"}
    pipeline = Pipeline(stage_in(tmp_path), **options)
    pipeline.process(*AFTER)
    pipeline.process(*BEFORE)
    assert seen(pipeline) == [(4, 1), (5, 2), (6, 3), (1, 1), (2, 2), (3, 3)]
