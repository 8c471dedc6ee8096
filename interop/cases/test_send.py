"""Receipts of a producer, and messages that arrive as they were sent."""

import pytest

from interop.clients import ClientError, Content, Listening
from interop.stage import Stage

MIB = 1024 * 1024
QUEUE_OF_KEY = {"order-1": 2, "polygenelubricants": 0, "你好": 1, "TagA": 3}
"""Java's `String.hashCode` over four queues, worked out from the vectors of java.lang.String."""


@pytest.mark.row("A13")
@pytest.mark.row("A15")
@pytest.mark.parametrize("key", sorted(QUEUE_OF_KEY))
def test_a_key_goes_to_the_queue_of_the_hash_selector(stage: Stage, key: str) -> None:
    topic, producer = stage.topic(queues=4), stage.producer()
    assert {producer.send(topic, f"{i}", key=key).queue for i in range(5)} == {QUEUE_OF_KEY[key]}


@pytest.mark.row("A18")
def test_offsets_of_a_queue_count_up_by_one(stage: Stage) -> None:
    topic, producer = stage.topic(), stage.producer()
    offsets: dict[int, list[int]] = {}
    for i in range(40):
        receipt = producer.send(topic, f"{i}", key=f"key-{i % 10}")
        offsets.setdefault(receipt.queue, []).append(receipt.offset)
    assert all(found == list(range(len(found))) for found in offsets.values())
    bounds = stage.stored(topic, 40)
    assert {queue: pair for queue, pair in bounds.items() if pair != (0, 0)} == {
        queue: (0, len(found)) for queue, found in offsets.items()
    }


@pytest.mark.row("A11")
def test_messages_without_a_key_spread_over_the_queues(stage: Stage) -> None:
    topic, producer = stage.topic(queues=4), stage.producer()
    assert {producer.send(topic, f"{i}").queue for i in range(16)} == {0, 1, 2, 3}


def test_a_batch_is_stored_in_one_queue_without_a_gap(stage: Stage) -> None:
    topic, producer, group = stage.topic(), stage.producer(), stage.name("g")
    producer.send(topic, "before", key="k")
    receipt = producer.send_batch(topic, [f"batch-{i}" for i in range(10)], key="k")
    after = producer.send(topic, "after", key="k")
    assert (receipt.offset, after.offset) == (1, 11)
    stage.stored(topic, 12)
    found = stage.puller(group).pull(topic, receipt.queue, 0)
    assert [seen.body for seen in found.messages] == ["before", *[f"batch-{i}" for i in range(10)], "after"]


def test_the_receipt_of_a_batch_has_an_offset_id_for_each_message(stage: Stage) -> None:
    """Unique ids are not checked, because the 5.x client gives all messages of a batch the same one."""
    topic, producer = stage.topic(), stage.producer()
    receipt = producer.send_batch(topic, ["a", "b", "c"], key="k")
    places = receipt.offset_id.split(",")
    assert [stage.admin.view(topic, place).body for place in places] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(Content("x", repeat=4095), id="below-the-compression-threshold"),
        pytest.param(Content("lane ", repeat=20_000), id="compressed"),
        pytest.param(Content(noise=100_000), id="compressed-and-larger-for-it"),
        pytest.param(Content("lane", repeat=MIB), id="four-mib-compressed"),
        pytest.param(Content(noise=4 * MIB - 8192), id="four-mib"),
    ],
)
def test_a_body_arrives_as_it_was_sent(stage: Stage, content: Content) -> None:
    topic, producer, group = stage.topic(), stage.producer(), stage.name("g")
    sent = producer.send(topic, content, key="k")
    turns = stage.member(group, topic).wait(lambda turns: len(turns) >= 1)
    seen = turns[0].messages[0]
    assert (seen.size, seen.sha1) == (sent.size, sent.sha1)


def test_a_body_over_four_mib_is_refused(stage: Stage) -> None:
    topic, producer = stage.topic(), stage.producer()
    with pytest.raises(ClientError):
        producer.send(topic, Content(noise=4 * MIB + 1), key="k")
    assert producer.send(topic, "next", key="k").offset == 0


def test_tags_keys_and_properties_travel_with_the_message(stage: Stage) -> None:
    topic, producer, group = stage.topic(), stage.producer(), stage.name("g")
    content = Content("b", tags="TagA", keys="one two", properties={"colour": "blue", "größe": "ü/1"})
    receipt = producer.send(topic, content, key="k")
    stage.stored(topic, 1)
    seen = stage.puller(group).pull(topic, receipt.queue, 0).messages[0]
    assert (seen.tags, seen.keys, seen.id) == ("TagA", "one two", receipt.id)
    assert {"colour": "blue", "größe": "ü/1"}.items() <= dict(seen.properties).items()


def test_a_delayed_message_comes_after_its_delay_and_once(stage: Stage) -> None:
    topic, producer, group = stage.topic(), stage.producer(), stage.name("g")
    member = stage.member(group, topic, Listening(orderly=False))
    producer.send(topic, "warm", key="k")
    member.wait(lambda turns: len(turns) == 1)
    producer.send(topic, Content("late", delay_level=2), key="k")
    producer.send(topic, "at once", key="k")
    turns = member.wait(lambda turns: len(turns) >= 3)
    assert [turn.body for turn in turns] == ["warm", "at once", "late"]
    late = turns[2]
    assert late.started_us - turns[1].started_us >= 4_000_000
