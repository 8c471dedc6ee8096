"""Taking over and handing over: lease before offset before pull; handler before commit before release."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.core.consuming.rebalance import Event, Holding, Stage, Step, plan
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

NOW = Millis(0)
ALL = [MessageQueue("orders", "broker-a", number) for number in range(6)]
Q = ALL[0]


def at(stage: Stage) -> Holding:
    holding = Holding(Q, needs_lease=True)
    way = [Event.GRANTED, Event.LOCATED, Event.UNWANTED, Event.DRAINED, Event.COMMITTED, Event.UNLOCKED]
    for event in way:
        if holding.stage is stage:
            break
        holding.happened(event, now=NOW)
    assert holding.stage is stage
    return holding


def happened(holding: Holding, *events: Event) -> list[Step]:
    return [holding.happened(event, now=NOW) for event in events]


@pytest.mark.row("A53")
@given(st.sets(st.sampled_from(ALL)), st.sets(st.sampled_from(ALL)))
def test_plan_touches_only_what_changes(held: set[MessageQueue], wanted: set[MessageQueue]) -> None:
    made = plan(held, wanted)
    assert (held - set(made.release)) | set(made.acquire) == wanted
    assert set(made.keep) == held & wanted
    assert made.changes == (held != wanted)


@pytest.mark.row("A52")
def test_second_round_with_the_same_wish_changes_nothing() -> None:
    assert not plan(ALL, list(reversed(ALL))).changes


@pytest.mark.row("A47")
def test_lease_then_offset_then_pull() -> None:
    holding = Holding(Q, needs_lease=True)
    assert holding.begin() is Step.LOCK
    assert happened(holding, Event.GRANTED, Event.LOCATED) == [Step.LOCATE, Step.START]


@pytest.mark.row("A48")
def test_refused_lease_skips_the_queue_until_the_next_round() -> None:
    holding = Holding(Q, needs_lease=True)
    assert happened(holding, Event.REFUSED) == [Step.SKIP]
    assert holding.stage is Stage.GONE
    assert plan([], [Q]).acquire == (Q,), "the next round asks again"


@pytest.mark.row("A51")
def test_unknown_start_offset_starts_nothing_and_returns_the_lease() -> None:
    assert happened(at(Stage.LOCATING), Event.NOT_LOCATED, Event.UNLOCKED) == [Step.UNLOCK, Step.FORGET]


@pytest.mark.row("A85")
@pytest.mark.row("A89")
def test_handler_ends_then_offset_is_stored_then_lease_is_released() -> None:
    steps = happened(at(Stage.HELD), Event.UNWANTED, Event.DRAINED, Event.COMMITTED, Event.UNLOCKED)
    assert steps == [Step.DRAIN, Step.COMMIT, Step.UNLOCK, Step.FORGET]


@pytest.mark.row("A86")
@pytest.mark.row("A87")
@pytest.mark.row("A89")
def test_handler_that_does_not_end_keeps_the_queue_however_long() -> None:
    """A forced release after 20 s, as RocketMQ 5 does it, lets two members run one message."""
    holding = at(Stage.HELD)
    holding.happened(Event.UNWANTED, now=NOW)
    assert holding.next_deadline() == 1_000
    assert holding.expire(now=Millis(999)) is Step.NOTHING
    for second in range(1, 91):
        assert holding.expire(now=Millis(second * 1_000)) is Step.STILL_RUNNING
    assert (holding.stage, holding.late) == (Stage.DRAINING, 90)
    assert holding.happened(Event.DRAINED, now=Millis(90_500)) is Step.COMMIT
    assert holding.next_deadline() is None
    assert holding.expire(now=Millis(10**6)) is Step.NOTHING


def test_offset_that_is_not_stored_keeps_the_lease() -> None:
    holding = at(Stage.COMMITTING)
    assert happened(holding, Event.NOT_COMMITTED, Event.NOT_COMMITTED) == [Step.COMMIT_LATER] * 2
    assert happened(holding, Event.COMMITTED) == [Step.UNLOCK]


@pytest.mark.parametrize("stage", [Stage.LOCATING, Stage.HELD, Stage.DRAINING, Stage.COMMITTING, Stage.UNLOCKING])
def test_lost_lease_ends_everything_without_commit_or_unlock(stage: Stage) -> None:
    holding = at(stage)
    assert happened(holding, Event.LEASE_LOST) == [Step.DROP]
    assert holding.stage is Stage.GONE
    assert holding.next_deadline() is None


def test_queue_wanted_again_while_draining_stays() -> None:
    holding = at(Stage.DRAINING)
    assert happened(holding, Event.WANTED) == [Step.REOPEN]
    assert holding.next_deadline() is None


def test_queue_unwanted_on_its_way_in_never_starts() -> None:
    holding = Holding(Q, needs_lease=True)
    steps = happened(holding, Event.UNWANTED, Event.GRANTED, Event.LOCATED)
    assert steps == [Step.NOTHING, Step.LOCATE, Step.UNLOCK]


def test_changed_mind_on_the_way_in_counts() -> None:
    steps = happened(Holding(Q, needs_lease=True), Event.UNWANTED, Event.WANTED, Event.GRANTED, Event.LOCATED)
    assert steps[-1] is Step.START


@pytest.mark.row("A25")
@pytest.mark.row("A88")
def test_without_a_lease_nothing_is_locked_or_unlocked() -> None:
    holding = Holding(Q, needs_lease=False)
    steps = [holding.begin()]
    steps += happened(holding, Event.LOCATED, Event.UNWANTED, Event.DRAINED, Event.COMMITTED)
    assert steps == [Step.LOCATE, Step.START, Step.DRAIN, Step.COMMIT, Step.FORGET]


def test_event_out_of_place_is_misuse_and_changes_nothing() -> None:
    holding = at(Stage.HELD)
    with pytest.raises(UsageError, match="HELD"):
        holding.happened(Event.UNLOCKED, now=NOW)
    assert holding.stage is Stage.HELD


@pytest.mark.row("A89")
@settings(max_examples=200)
@given(st.lists(st.sampled_from(list(Event)), max_size=25), st.booleans())
def test_release_always_follows_drain_and_commit(events: list[Event], needs_lease: bool) -> None:
    holding = Holding(Q, needs_lease=needs_lease)
    started = drained = committed = False
    for event in events:
        before = holding.stage
        try:
            step = holding.happened(event, now=NOW)
        except UsageError:
            assert holding.stage is before
            continue
        if step in (Step.START, Step.REOPEN):
            started, drained, committed = True, False, False
        drained = drained or event is Event.DRAINED
        committed = committed or (event is Event.COMMITTED and drained)
        if step is Step.UNLOCK:
            assert needs_lease
            assert committed or not started
