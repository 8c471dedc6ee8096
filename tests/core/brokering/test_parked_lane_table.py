"""A parked lane keeps its messages in order until they are finished or discarded, and takes each of them once."""

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from lanemq.core.brokering.lane_offsets import LaneOffsets
from lanemq.core.brokering.parked_lane_table import LaneName, Parked, ParkedLane, ParkedLaneTable
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.units import Millis

FAILURE = Failure("ValueError()", 17)
NOW = Millis(5)
K = LaneName("g", "t", 0, "k")


def table() -> ParkedLaneTable:
    return ParkedLaneTable(serial=1_000)


def park(
    lanes: ParkedLaneTable,
    *offsets: int,
    name: LaneName = K,
    failed: bool = True,
    again: int | None = None,
    held: bool = False,
) -> Parked:
    failure = FAILURE if failed else None
    return lanes.park(name, offsets, failure, now=NOW, again=again, held=held)


def offsets(lanes: ParkedLaneTable, name: LaneName = K) -> list[int]:
    lanes._check()
    lane = lanes.get(name)
    return [] if lane is None else list(lane.offsets)


def status(lanes: ParkedLaneTable) -> LaneStatus | None:
    lane = lanes.get(K)
    return None if lane is None else lane.status


def test_a_failure_starts_a_lane_and_later_messages_join_it() -> None:
    lanes = table()
    assert park(lanes, 4, 6)[:3] == (2, (4, 6), lanes.get(K))
    assert park(lanes, 9, failed=False).fresh == (9,)
    assert offsets(lanes) == [4, 6, 9]


def test_a_repeated_request_saves_nothing() -> None:
    """The answer to the first one was lost."""
    lanes = table()
    park(lanes, 4, 6)
    assert park(lanes, 4, 6)[:2] == (2, ())
    assert offsets(lanes) == [4, 6]


def test_successors_of_a_lane_that_is_not_parked_any_more_are_refused() -> None:
    """The broker does not know whether they may run, and parked they would stay indefinitely."""
    lanes = table()
    assert park(lanes, 9, failed=False) == Parked(0, (), None)
    assert offsets(lanes) == []


def test_a_message_that_left_the_lane_is_not_parked_again() -> None:
    """Its commit was lost with its owner, and the next owner pulls it again."""
    lanes = table()
    park(lanes, 4, 6)
    assert lanes.finished(K, 4)
    assert park(lanes, 4, 6, 8, failed=False)[:2] == (3, (8,))
    assert offsets(lanes) == [6, 8]
    lane = lanes.get(K)
    assert lane is not None
    assert lane.through == 8


def test_a_message_from_before_the_failed_one_was_finished_and_is_not_parked() -> None:
    """A key's messages finish in order; a crash only lost the commit."""
    lanes = table()
    park(lanes, 4, 6)
    assert park(lanes, 1, 2, failed=False)[:2] == (2, ())
    assert offsets(lanes) == [4, 6]


def test_the_last_message_that_leaves_ends_the_lane() -> None:
    lanes = table()
    park(lanes, 4)
    assert lanes.finished(K, 4)
    assert not lanes.finished(K, 4)
    assert lanes.get(K) is None
    assert list(lanes) == []


def test_a_redrive_counts_once_and_ends_with_a_failure() -> None:
    lanes = table()
    park(lanes, 4, 6)
    assert [lanes.redrive(K), lanes.redrive(K)] == [True, False]
    assert status(lanes) is LaneStatus.REDRIVING
    park(lanes, 8, failed=False)
    assert status(lanes) is LaneStatus.REDRIVING, "an owner that has not heard of it yet must not end it"
    park(lanes, again=4)
    assert status(lanes) is LaneStatus.PARKED
    assert not lanes.redrive(LaneName("g", "t", 0, "other"))


def test_a_repeated_failure_does_not_undo_a_redrive() -> None:
    """The answer to the first request was lost, and an operator redrove the lane in between."""
    lanes = table()
    park(lanes, 4, 6)
    lanes.redrive(K)
    assert park(lanes, 4, 6, 8)[:2] == (3, (8,))
    assert status(lanes) is LaneStatus.REDRIVING


def test_the_failure_of_a_discarded_message_parks_nothing() -> None:
    lanes = table()
    park(lanes, 4, 6)
    lanes.redrive(K)
    lanes.discard(K, 4)
    assert park(lanes, 8, again=4)[:2] == (1, (8,))
    assert status(lanes) is LaneStatus.REDRIVING, "the rest of the lane goes on"
    lanes.discard(K, 100)
    assert park(lanes, 9, again=8) == Parked(0, (), None)


