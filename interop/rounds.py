"""Messages of many keys in rounds, and the checks after several members have processed them."""

from collections.abc import Callable

from interop.clients import Member, Turn
from interop.judge import bodies, by_key, done, in_order_with_repeats, overlaps
from interop.stage import Stage

KEYS = [f"order-{i}" for i in range(12)]
"""Enough for every one of four queues."""


def send_rounds(stage: Stage, topic: str, rounds: range) -> list[str]:
    producer = stage.producer()
    texts = [f"{key}:{i}" for i in rounds for key in KEYS]
    for text in texts:
        producer.send(topic, text, key=text.split(":")[0])
    return texts


def all_done(members: list[Member], texts: list[str]) -> Callable[[], bool]:
    wanted = set(texts)
    return lambda: wanted <= {body for member in members for body in bodies(done(member.turns()))}


def history(*members: Member) -> list[Turn]:
    return sorted((turn for member in members for turn in member.turns()), key=lambda turn: turn.started_us)


def assert_in_order(turns: list[Turn], texts: list[str]) -> None:
    assert overlaps(turns) == []
    for key, expected in by_key(texts).items():
        seen = by_key(bodies(turns))[key]
        assert in_order_with_repeats(seen, expected), (key, seen)
