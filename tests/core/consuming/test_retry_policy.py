"""What follows a failure: every policy answers for every count, and delays stay within their limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import (
    PARK,
    RETRY_FOREVER,
    TO_BROKER,
    Again,
    DeadLetter,
    FailurePolicy,
    HoldKey,
    HoldQueue,
    SendBack,
    clamp_suspend,
    delay_level,
    next_attempt,
    next_step,
)
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

POLICIES: list[FailurePolicy] = [
    HoldQueue(),
    HoldQueue(retries=3),
    HoldKey(),
    HoldKey(retries=0),
    DeadLetter(skip=True),
    DeadLetter(skip=True, hold=HoldQueue(retries=2)),
    SendBack(),
]


@given(st.sampled_from(POLICIES), st.integers(0, 2**31 - 1), st.none() | st.integers(-1, 10**6))
def test_every_policy_answers_at_every_count(policy: FailurePolicy, count: int, asked: int | None) -> None:
    step = next_step(policy, count, delay=None if asked is None else Millis(asked))
    if isinstance(step, Again):
        assert 10 <= step.delay <= max(30_000, asked or 0)


@pytest.mark.row("A100")
@pytest.mark.parametrize(("asked", "got"), [(5, 10), (10, 10), (60_000, 30_000), (700, 700), (-1, 1_000), (0, 10)])
def test_suspension_is_clamped(asked: int, got: int) -> None:
    assert clamp_suspend(asked) == got


@pytest.mark.parametrize(("asked", "waits"), [(0, 10), (700, 700), (3_600_000, 3_600_000)])
@pytest.mark.parametrize("policy", [HoldKey(), HoldQueue(), DeadLetter(skip=True)])
def test_a_delay_that_the_handler_asks_for_is_kept(policy: FailurePolicy, asked: int, waits: int) -> None:
    step = next_step(policy, 0, delay=Millis(asked))
    assert step == Again(Millis(waits), whole_queue=isinstance(policy, HoldQueue))


@pytest.mark.row("A100")
def test_suspension_without_a_value_takes_the_consumers() -> None:
    assert next_step(HoldQueue(), 0) == Again(Millis(1_000), whole_queue=True)
    assert next_step(HoldQueue(suspend=0.001), 0) == Again(Millis(10), whole_queue=True)


@pytest.mark.row("A102")
def test_rocketmqs_default_retries_for_ever() -> None:
    assert HoldQueue().retries == RETRY_FOREVER
    assert isinstance(next_step(HoldQueue(), 2**31), Again)
    assert isinstance(next_step(DeadLetter(skip=True, hold=HoldQueue()), 2**31), Again)


@pytest.mark.row("A103")
def test_below_the_limit_suspends_and_at_the_limit_gives() -> None:
    policy = DeadLetter(skip=True, hold=HoldQueue(retries=2))
    assert [type(next_step(policy, count)) for count in range(2)] == [Again, Again]
    assert next_step(policy, 2) is TO_BROKER
    assert next_step(policy, 3) is TO_BROKER


def test_a_hold_without_retries_left_parks() -> None:
    assert next_step(HoldKey(retries=2), 2) is PARK
    assert next_step(HoldQueue(retries=0), 0) is PARK


def test_a_hopeless_message_skips_its_retries() -> None:
    assert next_step(HoldKey(), 0, hopeless=True) is PARK
    assert next_step(HoldQueue(retries=3), 0, hopeless=True) is PARK
    assert next_step(DeadLetter(skip=True), 0, hopeless=True) is TO_BROKER
    assert next_step(SendBack(), 0, hopeless=True) is TO_BROKER


def test_retry_forever_keeps_even_a_hopeless_message() -> None:
    """The message waits for a handler that can process it, and nothing passes it until then."""
    assert isinstance(next_step(HoldQueue(), 0, hopeless=True), Again)
    assert isinstance(next_step(HoldKey(retries=RETRY_FOREVER), 5, hopeless=True), Again)


def test_key_hold_backs_off_exponentially_up_to_its_bound() -> None:
    policy = HoldKey(retries=RETRY_FOREVER, backoff=Backoff(0.1, 2.0, 1))
    delays = [next_attempt(policy, count).delay for count in (0, 1, 2, 3, 4, 5_000)]
    assert delays == [100, 200, 400, 800, 1_000, 1_000]
    assert not next_attempt(policy, 0).whole_queue


def test_message_that_could_not_be_sent_back_runs_again_after_five_seconds() -> None:
    assert next_step(SendBack(), 0) is TO_BROKER
    assert next_attempt(SendBack(), 0) == Again(Millis(5_000), whole_queue=False)


@pytest.mark.row("A107")
@pytest.mark.parametrize(("count", "level"), [(0, 3), (1, 4), (15, 18)])
def test_delay_level_is_three_plus_the_count(count: int, level: int) -> None:
    assert delay_level(count) == level


def test_dead_letter_needs_skip_true() -> None:
    with pytest.raises(InvalidOption, match="skip=True"):
        DeadLetter(skip=False)


@pytest.mark.parametrize("kind", [HoldQueue, HoldKey])
def test_negative_retries_other_than_for_ever_are_refused(kind: type[HoldQueue] | type[HoldKey]) -> None:
    with pytest.raises(InvalidOption, match="retries=-2"):
        kind(retries=-2)


def test_a_held_lane_keeps_at_least_the_failed_message() -> None:
    with pytest.raises(InvalidOption, match="keep=0"):
        HoldKey(keep=0)


@pytest.mark.parametrize(("first", "factor", "max"), [(0, 2, 10), (20, 2, 10), (5, 0.5, 10)])
def test_backoff_that_does_not_grow_is_refused(first: float, factor: float, max: float) -> None:
    with pytest.raises(InvalidOption, match="Backoff"):
        Backoff(first, factor, max)
