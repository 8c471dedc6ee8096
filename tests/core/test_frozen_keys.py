"""A key stays closed as long as anybody could send on without knowing of the failure."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.sending.frozen_keys import FrozenKeys
from lanemq.model.units import Millis

WALL = Millis(1_000)
WHY = ValueError("too large")


def test_the_first_failure_is_the_one_that_is_shown() -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    keys.freeze("a", WHY, None, wall=WALL)
    keys.freeze("a", ValueError("behind it"), None, wall=Millis(2_000))
    assert (keys["a"].why, keys["a"].since) == (WHY, WALL)


def test_a_key_waits_for_every_call_concerned() -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    keys.freeze("a", WHY, "one call", wall=WALL)
    keys.freeze("a", WHY, "another", wall=WALL)
    assert keys.told("one call") == []
    assert keys.told("another") == ["a"]
    assert not keys


def test_a_sender_that_is_not_told_in_time_needs_a_person() -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    keys.freeze("a", WHY, "call", wall=WALL)
    keys.freeze("a", WHY, None, wall=WALL)
    assert keys.told("call") == []
    assert keys.open("a")
    assert not keys.open("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None]))))
def test_there_is_one_entry_per_key_that_failed_and_was_not_opened(failures: list[tuple[str, str | None]]) -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    for key, call in failures:
        keys.freeze(key, WHY, call, wall=WALL)
    keys.told("x")
    keys.told("y")
    assert set(keys) == {key for key, call in failures if call is None}
