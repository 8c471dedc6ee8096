"""`TopicReader` returns exactly the requested offsets, and always ends."""

import pytest

from lanemq.client.admin.topic_reader import PAGE, TopicReader
from lanemq.client.message import Message, MessageSource
from lanemq.client.producer.producer import Producer
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture
def reader(broker: EmbeddedBroker, topic: str) -> TopicReader:
    with Producer(broker.address) as producer:
        producer.send_many(topic, [("k", number) for number in range(3 * PAGE)])
    return TopicReader(broker.address, topic)


def offsets(reader: TopicReader, start: int, end: int) -> list[int]:
    (queue,) = [queue for queue in reader.queues if reader.bounds(queue)[1]]
    return [message.queue_offset for message in reader.read(queue, start, end)]


def test_pages_join_without_gap_or_overlap(reader: TopicReader) -> None:
    with reader:
        assert offsets(reader, 5, 2 * PAGE + 5) == list(range(5, 2 * PAGE + 5))


def test_messages_after_the_end_are_dropped(reader: TopicReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that skips a damaged message fills the page with later ones."""
    pull = reader._pull
    monkeypatch.setattr(reader, "_pull", lambda source, offset, most: pull(source, offset, most + 3))
    with reader:
        assert offsets(reader, 0, 10) == list(range(10))


def test_reading_ends_if_the_broker_makes_no_progress(reader: TopicReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_: MessageSource, offset: int, __: int) -> tuple[list[Message], int]:
        return [], offset

    monkeypatch.setattr(reader, "_pull", stuck)
    with reader:
        assert offsets(reader, 0, 10) == []


def test_offsets_before_the_first_one_are_skipped(reader: TopicReader) -> None:
    with reader:
        assert offsets(reader, -5, 3) == [0, 1, 2]


def test_the_first_message_is_read_alone(reader: TopicReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of a lag needs one message; a page of large ones would cost the broker megabytes."""
    pull, limits = reader._pull, []
    monkeypatch.setattr(reader, "_pull", lambda source, at, most: limits.append(most) or pull(source, at, most))
    with reader:
        (queue,) = [queue for queue in reader.queues if reader.bounds(queue)[1]]
        first = reader.first(queue, 7, 3 * PAGE)
        assert first is not None
        assert first.queue_offset == 7
        assert reader.first(queue, 3 * PAGE, 3 * PAGE) is None
    assert limits == [1]
