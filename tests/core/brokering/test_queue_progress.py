"""The progress of a group in a queue: offsets only move forward, except by a reset or by a stock owner, and lanes keep
their messages in order until they are finished or discarded, each of them once."""

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lanemq.core.brokering.lock_table import Current, Stale, Unowned, Verdict
from lanemq.core.brokering.progress_store import SavedLane, SavedOffset
from lanemq.core.brokering.progress_table import ProgressTable
from lanemq.core.brokering.queue_progress import (
    Backward,
    Commit,
    CommitKind,
    Committed,
    FilteredRead,
    Ignored,
    Parked,
    QueueProgress,
    WhyIgnored,
    kind_of,
)
from lanemq.core.finished_ranges import MAX_RANGES, FinishedRanges
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset

Q = MessageQueue("t", "b", 0)
FAILURE = Failure("ValueError()", 17)
NOW = Millis(5)


def new() -> QueueProgress:
    return ProgressTable(serial=1_000).at("g", Q)


def commit(
    progress: QueueProgress, offset: int, kind: CommitKind = CommitKind.FORWARD, finished: FinishedRanges | None = None
) -> Commit:
    return progress.commit(QueueOffset(offset), kind=kind, finished=finished)


def reset(progress: QueueProgress, offset: int, *, pending: bool = True) -> None:
    progress.move(QueueOffset(offset), pending=pending)


def pull(progress: QueueProgress, pulled_from: int, *, decides: bool = False, commits: bool = False) -> int | None:
    return progress.moved_to(QueueOffset(pulled_from), decides=decides, commits=commits)


def at_ten() -> QueueProgress:
    progress = new()
    commit(progress, 10)
    return progress


def at_ten_with_finished() -> QueueProgress:
    progress = new()
    commit(progress, 10, finished=FinishedRanges.of([(12, 15), (20, 21)]))
    return progress


def finished(progress: QueueProgress) -> list[tuple[QueueOffset, QueueOffset]]:
    return FinishedRanges.decode(progress.finished, progress.offset or 0).ranges()


def test_first_commit_is_stored() -> None:
    progress = new()
    assert progress.offset is None
    assert commit(progress, 0) == Committed(None)
    assert progress.offset == 0


@pytest.mark.parametrize(
    ("kind", "offset", "answer", "stored"),
    [
        (CommitKind.FORWARD, 11, Committed(QueueOffset(10)), 11),
        (CommitKind.FORWARD, 10, Committed(QueueOffset(10)), 10),
        (CommitKind.FORWARD, 9, Backward(QueueOffset(10)), 10),
        (CommitKind.ANY_WAY, 9, Committed(QueueOffset(10)), 9),
        (CommitKind.ANY_WAY, 11, Committed(QueueOffset(10)), 11),
        (CommitKind.ANY_WAY, -1, Ignored(WhyIgnored.NEGATIVE), 10),
        (CommitKind.FORWARD, -1, Ignored(WhyIgnored.NEGATIVE), 10),
        (CommitKind.FENCED, 11, Ignored(WhyIgnored.FENCED), 10),
    ],
)
def test_commit_on_a_stored_ten(kind: CommitKind, offset: int, answer: Commit, stored: int) -> None:
    progress = at_ten()
    assert commit(progress, offset, kind) == answer
    assert progress.offset == stored


@pytest.mark.parametrize(
    ("verdict", "stock", "kind"),
    [
        (Current(Epoch(2)), False, CommitKind.FORWARD),
        (Unowned(), False, CommitKind.FORWARD),
        (Stale("B", Epoch(2)), False, CommitKind.FENCED),
        (Current(Epoch(2)), True, CommitKind.ANY_WAY),
        (Unowned(), True, CommitKind.ANY_WAY),
        (Stale("B", Epoch(2)), True, CommitKind.FORWARD),
    ],
)
def test_ownership_decides_what_a_commit_may_do(verdict: Verdict, stock: bool, kind: CommitKind) -> None:
    assert kind_of(verdict, stock=stock) is kind


def test_a_reset_may_go_back() -> None:
    progress = at_ten()
    reset(progress, 3, pending=False)
    assert progress.offset == 3
    assert pull(progress, 10) is None
    assert commit(progress, 4) == Committed(QueueOffset(3))


