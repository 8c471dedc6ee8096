"""The messages of a key where the broker does not index keys, as on an Apache cluster."""

import pytest

from lanemq.client.admin import key_progress
from lanemq.client.admin.key_progress import KeyFacts, key_facts
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.producer.producer import Producer
from lanemq.client.topic_route import TopicRoute
from lanemq.testing.embedded import EmbeddedBroker

KEYS = 5


@pytest.fixture
def facts(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> KeyFacts:
    """Of `key-0`, which has the first and the last message; three messages are searched."""
    with Producer(broker.address) as producer:
        for number in range(4 * KEYS + 1):
            producer.send(topic, number, key=f"key-{number % KEYS}", queue=0)
        producer.send(topic, "elsewhere", key="key-0", keys=["found"], queue=1)
    monkeypatch.setattr(TopicRoute, "is_lanemq", lambda *_: False)
    monkeypatch.setattr(key_progress, "pick_queue", lambda key, queues: queues[0])
    indexed = TopicReader.find
    monkeypatch.setattr(
        TopicReader, "find", lambda self, key: [each for each in indexed(self, key) if "found" in each.keys]
    )
    monkeypatch.setattr(key_progress, "MAX_SEARCHED", 2 * KEYS + 1)
    return key_facts("key-0", topic, None, broker.address)


def test_the_newest_messages_of_its_queue_are_read_and_the_rest_is_named(facts: KeyFacts) -> None:
    assert [(each.queue.queue_id, each.queue_offset) for each in facts.messages] == [(1, 0), (0, 10), (0, 15), (0, 20)]
    assert facts.not_searched == (
        f"{facts.queue.broker} does not index keys: of the 21 messages of queue 0 only the newest 11 were searched."
    )


def test_nothing_is_named_if_the_whole_queue_was_read(
    facts: KeyFacts, broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_progress, "MAX_SEARCHED", 21)
    whole = key_facts("key-0", topic, None, broker.address)
    assert (len(whole.messages), whole.not_searched) == (len(facts.messages) + 2, "")
