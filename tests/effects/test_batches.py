"""A batch handler that uses `once` for its whole batch and names one message in an exception loses no effect."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lanemq import App, Message, MessageFailed, Producer, Skip, ToDeadLetter
from lanemq.client.consumer.turns import handler
from lanemq.effects import once
from lanemq.testing.embedded import EmbeddedBroker

COUNT, NAMED, SECONDS = 6, 3, 30


def applied(broker: EmbeddedBroker, topic: str, path: Path, failure: Callable[[Message], Exception]) -> list[int]:
    """The effects of a batch of six messages of one key; the block raises at message 3, the first time or always."""
    ended, calls = threading.Event(), 0

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=30)

    with connect() as shop:
        shop.execute("CREATE TABLE effects (number INTEGER)")
    with Producer(broker.address, create=[topic]) as producer:
        producer.send_many(topic, [("key", {"number": number}) for number in range(COUNT)])
    app = App(broker.address, group=topic)

    @app.ordered(topic, batch_size=COUNT)
    def on_batch(events: list[dict[str, Any]], messages: list[Message]) -> None:
        nonlocal calls
        calls += 1
        with once(messages, connect) as shop:
            for event, message in zip(events, messages, strict=True):
                if event["number"] == NAMED and (calls == 1 or failure is not MessageFailed):
                    raise failure(message)
                shop.execute("INSERT INTO effects VALUES (?)", [event["number"]])
        if events[-1]["number"] == COUNT - 1:
            ended.set()

    app.start()
    try:
        assert ended.wait(SECONDS), f"after {calls} calls the last message is not applied"
    finally:
        app.stop()
    return [row[0] for row in connect().execute("SELECT number FROM effects ORDER BY number")]


ALL = list(range(COUNT))
OTHERS = [number for number in ALL if number != NAMED]


def skipping(message: Message) -> Exception:
    return Skip(message=message)


def to_dead_letters(message: Message) -> Exception:
    return ToDeadLetter("bad", message=message)


@pytest.mark.parametrize(("failure", "expected"), [(MessageFailed, ALL), (skipping, OTHERS), (to_dead_letters, OTHERS)])
def test_a_batch_that_is_rolled_back_at_a_named_message_is_applied_completely(
    broker: EmbeddedBroker, tmp_path: Path, failure: Callable[[Message], Exception], expected: list[int]
) -> None:
    topic = f"batch-{getattr(failure, '__name__', '')}"
    assert applied(broker, topic, tmp_path / "shop.db", failure) == expected


def test_without_the_note_of_once_the_messages_before_the_named_one_are_lost(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "_were_rolled_back", lambda before, error: False)
    assert applied(broker, "control", tmp_path / "shop.db", MessageFailed) == ALL[NAMED:]
