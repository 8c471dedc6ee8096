"""The search for an illegal message in a refused batch: same result as trying one by one, with fewer requests."""

from collections.abc import Sequence
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.producer.engine_sim import KEYS, EngineSim, served, stored

from lanemq.core.sending.sent_window import SendBatch
from lanemq.model.units import Millis

ALONE = 2**62
"""A size beyond every limit: such a message shares no batch."""

ROUNDS = st.lists(
    st.tuples(st.lists(KEYS, min_size=1, max_size=40), st.sets(st.integers(0, 39), max_size=6)), min_size=1, max_size=3
)
TROUBLE = st.dictionaries(st.integers(0, 60), st.sampled_from(["cut", "busy", "unread", "refusal"]), max_size=6)
"""What happens to the nth request."""


def one_by_one(batch: SendBatch[str]) -> list[SendBatch[str]]:
    """The alternative to the search: every message of a refused batch by itself."""
    return [
        SendBatch(
            batch.epoch,
            batch.first_sequence + index,
            (message,),
            [ALONE],
            Millis(batch.deadline),
            batch.number + index,
            batch.attempt,
            doubt=batch.doubt,
            given_up=frozenset({0} if index in batch.given_up else ()),
        )
        for index, message in enumerate(batch.messages)
    ]


def drive(sim: EngineSim, trouble: dict[int, str]) -> None:
    """Runs until everything is settled, with these faults."""
    while not sim.engine.mark().settled:
        sim.tick(6000 if not sim.wire and not sim.answers else 1)
        while sim.wire or sim.answers:
            match trouble.pop(len(sim.requests), None):
                case "cut":  # read, and the reply is lost
                    sim.take()
                    sim.cut()
                case "unread":
                    sim.cut()
                case "busy":
                    sim.busy()
                case "refusal":
                    sim.take()
                    sim.answer(refusals_first=True)
                case _:
                    sim.take()
                    sim.answer()
            sim.check_order()


def outcome(
    rounds: Sequence[tuple[list[str | None], set[int]]], trouble: dict[int, str], window: int, batch: int
) -> tuple[object, ...]:
    """Which messages are stored, in which order of each key, which failed, and what is frozen."""
    sim = EngineSim(window=window, max_count=batch, delivery_timeout=36_000.0, answer_timeout=36_000_000)
    left = dict(trouble)
    for keys, bad in rounds:
        kept = [(key, place in bad) for place, key in enumerate(keys) if key not in sim.frozen()]
        if kept:
            sim.offer(*[key for key, _ in kept], bad=[place for place, (_, is_bad) in enumerate(kept) if is_bad])
        drive(sim, left)
    sim.check()
    by_key = {key: [number for number in sim.log if sim.messages[number].key == key] for key in "abcd"}
    return by_key, set(sim.log), set(sim.results.errors), sim.frozen()


@settings(max_examples=150, deadline=None)
@given(ROUNDS, TROUBLE, st.integers(1, 4), st.integers(2, 40))
def test_the_search_has_the_same_result_as_trying_one_by_one(
    rounds: Sequence[tuple[list[str | None], set[int]]], trouble: dict[int, str], window: int, batch: int
) -> None:
    found = outcome(rounds, trouble, window, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SendBatch, "halves", one_by_one)
        assert found == outcome(rounds, trouble, window, batch)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 300), st.sets(st.integers(0, 299), min_size=1, max_size=8), st.integers(1, 4))
def test_an_illegal_message_costs_a_logarithmic_number_of_requests(count: int, bad: set[int], window: int) -> None:
    sim = served(max_count=count, window=window)
    sim.offer(*[f"k{number}" for number in range(count)], bad=sorted(bad))
    sim.heal()
    illegal = {f"k{number}" for number in bad if number < count}
    assert sim.frozen() == illegal
    assert len(stored(sim)) == count - len(illegal)
    search, growth, refused_behind = 2 * ceil(log2(count)) + 1, ceil(log2(count)) + window, window
    assert len(sim.requests) <= 1 + len(illegal) * (search + growth + refused_behind)


@pytest.mark.parametrize("window", [1, 4])
def test_a_thousand_illegal_messages_do_not_cost_a_search_each(window: int) -> None:
    """Found one by one, they would cost twenty requests each."""
    sim = served(max_count=1000, window=window)
    sim.offer(*[f"k{number}" for number in range(1000)], bad=range(1000))
    sim.heal()
    assert stored(sim) == []
    assert len(sim.frozen()) == 1000
    assert len(sim.requests) <= 20 + 1000 * window


def test_keys_in_the_other_half_are_stored_before_the_illegal_message_is_found() -> None:
    sim = served(max_count=8, window=4)
    sim.offer(*"abcdefgh", bad=[6])
    for _ in range(2):
        sim.take()
        sim.answer()
    assert stored(sim) == [1, 2, 3, 4]
    assert sim.frozen() == set()
    sim.heal()
    assert stored(sim) == [1, 2, 3, 4, 5, 6, 8]
    assert sim.frozen() == {"g"}