def test_commits_from_before_a_pending_reset_are_ignored() -> None:
    """A member that does not know of the reset would otherwise undo it with its next commit."""
    progress = at_ten()
    reset(progress, 3)
    assert commit(progress, 12, CommitKind.ANY_WAY) == Ignored(WhyIgnored.RESET_PENDING)
    assert pull(progress, 12) == 3
    assert pull(progress, 3) is None
    assert commit(progress, 4) == Committed(QueueOffset(3))


def test_a_reset_is_answered_again_until_a_pull_comes_from_its_offset() -> None:
    """The answer may be lost, and a member that continues at the old offset would undo the reset."""
    progress = at_ten()
    reset(progress, 3)
    assert [pull(progress, 12), pull(progress, 12)] == [3, 3]
    assert commit(progress, 13) == Ignored(WhyIgnored.RESET_PENDING)
    assert [pull(progress, 3), pull(progress, 12)] == [None, None]


def test_a_commit_at_the_offset_of_a_reset_ends_it() -> None:
    progress = at_ten()
    reset(progress, 3)
    assert commit(progress, 3) == Ignored(WhyIgnored.RESET_PENDING), "no pull was answered with it yet"
    assert pull(progress, 12) == 3
    assert commit(progress, 3) == Committed(QueueOffset(3))
    assert pull(progress, 4) is None


def test_a_member_at_the_offset_of_a_reset_by_chance_is_answered_with_it_too() -> None:
    """It still processes messages pulled before, and their commit would move the group past its new offset."""
    progress = at_ten()
    reset(progress, 12)
    assert [pull(progress, 12), pull(progress, 12)] == [12, None]


def test_an_owner_at_the_offset_of_a_reset_by_chance_ends_it_only_by_a_commit() -> None:
    """It may have lost every answer, and would continue with messages that the reset skips."""
    progress = at_ten()
    reset(progress, 12)
    assert [pull(progress, 12, commits=True) for _ in range(3)] == [12, 12, 12]
    assert commit(progress, 11) == Ignored(WhyIgnored.RESET_PENDING)
    assert commit(progress, 12) == Committed(QueueOffset(12))
    assert pull(progress, 12, commits=True) is None


def test_a_commit_with_finished_ranges_does_not_end_a_reset_to_its_offset() -> None:
    """What they cover is to run again; the commit stems from before the reset, whose answer was lost."""
    progress = at_ten_with_finished()
    reset(progress, 10)
    assert pull(progress, 21, commits=True) == 10
    assert commit(progress, 10, finished=FinishedRanges.of([(12, 15)])) == Ignored(WhyIgnored.RESET_PENDING)
    assert finished(progress) == []
    assert commit(progress, 10, finished=FinishedRanges()) == Committed(QueueOffset(10))


def test_a_reader_that_chooses_its_offsets_is_answered_with_a_reset_once() -> None:
    progress = at_ten()
    reset(progress, 3)
    assert [pull(progress, 12, decides=True), pull(progress, 12, decides=True)] == [3, None]
    assert commit(progress, 13) == Committed(QueueOffset(3))


def test_plain_reset_replaces_a_pending_one() -> None:
    progress = at_ten()
    reset(progress, 3)
    reset(progress, 7, pending=False)
    assert pull(progress, 10) is None
    assert commit(progress, 8) == Committed(QueueOffset(7))


def test_reset_to_a_negative_offset_is_refused() -> None:
    progress = at_ten()
    for pending in (False, True):
        with pytest.raises(InvalidOption, match="use 0 or more"):
            reset(progress, -1, pending=pending)
    assert progress.offset == 10
    assert pull(progress, 10) is None


# What is finished above the offset


@pytest.mark.parametrize(
    ("kind", "offset", "brought", "left"),
    [
        (CommitKind.FORWARD, 10, FinishedRanges.of([(12, 21)]), [(12, 21)]),
        (CommitKind.FORWARD, 13, FinishedRanges.of([(12, 21)]), [(14, 21)]),
        (CommitKind.FORWARD, 13, FinishedRanges(), []),
        (CommitKind.FORWARD, 9, FinishedRanges.of([(11, 12)]), [(12, 15), (20, 21)]),
        (CommitKind.FENCED, 11, FinishedRanges.of([(13, 14)]), [(12, 15), (20, 21)]),
        (CommitKind.ANY_WAY, -1, FinishedRanges.of([(13, 14)]), [(12, 15), (20, 21)]),
    ],
)
def test_finished_ranges_come_and_go_with_the_offset_they_belong_to(
    kind: CommitKind, offset: int, brought: FinishedRanges, left: list[tuple[int, int]]
) -> None:
    progress = at_ten_with_finished()
    commit(progress, offset, kind, brought)
    assert finished(progress) == left


