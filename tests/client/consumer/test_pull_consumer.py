"""`PullConsumer` with a real broker."""

import threading

import pytest
from tests.client.consumer.with_broker import send
from tests.client.fake_cluster import FakeCluster

from lanemq.client.consumer.options import StartFrom
from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.producer.producer import Producer
from lanemq.model.errors import ConnectFailed, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode, ResponseCode

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


def test_reading_goes_on_at_a_replica_while_the_master_is_away_and_commits_wait() -> None:
    """What is committed at a replica would be lost: it copies offsets from its master."""
    queue = MessageQueue("orders", "broker-a", 0)
    pulled = {"nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7", "suggestWhichBrokerId": "0"}
    with FakeCluster() as cluster:
        cluster.create("orders", 1)
        replica = cluster.add_replica("broker-a")
        replica.answers |= {
            RequestCode.QUERY_CONSUMER_OFFSET: lambda _: (0, {"offset": "5"}, b""),
            RequestCode.PULL_MESSAGE: lambda _: (ResponseCode.PULL_NOT_FOUND, pulled, b""),
        }
        cluster.kill("broker-a")
        with PullConsumer(cluster.address, group="g") as consumer:
            consumer.assign([queue])
            assert consumer.poll(timeout=0.01) == []
            with pytest.raises(ConnectFailed, match="has no master"):
                consumer.commit()
        assert replica.codes[RequestCode.PULL_MESSAGE] >= 1
        assert replica.codes[RequestCode.UPDATE_CONSUMER_OFFSET] == 0
