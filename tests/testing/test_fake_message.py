"""`Message.fake`: a message as a consumer would get it."""

from datetime import UTC, datetime

import pytest

from lanemq import Message


def test_a_fake_has_what_it_was_given() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    fake = Message.fake(
        {"n": 1}, key="k", topic="orders", queue=2, offset=7, tag="paid", properties={"a": "b"}, attempt=3, sent_at=at
    )
    assert (fake.value(), fake.key, fake.topic, fake.queue_offset, fake.tag) == ({"n": 1}, "k", "orders", 7, "paid")
    assert (fake.attempt, fake.properties["a"], fake.stored_at) == (3, "b", at)


@pytest.mark.parametrize(("given", "keys"), [("order-1", ("order-1",)), (["a", "b"], ("a", "b")), ((), ())])
def test_its_keys_are_one_text_or_several(given: str | list[str], keys: tuple[str, ...]) -> None:
    assert tuple(Message.fake(keys=given).keys) == keys