@pytest.mark.parametrize(
    ("kind", "offset"), [(CommitKind.ANY_WAY, 9), (CommitKind.ANY_WAY, 11), (CommitKind.FORWARD, 11)]
)
def test_a_commit_without_finished_ranges_deletes_them(kind: CommitKind, offset: int) -> None:
    """Otherwise a lane that goes back would repeat an earlier message and skip a later one."""
    progress = at_ten_with_finished()
    commit(progress, 10, kind)
    assert finished(progress) == [(12, 15), (20, 21)], "the same offset says nothing new"
    commit(progress, offset, kind)
    assert finished(progress) == []


def test_a_reset_deletes_the_finished_ranges_and_a_late_commit_does_not_restore_them() -> None:
    progress = at_ten_with_finished()
    reset(progress, 10)
    assert finished(progress) == []
    commit(progress, 10, finished=FinishedRanges.of([(12, 15)]))
    assert finished(progress) == []
    progress = at_ten_with_finished()
    reset(progress, 10, pending=False)
    assert finished(progress) == []


def test_too_many_finished_ranges_are_cut_at_the_upper_end() -> None:
    progress = new()
    commit(progress, 0, finished=FinishedRanges(tuple(range(1, 2 * MAX_RANGES + 3))))
    assert finished(progress)[-1] == (2 * MAX_RANGES - 1, 2 * MAX_RANGES)


@pytest.mark.parametrize(
    ("end", "clean", "offset", "left"),
    [
        (21, True, 10, [(12, 15), (20, 21)]),
        (13, True, 10, [(12, 13)]),
        (13, False, 10, [(12, 13)]),
        (7, True, 10, []),
        (7, False, 7, []),
    ],
)
def test_after_a_restart_nothing_beyond_the_end_of_a_queue_is_finished(
    end: int, clean: bool, offset: int, left: list[tuple[int, int]]
) -> None:
    """A power cut may lose messages that were consumed; new messages get their progress."""
    progress = at_ten_with_finished()
    progress.cut(end, clean=clean)
    assert (progress.offset, finished(progress)) == (offset, left)


@pytest.mark.parametrize(
    ("left_out", "offset", "finished"),
    [
        ((), 10, [(12, 14)]),
        ((10, 11), 14, []),
        ((11, 15), 10, [(11, 14), (15, 16)]),
        ((10, 16), 11, [(12, 14), (16, 17)]),
    ],
)
def test_what_the_former_owner_left_out_is_finished_for_the_next_one(
    left_out: tuple[int, ...], offset: int, finished: list[tuple[int, int]]
) -> None:
    progress = new()
    commit(progress, 10, finished=FinishedRanges.of([(12, 14)]))
    progress.leave_out(left_out)
    assert progress.offset == offset
    assert FinishedRanges.decode(progress.finished, offset).ranges() == finished


def test_after_a_reset_nothing_was_left_out() -> None:
    """What the offset went back to is to be run, by an owner with more tags too."""
    progress = at_ten()
    progress.filtered = FilteredRead("m", Epoch(1), frozenset({1}), 20)
    reset(progress, 5)
    assert progress.filtered is None
    progress.filtered = FilteredRead("m", Epoch(1), frozenset({1}), 20)
    progress.rewind(3, owned=True)
    assert progress.filtered is None


def test_finished_ranges_that_an_owner_does_not_know_are_forgotten() -> None:
    progress = at_ten_with_finished()
    progress.forget_finished()
    assert (progress.offset, finished(progress)) == (10, [])


actions = st.tuples(
    st.sampled_from(["forward", "fenced", "reset", "reset pending", "pull", "restart", "save"]),
    st.integers(-1, 20),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, max_size=40))
def test_without_a_reset_the_offset_never_falls(schedule: list[tuple[str, int]]) -> None:
    table, disk = ProgressTable(serial=1), dict[MessageQueue, SavedOffset]()
    highest = -1
    for action, number in schedule:
        progress = table.at("g", Q)
        match action:
            case "forward" | "fenced":
                commit(progress, number, CommitKind(action))
            case "reset" | "reset pending" if number >= 0:
                reset(progress, number, pending=action == "reset pending")
                highest = number
            case "pull":
                pull(progress, number)
            case "save" | "restart":
                disk.update({row.queue: row for row in table.take_unsaved()})
                if action == "restart":
                    table = ProgressTable(serial=2)
                    table.restore(disk.values())
                assert table.take_unsaved() == []
        now = table.at("g", Q).offset
        assert (-1 if now is None else now) >= highest
        highest = -1 if now is None else now


