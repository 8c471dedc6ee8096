"""Messages are found by either id and by key."""

from interop.clients import Content
from interop.stage import Stage


def test_a_message_is_found_by_both_of_its_ids(stage: Stage) -> None:
    topic, producer = stage.topic(), stage.producer()
    receipt = producer.send(topic, "needle", key="k")
    by_place = stage.eventually(lambda: stage.admin.view(topic, receipt.offset_id), "found by place")
    by_unique_id = stage.eventually(lambda: stage.admin.view(topic, receipt.id), "found by unique id")
    for seen in (by_place, by_unique_id):
        assert (seen.body, seen.queue, seen.offset) == ("needle", receipt.queue, receipt.offset)


def test_messages_are_found_by_each_of_their_keys(stage: Stage) -> None:
    topic, other, producer = stage.topic(), stage.topic(), stage.producer()
    for target, text, keys in (
        (topic, "a", "x y"),
        (topic, "b", "y"),
        (topic, "c", "z"),
        (other, "d", "x y"),
    ):
        producer.send(target, Content(text, keys=keys), key="k")
    stage.eventually(lambda: len(stage.admin.query(topic, "z")) == 1, "the index has the last message")
    assert [seen.body for seen in stage.admin.query(topic, "x")] == ["a"]
    assert sorted(seen.body for seen in stage.admin.query(topic, "y")) == ["a", "b"]
