"""The rule of exactly once: epochs, places, batches, and any mixture of repeats and owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.effects import (
    HOUR_MS,
    LOG_BEGAN_AGAIN,
    NEW,
    REPEAT,
    WAS_OVERTAKEN,
    EffectOwner,
    EffectVerdict,
    HourCounter,
    LogPlace,
    PendingEffect,
    by_lane,
    judge_effect,
    judge_owner,
    leading_repeats,
)
from lanemq.model.units import Millis

APPLIED = LogPlace(100, 50)


@pytest.mark.parametrize(
    ("highest", "epoch", "verdict"),
    [
        (None, 0, EffectOwner.NEWER),
        (0, 0, EffectOwner.CURRENT),
        (6, 7, EffectOwner.NEWER),
        (7, 7, EffectOwner.CURRENT),
        (8, 7, EffectOwner.STALE),
    ],
)
def test_an_owner_is_judged_by_the_highest_epoch_that_has_written(
    highest: int | None, epoch: int, verdict: EffectOwner
) -> None:
    assert judge_owner(highest, epoch) is verdict


@pytest.mark.parametrize(
    ("place", "overtaken", "verdict"),
    [
        (LogPlace(101, 51), False, NEW),
        (LogPlace(101, 49), False, NEW),
        (LogPlace(101, 51), True, NEW),
        (LogPlace(100, 50), False, REPEAT),
        (LogPlace(100, 50), True, REPEAT),
        (LogPlace(99, 50), False, REPEAT),
        (LogPlace(99, 49), True, WAS_OVERTAKEN),
        (LogPlace(99, 51), False, LOG_BEGAN_AGAIN),
        (LogPlace(99, 51), True, LOG_BEGAN_AGAIN),
        (LogPlace(100, 51), False, LOG_BEGAN_AGAIN),
        (LogPlace(100, 49), False, LOG_BEGAN_AGAIN),
    ],
)
def test_a_message_is_judged_by_the_last_applied_one_of_its_lane(
    place: LogPlace, overtaken: bool, verdict: EffectVerdict
) -> None:
    assert judge_effect(APPLIED, PendingEffect(0, "k", place, overtaken)) is verdict
    assert judge_effect(None, PendingEffect(0, "k", place, overtaken)) is NEW


def test_a_batch_is_judged_by_the_first_message_of_each_lane_and_remembers_the_last() -> None:
    batch = [PendingEffect(0, lane, LogPlace(at, at)) for at, lane in enumerate("bababb")]
    assert [(each.lane, each.first.place.position, each.last.place.position) for each in by_lane(batch)] == [
        ("a", 1, 3),
        ("b", 0, 5),
    ]


@pytest.mark.parametrize(
    ("verdicts", "repeats"),
    [
        ([NEW, NEW], 0),
        ([REPEAT, NEW], 1),
        ([REPEAT, REPEAT], 2),
        ([NEW, REPEAT], None),
        ([REPEAT, NEW, REPEAT], None),
    ],
)
def test_repeats_at_the_begin_of_a_batch_are_counted_and_others_need_one_by_one(
    verdicts: list[EffectVerdict], repeats: int | None
) -> None:
    assert leading_repeats(verdicts) == repeats


class Database:
    """The two tables, with transactions that happen at once."""

    def __init__(self) -> None:
        self.highest: int | None = None
        self.places: dict[str, LogPlace] = {}
        self.effects: list[tuple[str, int, int]] = []
        """Lane, position and epoch of what was applied."""

    def apply(self, epoch: int, effect: PendingEffect) -> bool:
        """One transaction; returns whether its message is done for this owner."""
        match judge_owner(self.highest, epoch):
            case EffectOwner.STALE:
                return False
            case EffectOwner.NEWER:
                self.highest = epoch
        verdict = judge_effect(self.places.get(effect.lane), effect)
        assert verdict in (NEW, REPEAT)
        if verdict is NEW:
            self.places[effect.lane] = effect.place
            self.effects.append((effect.lane, effect.place.position, epoch))
        return True


@given(st.data())
def test_whatever_is_delivered_again_and_whoever_wakes_up_each_effect_happens_once_in_order(
    data: st.DataObject,
) -> None:
    """Owners take over anywhere behind what is done, work on any lane, and older ones continue as before."""
    lanes = {"a": [0, 2, 4, 6], "b": [1, 3, 5]}
    database = Database()
    owners: list[dict[str, int]] = [dict.fromkeys(lanes, 0)]
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.integers(0, 9)) == 0:
            last = owners[-1]
            owners.append({lane: data.draw(st.integers(0, done)) for lane, done in last.items()})
            continue
        epoch = data.draw(st.integers(1, len(owners)))
        lane = data.draw(st.sampled_from(sorted(lanes)))
        at = owners[epoch - 1][lane]
        if at < len(lanes[lane]):
            place = LogPlace(lanes[lane][at], 0)
            owners[epoch - 1][lane] += database.apply(epoch, PendingEffect(0, lane, place))
    for lane, places in lanes.items():
        applied = [position for found, position, _ in database.effects if found == lane]
        assert applied == places[: len(applied)]
    epochs = [epoch for *_, epoch in database.effects]
    assert epochs == sorted(epochs)


def test_hours_are_counted_by_the_running_time_of_those_who_know_the_present_one() -> None:
    first, second = HourCounter(), HourCounter()
    assert first.next_hour("db", 7, Millis(0)) == 7, "it does not know for how long it was 7"
    assert first.next_hour("other", 3, Millis(HOUR_MS)) == 3
    assert first.next_hour("db", 7, Millis(HOUR_MS - 1)) == 7
    assert first.next_hour("db", 7, Millis(HOUR_MS)) == 8
    assert second.next_hour("db", 8, Millis(0)) == 8
    assert first.next_hour("db", 8, Millis(2 * HOUR_MS)) == 9
    assert second.next_hour("db", 9, Millis(HOUR_MS)) == 9, "the other one has counted this hour"
    assert first.next_hour("db", 9, Millis(9 * HOUR_MS)) == 10, "one at a time: others may have counted"
