"""Delayed messages at the source: a cut-over does not leave them behind without a word."""

import pytest
from tests.mirror.pair import Pair, stored
from tests.mirror.test_moving_groups import consume
from tests.mirror.test_way_back import call

from lanemq.client.producer.producer import Producer
from lanemq.mirror import cut_over, positions
from lanemq.mirror.delayed import DelayedMessage, delayed_messages
from lanemq.mirror.positions import NotMovable, translate

TWO_HOURS = 18


def fill(pair: Pair, topic: str, level: int) -> None:
    pair.create(topic, 2, 2, ordered=False)
    with Producer(pair.source) as producer:
        producer.send(topic, {"n": 1})
        producer.send(topic, {"n": 2}, delay_level=level)


def test_a_cut_over_fails_before_the_seal_while_delayed_messages_of_the_topic_wait(pair: Pair) -> None:
    fill(pair, "later", TWO_HOURS)
    fill(pair, "beside", TWO_HOURS)
    with pair.options("later").open_source() as source:
        assert len(delayed_messages(source, ("later",))) == 1
        assert len(delayed_messages(source, ("later", "beside"))) == 2
    done = call(pair.source, pair.target, "cut-over", "later", "--seal")
    assert done.exit_code == 1
    assert "failed  ready: 1 delayed messages or retries wait at the source" in done.stdout
    assert "--delayed wait" in done.stdout
    with Producer(pair.source) as producer:
        producer.send("later", {"n": 3})
    left = call(pair.source, pair.target, "cut-over", "later", "--seal", "--delayed", "leave")
    assert left.exit_code == 0, left.output
    assert "ok      delayed: 1 delayed messages stay at the source" in left.stdout


def test_a_cut_over_waits_for_delayed_messages_and_copies_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_over, "DELAYED_SECONDS", 0.05)
    fill(pair, "awaited", 1)
    done = call(pair.source, pair.target, "cut-over", "awaited", "--seal", "--delayed", "wait")
    assert done.exit_code == 0, done.output
    assert sorted(each.value()["n"] for each in stored(pair.target, "awaited")) == [1, 2]


def test_without_the_look_a_delayed_message_is_left_behind(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    fill(pair, "forgotten", TWO_HOURS)
    monkeypatch.setattr(cut_over, "delayed_messages", lambda *_: [])
    assert call(pair.source, pair.target, "cut-over", "forgotten", "--seal").exit_code == 0
    assert len(stored(pair.target, "forgotten")) == 1


def test_a_group_with_a_retry_that_is_not_due_is_not_moved(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(pair, "retried", TWO_HOURS)
    consume(pair.source, "retried", "tries", 1)
    retry = DelayedMessage("%RETRY%tries", "retried", 0)
    monkeypatch.setattr(positions, "delayed_messages", lambda *_: [retry])
    with pytest.raises(NotMovable, match="retries at the source that are not due yet"):
        translate(pair.options("retried"), ["tries"])
    monkeypatch.undo()
    assert translate(pair.options("retried"), ["tries"])