def test_after_a_discard_the_reason_names_the_offset_that_failed() -> None:
    lanes = table()
    park(lanes, 4, 5, 6)
    lanes.discard(K, 4)
    lanes.discard(K, 5)
    lane = lanes.get(K)
    assert lane is not None
    assert lane.failure == Failure("offset 4 (discarded since): ValueError()", 0)


def test_discarding_keeps_messages_after_the_given_offset() -> None:
    lanes = table()
    park(lanes, 4, 6)
    park(lanes, 8, failed=False)
    assert lanes.discard(K, 6) == 2
    assert offsets(lanes) == [8]
    assert lanes.discard(K, 6) == 0


def test_lanes_with_and_without_a_key_are_different_ones() -> None:
    lanes = table()
    none, empty = LaneName("g", "t", 0, None), LaneName("g", "t", 0, "")
    park(lanes, 1, name=none)
    park(lanes, 2, name=empty)
    assert (offsets(lanes, none), offsets(lanes, empty)) == ([1], [2])


def test_a_held_lane_is_run_by_its_owner_and_keeps_its_attempts() -> None:
    """A new owner goes on with the retries that are left."""
    lanes = table()
    park(lanes, 4, 6, held=True)
    lane = lanes.get(K)
    assert lane is not None
    assert (lane.status, lane.failure) == (LaneStatus.HELD, FAILURE)
    assert not lanes.redrive(K), "its owner runs it by itself"
    lanes.park(K, (), Failure("again", 18), now=NOW, again=4, held=True)
    assert (lane.status, lane.failure.attempts) == (LaneStatus.HELD, 18)


def test_a_held_lane_whose_retries_are_used_up_is_parked() -> None:
    lanes = table()
    park(lanes, 4, 6, held=True)
    park(lanes, 8, again=4)
    assert (status(lanes), offsets(lanes)) == (LaneStatus.PARKED, [4, 6, 8])


def test_a_held_lane_whose_first_message_succeeds_goes_on_like_a_redriven_one() -> None:
    lanes = table()
    park(lanes, 4, 6, held=True)
    lanes.finished(K, 4)
    assert status(lanes) is LaneStatus.REDRIVING


def test_a_discarded_first_message_ends_the_hold() -> None:
    lanes = table()
    park(lanes, 4, 6, held=True)
    lanes.discard(K, 4)
    assert (status(lanes), offsets(lanes)) == (LaneStatus.REDRIVING, [6])
    lane = lanes.get(K)
    assert lane is not None
    assert lane.failure.attempts == 0


def test_a_failure_in_a_lane_means_that_everything_before_it_is_finished() -> None:
    lanes = table()
    park(lanes, 4, 5, 6, 7)
    lanes.redrive(K)
    park(lanes, again=6)
    assert offsets(lanes) == [6, 7]


def test_a_long_lane_costs_two_bytes_per_message_and_one_changed_row_per_request() -> None:
    lanes = table()
    last = 0
    for start in range(0, 100_000_000, 1_000_000):
        outcome = park(lanes, *range(start, start + 1_000_000, 10_000), failed=start == 0)
        assert len(outcome.rows) <= 2
        last = start + 990_000
    lane = lanes.get(K)
    assert lane is not None
    assert (len(lane.offsets), lane.first, lane.offsets.last, lane.through) == (10_000, 0, last, last)
    assert sum(len(data) for _, data in lane.offsets.rows()) < 21_000


def test_the_serial_changes_with_operators_changes_and_not_with_the_owners() -> None:
    lanes = table()
    assert lanes.serial(K.place) == 0
    park(lanes, 4, 6, 8)
    parked = lanes.serial(K.place)
    assert parked > 0, "a new owner must ask"
    park(lanes, 9, failed=False)
    lanes.finished(K, 4)
    assert lanes.serial(K.place) == parked
    lanes.redrive(K)
    redriven = lanes.serial(K.place)
    lanes.discard(K, 6)
    assert parked < redriven < lanes.serial(K.place)
    lanes.discard(K, 100)
    assert lanes.serial(K.place) > 0, "an empty place was changed too"


