"""Which queues are read to their ends, by Spark's files and a real broker."""

import json
from pathlib import Path

from lanemq import Producer
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.pipelines import Topic
from lanemq.pipelines.checkpoint.checkpoint import SparkLog
from lanemq.pipelines.running.queue_ends import SourceEnds
from lanemq.spark.offsets import to_json
from lanemq.testing.embedded import EmbeddedBroker


def record(checkpoint: Path, batch: int, positions: dict[MessageQueue, int]) -> None:
    """Writes Spark's files about a batch that is done."""
    offsets = {queue: QueueOffset(position) for queue, position in positions.items()}
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(to_json(offsets))}"), ("commits", "v1\n{}")):
        (checkpoint / folder).mkdir(exist_ok=True)
        (checkpoint / folder / str(batch)).write_text(text)


def test_a_queue_is_at_its_end_when_the_last_done_batch_has_read_it(
    broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    with Producer(broker.address) as producer:
        queue = producer.send(topic, b"1", key="a").queue
        producer.send(topic, b"2", key="a")
    other = MessageQueue(topic, queue.broker, 1 - queue.queue_id)
    names = [f"{each.topic}/{each.broker}/{each.queue_id}" for each in (queue, other)]
    ends = SourceEnds(Topic(broker.address, topic).parsed, SparkLog(tmp_path))
    try:
        assert ends() == {}
        record(tmp_path, 0, {queue: 1})
        assert ends() == {names[0]: None, names[1]: 0}, "the other queue is empty"
        record(tmp_path, 1, {queue: 2, other: 0})
        assert ends() == {names[0]: 2, names[1]: 0}
    finally:
        ends.close()


def test_without_an_answer_nothing_is_known_to_be_at_its_end(tmp_path: Path) -> None:
    record(tmp_path, 0, {MessageQueue("t", "b", 0): 1})
    ends = SourceEnds(Topic("127.0.0.1:9", "t").parsed, SparkLog(tmp_path))
    assert ends() == {}
    ends.close()