# lanes


def park(
    progress: QueueProgress,
    *offsets: int,
    key: str | None = "k",
    failed: bool = True,
    again: int | None = None,
    held: bool = False,
) -> Parked:
    failure = FAILURE if failed else None
    return progress.park(key, offsets, failure, now=NOW, again=again, held=held)


def offsets(progress: QueueProgress, key: str | None = "k") -> list[int]:
    check(progress)
    return list(progress.lanes[key].offsets) if key in progress.lanes else []


def check(progress: QueueProgress) -> None:
    for lane in progress.lanes.values():
        kept = list(lane.offsets)
        assert kept, "an empty lane would keep its key parked indefinitely"
        assert kept == sorted(set(kept))
        assert (len(kept), kept[0], kept[-1]) == (len(lane.offsets), lane.first, lane.offsets.last)
        assert kept[-1] <= lane.through


def status(progress: QueueProgress) -> LaneStatus | None:
    return progress.lanes["k"].status if "k" in progress.lanes else None


def test_a_failure_starts_a_lane_and_later_messages_join_it() -> None:
    progress = new()
    assert park(progress, 4, 6)[:3] == (2, (4, 6), progress.lanes.get("k"))
    assert park(progress, 9, failed=False).fresh == (9,)
    assert offsets(progress) == [4, 6, 9]


def test_after_a_discard_the_reason_names_the_offset_that_failed() -> None:
    progress = new()
    park(progress, 4, 5, 6)
    progress.discard("k", 4)
    progress.discard("k", 5)
    lane = progress.lanes["k"]
    assert lane.failure == Failure("offset 4 (discarded since): ValueError()", 0)


def test_lanes_with_and_without_a_key_are_different_ones() -> None:
    progress = new()
    park(progress, 1, key=None)
    park(progress, 2, key="")
    assert (offsets(progress, None), offsets(progress, "")) == ([1], [2])


def test_a_held_lane_is_run_by_its_owner_and_keeps_its_attempts() -> None:
    """A new owner continues with the retries that are left."""
    progress = new()
    park(progress, 4, 6, held=True)
    lane = progress.lanes["k"]
    assert (lane.status, lane.failure) == (LaneStatus.HELD, FAILURE)
    assert not progress.redrive("k"), "its owner runs it by itself"
    progress.park("k", (), Failure("again", 18), now=NOW, again=4, held=True)
    assert (lane.status, lane.failure.attempts) == (LaneStatus.HELD, 18)


def test_a_held_lane_whose_retries_are_used_up_is_parked() -> None:
    progress = new()
    park(progress, 4, 6, held=True)
    park(progress, 8, again=4)
    assert (status(progress), offsets(progress)) == (LaneStatus.PARKED, [4, 6, 8])


def test_a_held_lane_whose_first_message_succeeds_goes_on_like_a_redriven_one() -> None:
    progress = new()
    park(progress, 4, 6, held=True)
    progress.finish("k", 4)
    assert status(progress) is LaneStatus.REDRIVING


def test_a_discarded_first_message_ends_the_hold() -> None:
    progress = new()
    park(progress, 4, 6, held=True)
    progress.discard("k", 4)
    assert (status(progress), offsets(progress)) == (LaneStatus.REDRIVING, [6])
    lane = progress.lanes["k"]
    assert lane.failure.attempts == 0


def test_a_long_lane_costs_two_bytes_per_message_and_one_changed_row_per_request() -> None:
    progress = new()
    last = 0
    for start in range(0, 100_000_000, 1_000_000):
        outcome = park(progress, *range(start, start + 1_000_000, 10_000), failed=start == 0)
        assert len(outcome.rows) <= 2
        last = start + 990_000
    lane = progress.lanes["k"]
    assert (len(lane.offsets), lane.first, lane.offsets.last, lane.through) == (10_000, 0, last, last)
    assert sum(len(data) for _, data in lane.offsets.rows()) < 21_000


def test_the_serial_changes_with_operators_changes_and_not_with_the_owners() -> None:
    progress = new()
    assert progress.serial == 0
    park(progress, 4, 6, 8)
    parked = progress.serial
    assert parked > 0, "a new owner must ask"
    park(progress, 9, failed=False)
    progress.finish("k", 4)
    assert progress.serial == parked
    progress.redrive("k")
    redriven = progress.serial
    progress.discard("k", 6)
    assert parked < redriven < progress.serial
    progress.discard("k", 100)
    assert progress.serial > 0, "an empty place was changed too"