def test_offsets_beyond_the_end_of_the_log_are_removed() -> None:
    lanes = table()
    park(lanes, 4, 6)
    park(lanes, 9, name=LaneName("g", "t", 0, "j"))
    assert lanes.cut(lambda topic, queue: 6) == {K: (6,), LaneName("g", "t", 0, "j"): (9,)}
    assert offsets(lanes) == [4]
    assert [lane.name for lane in lanes] == [K]


def test_deleted_groups_and_topics_are_forgotten() -> None:
    lanes = table()
    names = [LaneName(group, topic, 0, "k") for group in "gh" for topic in "tu"]
    for name in names:
        park(lanes, 1, name=name)
    assert sum(map(len, lanes.forget(group="g", topic="t"))) == 1
    assert lanes.get(names[0]) is None
    assert sum(map(len, lanes.forget(topic="u"))) == 2
    assert [lane.name for lane in lanes] == [names[2]]
    lanes._check()


# comparison with a naive table


@dataclass
class Naive:
    """The same rules, written as simply as possible."""

    held: dict[str, dict[int, None]] = field(default_factory=dict)
    through: dict[str, int] = field(default_factory=dict)
    redriving: set[str] = field(default_factory=set)

    def park(self, key: str, asked: list[int], failed: bool, again: int | None) -> int:
        if again is not None and again not in self.held.get(key, {}):
            failed = False
        if again is not None:
            self.remove(key, [each for each in self.held.get(key, {}) if each < again])
        if key in self.held and again is None and asked and asked[0] <= self.through[key]:
            failed = False
        if key not in self.held and not failed:
            return 0
        if key not in self.held and not asked:
            return 0
        through = self.through.get(key, -1)
        self.held.setdefault(key, {}).update({offset: None for offset in asked if offset > through})
        self.through[key] = max(through, *asked, -1)
        if failed:
            self.redriving.discard(key)
        return len(asked)

    def remove(self, key: str, which: list[int]) -> None:
        for offset in which:
            if offset in self.held.get(key, {}):
                del self.held[key][offset]
        if key in self.held and not self.held[key]:
            del self.held[key]
            del self.through[key]
            self.redriving.discard(key)


KEYS = st.sampled_from("abc")
OFFSETS = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), KEYS, st.lists(OFFSETS, max_size=5, unique=True), st.booleans()),
        st.tuples(st.just("again"), KEYS, st.lists(OFFSETS, max_size=3, unique=True), OFFSETS),
        st.tuples(st.just("finished"), KEYS, OFFSETS),
        st.tuples(st.just("discard"), KEYS, OFFSETS),
        st.tuples(st.just("redrive"), KEYS),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


def restarted(lanes: ParkedLaneTable) -> ParkedLaneTable:
    again = table()
    for lane in lanes:
        kept = LaneOffsets.of_rows(lane.offsets.rows(), lane.first)
        again.restore([ParkedLane(lane.name, lane.failure, lane.since, lane.status, kept, lane.through)])
    return again


@settings(max_examples=300)
@given(STEPS)
def test_it_does_what_the_naive_table_does(steps: list[tuple[Any, ...]]) -> None:
    lanes, naive = table(), Naive()
    for what, *args in steps:
        name = LaneName("g", "t", 0, args[0] if args else None)
        match what:
            case "park":
                asked = sorted(args[1])
                assert park(lanes, *asked, name=name, failed=args[2]).settled == naive.park(
                    args[0], asked, args[2], None
                )
            case "again":
                asked = sorted(args[1])
                settled = park(lanes, *asked, name=name, again=args[2]).settled
                assert settled == naive.park(args[0], asked, True, args[2])
            case "finished":
                lanes.finished(name, args[1])
                naive.remove(args[0], [each for each in naive.held.get(args[0], {}) if each <= args[1]])
            case "discard":
                lanes.discard(name, args[1])
                naive.remove(args[0], [each for each in naive.held.get(args[0], {}) if each <= args[1]])
            case "redrive":
                if lanes.redrive(name):
                    naive.redriving.add(args[0])
            case "restart":
                lanes = restarted(lanes)
        lanes._check()
        assert {lane.name.key: sorted(lane.offsets) for lane in lanes} == {
            key: sorted(held) for key, held in naive.held.items()
        }
        assert {lane.name.key for lane in lanes if lane.status is LaneStatus.REDRIVING} == naive.redriving
        assert {lane.name.key: lane.through for lane in lanes} == naive.through
