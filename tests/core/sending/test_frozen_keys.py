"""A key stays frozen as long as a caller could send more of it without knowing of the failure."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.sending.frozen_keys import FrozenKeys
from lanemq.model.units import Millis

WALL = Millis(1_000)
WHY = ValueError("too large")


def test_the_first_failure_is_shown() -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    keys.freeze("a", WHY, None, wall=WALL)
    keys.freeze("a", ValueError("behind it"), None, wall=Millis(2_000))
    assert (keys["a"].why, keys["a"].since) == (WHY, WALL)


def test_a_key_resumes_when_every_call_concerned_has_ended() -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    keys.freeze("a", WHY, "one call", wall=WALL)
    keys.freeze("a", WHY, "another", wall=WALL)
    assert keys.call_ended("one call") == []
    assert keys.call_ended("another") == ["a"]
    assert not keys


def test_a_key_stays_frozen_if_a_sender_may_not_know_of_the_failure() -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    keys.freeze("a", WHY, "call", wall=WALL)
    keys.freeze("a", WHY, None, wall=WALL)
    assert keys.call_ended("call") == []
    assert set(keys) == {"a"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None]))))
def test_there_is_one_entry_per_key_that_failed_and_did_not_resume(failures: list[tuple[str, str | None]]) -> None:
    keys: FrozenKeys[str] = FrozenKeys()
    for key, call in failures:
        keys.freeze(key, WHY, call, wall=WALL)
    keys.call_ended("x")
    keys.call_ended("y")
    assert set(keys) == {key for key, call in failures if call is None}
