"""The check of `make bench-peers`: a run with a lost, overtaken or missing message does not pass."""

from collections.abc import Callable

import msgspec
import pytest
from benchmarks.peers.order import ArrayCheck, Numbered, OrderCheck, body, checked, verdict


def seen(made: Numbered, count: int) -> list[tuple[str, int]]:
    return [(key, msgspec.json.decode(value)["n"]) for key, value in made.messages(count)]


@pytest.mark.parametrize("size", [100, 1000])
def test_a_body_is_json_of_the_wanted_size_with_its_key_and_number(size: int) -> None:
    made = body("key-7", 12, size, at=123_456_789)
    assert len(made) == size
    event = msgspec.json.decode(made)
    assert (event["key"], event["n"], event["at"]) == ("key-7", 12, 123_456_789)


def test_numbers_go_on_from_call_to_call() -> None:
    made = Numbered(3, 100)
    received = [*seen(made, 4), *seen(made, 5)]
    assert [number for key, number in received if key == "key-0"] == [0, 1, 2]
    check = checked(received)
    assert (verdict(check, made.made), check.repeats) == ("pass", 0)


def test_a_message_that_is_delivered_again_is_a_repeat_and_no_fault() -> None:
    check = checked([("a", 0), ("a", 1), ("a", 0), ("a", 1), ("a", 2)])
    assert (verdict(check, 3), check.repeats) == ("pass", 2)


@pytest.mark.parametrize("check", [OrderCheck, lambda: ArrayCheck(3)], ids=["by dictionary", "by array"])
def test_both_checks_count_the_same(check: Callable[[], OrderCheck]) -> None:
    seen = check()
    new = [seen.see(f"key-{key}", number) for key, number in [(0, 0), (2, 0), (0, 3), (0, 1), (0, 1), (0, 4), (2, 1)]]
    assert new == [True, True, True, True, False, True, True]
    assert (seen.distinct(), seen.repeats, seen.late()) == (6, 1, 1)
    assert verdict(seen, 7) == "lost 1 of 7, 1 of 7 out of order"


@pytest.mark.parametrize(
    ("received", "expected", "said"),
    [
        ([("a", 0), ("a", 2), ("a", 1)], 3, "1 of 3 out of order"),
        ([("a", 0), ("a", 2)], 3, "lost 1 of 3"),
        ([("a", 0), ("b", 0)], 3, "lost 1 of 3"),
        ([("a", 1)], 2, "lost 1 of 2"),
        ([("a", 3), ("a", 1)], 4_000, "lost 3,998 of 4,000, 1 of 4,000 out of order"),
        ([("a", 0), ("a", 1)], 1, "1 more than the 1 acknowledged"),
    ],
)
def test_a_lost_or_overtaken_message_is_counted_in_the_verdict(
    received: list[tuple[str, int]], expected: int, said: str
) -> None:
    assert verdict(checked(received), expected) == said


def test_the_verdict_on_one_way_of_sending_looks_at_its_keys_only() -> None:
    check = checked([("one-0", 0), ("one-0", 1), ("batch-0", 0), ("batch-0", 2)])
    assert (verdict(check, 2, "one"), verdict(check, 3, "batch")) == ("pass", "lost 1 of 3")


def test_keys_are_independent() -> None:
    check = OrderCheck()
    assert all(check.see(key, number) for key, number in [("a", 0), ("b", 0), ("b", 1), ("a", 1)])