def test_parked_offsets_beyond_the_end_of_the_log_are_removed_after_a_restart() -> None:
    progress = new()
    park(progress, 4, 6)
    park(progress, 9, key="j")
    assert progress.cut(6, clean=False) == {"k": [6], "j": [9]}
    assert (offsets(progress), list(progress.lanes), progress.lanes["k"].through) == ([4], ["k"], 5)


@pytest.mark.parametrize(
    ("asked", "parkable"),
    [([2, 3, 4], [2, 3, 4]), ([1, 4], []), ([4, 8, 9], [4]), ([], [])],
    ids=["in the log", "deleted", "not written yet", "nothing"],
)
def test_what_is_not_in_the_log_is_not_parked(asked: list[int], parkable: list[int]) -> None:
    assert new().parkable("k", asked, (2, 8)) == parkable


def test_a_settled_message_need_not_be_in_the_log() -> None:
    progress = new()
    park(progress, 1, 2)
    assert progress.parkable("k", [1, 2, 9], (5, 8)) == [1, 2]


def test_the_growth_of_a_lane_is_known_before_it_is_parked() -> None:
    table = ProgressTable(serial=1)
    progress = table.at("g", Q)
    for asked in ([1, 2], [5], list(range(10, 3_000))):
        expected = table.lane_bytes("g") + progress.growth("k", FAILURE, len(asked))
        park(progress, *asked)
        assert table.lane_bytes("g") == expected


# comparison with a naive table


@dataclass
class Naive:
    """The same rules, written as simply as possible."""

    held: dict[str, dict[int, None]] = field(default_factory=dict)
    through: dict[str, int] = field(default_factory=dict)
    redriving: set[str] = field(default_factory=set)

    def park(self, key: str, asked: list[int], failed: bool, again: int | None) -> tuple[int, list[int]]:
        """How many are settled, and which of them are new."""
        held = self.held.get(key, {})
        if again is not None and again not in held:
            failed = False  # an operator discarded it while it ran
        if again is not None:
            self.remove(key, [each for each in held if each < again])  # everything before it is finished
        if key in self.held and again is None and asked and asked[0] <= self.through[key]:
            failed = False  # a repeat, whose first answer was lost, does not undo a redrive
        if key not in self.held and not (failed and asked):
            return 0, []  # the broker does not know whether they may run, and parked they would stay
        through = self.through.get(key, -1)
        fresh = [offset for offset in asked if offset > through]  # others are in the lane, have left it, or were done
        self.held.setdefault(key, {}).update(dict.fromkeys(fresh))
        self.through[key] = max(through, *asked, -1)
        if failed:
            self.redriving.discard(key)
        return len(asked), fresh

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


def restarted(progress: QueueProgress) -> QueueProgress:
    table = ProgressTable(serial=2_000)
    table.restore((), [SavedLane.of(lane, lane.offsets.rows()) for lane in progress.lanes.values()])
    return table.at("g", Q)


@settings(max_examples=300)
@given(STEPS)
def test_it_does_what_the_naive_table_does(steps: list[tuple[Any, ...]]) -> None:
    progress, naive = new(), Naive()
    for what, *args in steps:
        match what:
            case "park":
                asked = sorted(args[1])
                parked = park(progress, *asked, key=args[0], failed=args[2])
                assert (parked.settled, list(parked.fresh)) == naive.park(args[0], asked, args[2], None)
            case "again":
                asked = sorted(args[1])
                parked = park(progress, *asked, key=args[0], again=args[2])
                assert (parked.settled, list(parked.fresh)) == naive.park(args[0], asked, True, args[2])
            case "finished" | "discard":
                (progress.finish if what == "finished" else progress.discard)(args[0], args[1])
                naive.remove(args[0], [each for each in naive.held.get(args[0], {}) if each <= args[1]])
            case "redrive":
                if progress.redrive(args[0]):
                    naive.redriving.add(args[0])
            case "restart":
                progress = restarted(progress)
        check(progress)
        lanes = progress.lanes.items()
        assert {key: sorted(lane.offsets) for key, lane in lanes} == {
            key: sorted(held) for key, held in naive.held.items()
        }
        assert {key for key, lane in lanes if lane.status is LaneStatus.REDRIVING} == naive.redriving
        assert {key: lane.through for key, lane in lanes} == naive.through
