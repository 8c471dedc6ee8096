"""A failed message freezes its key and nothing else, after any schedule of refusals, losses and delays."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.producer.engine_sim import BAD, BAN, DECISIONS, FORGET, GOOD, WIRE, EngineSim, play

from lanemq.model.errors import (
    Dropped,
)


@settings(max_examples=250, deadline=None)
@given(st.lists(GOOD | BAD | DECISIONS | WIRE | WIRE | WIRE, max_size=50), st.integers(1, 4), st.integers(1, 4))
def test_refused_messages_freeze_only_their_keys(steps: Sequence[tuple[object, ...]], window: int, batch: int) -> None:
    sim = EngineSim(window=window, max_count=batch, delivery_timeout=3600.0, answer_timeout=3_600_000)
    play(sim, steps)
    sim.cut()
    sim.heal()
    sim.check()
    illegal = {message.key for message in sim.messages if message.bad}
    for number, error in sim.results.errors.items():
        message = sim.messages[number]
        assert isinstance(error, Dropped) or message.key in illegal
        assert message.key is not None or message.bad, "without a key only the illegal message fails"
    assert not any(sim.messages[number].bad for number in sim.log)


@settings(max_examples=150, deadline=None)
@given(st.lists(GOOD | BAD | DECISIONS | WIRE | WIRE | FORGET, max_size=50), st.integers(1, 4), st.integers(1, 4))
def test_a_broker_that_forgets_the_producer_fails_only_keys_in_doubt(
    steps: Sequence[tuple[object, ...]], window: int, batch: int
) -> None:
    sim = EngineSim(window=window, max_count=batch, delivery_timeout=3600.0, answer_timeout=3_600_000)
    play(sim, steps)
    sim.cut()
    sim.heal()
    sim.check()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(GOOD | BAD | BAN | DECISIONS | WIRE | WIRE | st.just(("late",)), max_size=50),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_time_outs_freeze_keys_in_doubt_and_the_others_continue(
    steps: Sequence[tuple[object, ...]], window: int, batch: int
) -> None:
    sim = EngineSim(window=window, max_count=batch, delivery_timeout=10.0, answer_timeout=3_600_000)
    sim.late = lambda: sim.tick(4000)  # type: ignore[attr-defined]
    play(sim, steps)
    sim.cut()
    sim.heal()
    sim.check()


@settings(max_examples=100, deadline=None)
@given(st.lists(GOOD | BAD | DECISIONS | st.tuples(st.sampled_from(["take", "answer", "tick", "busy"])), max_size=50))
def test_a_stock_broker_gets_one_request_at_a_time_and_fails_only_illegal_keys(
    steps: Sequence[tuple[object, ...]],
) -> None:
    sim = EngineSim(checks_stamps=False, window=4, max_count=3, delivery_timeout=3600.0)
    for step in steps:
        play(sim, [step])
        assert len(sim.wire) + len(sim.answers) <= 1
    sim.heal()
    sim.check()
    assert not any(sim.messages[number].bad for number in sim.log)
