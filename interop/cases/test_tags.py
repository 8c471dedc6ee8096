"""Tags: messages that do not match are not delivered and do not block others."""

from functools import partial

import pytest

from interop.clients import Content, Listening, Turn
from interop.judge import bodies, done
from interop.stage import Stage


def _send(stage: Stage, topic: str, tags: list[str]) -> None:
    producer = stage.producer()
    for number, tag in enumerate(tags):
        producer.send(topic, Content(f"{tag}:{number}", tags=tag), key="k")


@pytest.mark.row("A17")
@pytest.mark.parametrize("orderly", [True, False])
def test_only_subscribed_tags_are_delivered_and_the_offset_passes_the_others(stage: Stage, orderly: bool) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    tags = ["A", "B", "C", "D", "E"] * 6
    _send(stage, topic, tags)
    wanted = [f"{tag}:{i}" for i, tag in enumerate(tags) if tag in "ACD"]
    member = stage.member(group, topic, Listening(orderly=orderly, tags="A || C || D", threads=1))
    turns = member.wait(lambda turns: len(done(turns)) >= len(wanted))
    assert bodies(turns) == wanted
    stage.eventually(lambda: stage.admin.progress(topic, group) == {0: 30}, "the offset passes the last E")


@pytest.mark.row("A61")
def test_a_queue_full_of_other_tags_does_not_stop_the_consumer(stage: Stage) -> None:
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["other"] * 100 + ["mine"])
    turns = stage.member(group, topic, Listening(tags="mine")).wait(lambda turns: len(turns) == 1)
    assert bodies(turns) == ["mine:100"]


def test_a_tag_with_the_same_hash_is_still_another_tag(stage: Stage) -> None:
    """`Aa` and `BB` have the same hash code in Java; the broker cannot distinguish them, so the client must."""
    topic, group = stage.topic(queues=1), stage.name("g")
    _send(stage, topic, ["BB", "Aa", "BB", "Aa"])
    turns = stage.member(group, topic, Listening(tags="Aa")).wait(lambda turns: len(done(turns)) == 2)
    assert bodies(turns) == ["Aa:1", "Aa:3"]


def test_a_waiting_pull_is_woken_by_its_tag(stage: Stage) -> None:
    """The broker checks waiting pulls every 5 s; a matching message must not wait for that."""
    topic, group = stage.topic(queues=1), stage.name("g")
    member = stage.member(group, topic, Listening(tags="mine"))
    producer = stage.producer()
    producer.send(topic, Content("warm", tags="mine"), key="k")
    member.wait(lambda turns: len(done(turns)) == 1)
    latencies = []
    for number in range(5):
        producer.send(topic, Content("other", tags="other"), key="k")
        producer.send(topic, Content(f"{number}", tags="mine"), key="k")
        turns = member.wait(partial(_at_least, number + 2))
        latencies.append(turns[-1].started_us / 1000 - turns[-1].messages[0].store_ms)
    assert min(latencies) < 500


def _at_least(count: int, turns: list[Turn]) -> bool:
    return len(done(turns)) >= count
