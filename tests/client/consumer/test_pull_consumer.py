"""`PullConsumer` with a real broker."""

import threading

import pytest
from tests.client.consumer.with_broker import send

from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.producer.producer import Producer
from lanemq.model.errors import UsageError
from lanemq.testing.embedded import EmbeddedBroker

FIRST = {"start": StartFrom.FIRST}


def test_a_pull_consumer_reads_from_chosen_offsets_and_commits_on_demand(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=10)
    with PullConsumer(broker.address, group=f"g-{topic}") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        messages = consumer.poll(30)
        assert [each.value()["n"] for each in messages] == list(range(10))
        used = messages[0].queue
        consumer.seek(used, 7)
        assert [each.value()["n"] for each in consumer.poll(30)] == [7, 8, 9]
        assert consumer.committed(used) is None
        consumer.commit()
        assert consumer.committed(used) == 10
        assert consumer.poll(0) == []
        consumer.seek_to_first()
        assert consumer.position(used) == 0
        consumer.seek_to_last()
        assert consumer.position(used) == 10
        consumer.seek_to_time(0)
        assert consumer.position(used) == 0
        with pytest.raises(UsageError):
            consumer.seek(used._replace(queue_id=99), 0)


def test_a_pull_consumer_waits_for_a_message_that_is_sent_later(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    with PullConsumer(broker.address, group=f"g-{topic}") as consumer, Producer(broker.address) as producer:
        used = producer.send(topic, {"n": 1}, key="k0").queue
        consumer.assign([used])
        consumer.seek_to_last()
        later = threading.Timer(0.1, lambda: producer.send(topic, {"n": 2}, key="k0"))
        later.start()
        assert [each.value()["n"] for each in consumer.poll(10)] == [2]
        later.join()
