"""Committed offsets only move forward, except by a reset or by a stock owner."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lanemq.core.brokering.group_offsets import (
    Backward,
    Commit,
    CommitKind,
    Committed,
    Forgotten,
    GroupOffsets,
    Ignored,
    SavedOffset,
    WhyIgnored,
    kind_of,
)
from lanemq.core.brokering.lock_table import Current, Stale, Unowned, Verdict
from lanemq.core.finished_ranges import MAX_RANGES, FinishedRanges
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Epoch, QueueOffset


def commit(
    offsets: GroupOffsets, offset: int, kind: CommitKind = CommitKind.FORWARD, finished: FinishedRanges | None = None
) -> Commit:
    return offsets.commit("g", "t", 0, QueueOffset(offset), kind=kind, finished=finished)


def pull(
    offsets: GroupOffsets, pulled_from: int, *, decides: bool = False, commits: bool = False
) -> QueueOffset | None:
    return offsets.pending_reset("g", "t", 0, QueueOffset(pulled_from), decides=decides, commits=commits)


def at_ten() -> GroupOffsets:
    offsets = GroupOffsets()
    commit(offsets, 10)
    return offsets


def at_ten_with_finished() -> GroupOffsets:
    offsets = GroupOffsets()
    commit(offsets, 10, finished=FinishedRanges.of([(12, 15), (20, 21)]))
    return offsets


def finished(offsets: GroupOffsets) -> list[tuple[QueueOffset, QueueOffset]]:
    offsets._check()
    return FinishedRanges.decode(offsets.finished_ranges("g", "t", 0), offsets.committed("g", "t", 0) or 0).ranges()


def test_first_commit_is_stored() -> None:
    offsets = GroupOffsets()
    assert offsets.committed("g", "t", 0) is None
    assert commit(offsets, 0) == Committed(None)
    assert offsets.committed("g", "t", 0) == 0


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
    offsets = at_ten()
    assert commit(offsets, offset, kind) == answer
    assert offsets.committed("g", "t", 0) == stored


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
    offsets = at_ten()
    offsets.reset("g", "t", 0, QueueOffset(3))
    assert offsets.committed("g", "t", 0) == 3
    assert pull(offsets, 10) is None
    assert commit(offsets, 4) == Committed(QueueOffset(3))


def test_commits_from_before_a_pending_reset_are_ignored() -> None:
    """A member that does not know of the reset would otherwise undo it with its next commit."""
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    assert commit(offsets, 12, CommitKind.ANY_WAY) == Ignored(WhyIgnored.RESET_PENDING)
    assert pull(offsets, 12) == 3
    assert pull(offsets, 3) is None
    assert commit(offsets, 4) == Committed(QueueOffset(3))


def test_a_reset_is_answered_again_until_a_pull_comes_from_its_offset() -> None:
    """The answer may be lost, and a member that continues at the old offset would undo the reset."""
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    assert [pull(offsets, 12), pull(offsets, 12)] == [3, 3]
    assert commit(offsets, 13) == Ignored(WhyIgnored.RESET_PENDING)
    assert [pull(offsets, 3), pull(offsets, 12)] == [None, None]


def test_a_commit_at_the_offset_of_a_reset_ends_it() -> None:
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    assert commit(offsets, 3) == Ignored(WhyIgnored.RESET_PENDING), "no pull was answered with it yet"
    assert pull(offsets, 12) == 3
    assert commit(offsets, 3) == Committed(QueueOffset(3))
    assert pull(offsets, 4) is None


def test_a_member_at_the_offset_of_a_reset_by_chance_is_answered_with_it_too() -> None:
    """It still processes messages pulled before, and their commit would move the group past its new offset."""
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(12))
    assert [pull(offsets, 12), pull(offsets, 12)] == [12, None]


def test_an_owner_at_the_offset_of_a_reset_by_chance_ends_it_only_by_a_commit() -> None:
    """It may have lost every answer, and would go on with messages that the reset skips."""
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(12))
    assert [pull(offsets, 12, commits=True) for _ in range(3)] == [12, 12, 12]
    assert commit(offsets, 11) == Ignored(WhyIgnored.RESET_PENDING)
    assert commit(offsets, 12) == Committed(QueueOffset(12))
    assert pull(offsets, 12, commits=True) is None


def test_a_commit_with_finished_ranges_does_not_end_a_reset_to_its_offset() -> None:
    """What they cover is to run again; the commit stems from before the reset, whose answer was lost."""
    offsets = at_ten_with_finished()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(10))
    assert pull(offsets, 21, commits=True) == 10
    assert commit(offsets, 10, finished=FinishedRanges.of([(12, 15)])) == Ignored(WhyIgnored.RESET_PENDING)
    assert finished(offsets) == []
    assert commit(offsets, 10, finished=FinishedRanges()) == Committed(QueueOffset(10))


def test_a_reader_that_chooses_its_offsets_is_answered_with_a_reset_once() -> None:
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    assert [pull(offsets, 12, decides=True), pull(offsets, 12, decides=True)] == [3, None]
    assert commit(offsets, 13) == Committed(QueueOffset(3))


def test_plain_reset_replaces_a_pending_one() -> None:
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    offsets.reset("g", "t", 0, QueueOffset(7))
    assert pull(offsets, 10) is None
    assert commit(offsets, 8) == Committed(QueueOffset(7))


def test_deleting_a_group_deletes_its_pending_reset() -> None:
    offsets = GroupOffsets()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    offsets.forget_group("g")
    assert commit(offsets, 1) == Committed(None)


def test_reset_to_a_negative_offset_is_refused() -> None:
    offsets = at_ten()
    for reset in (offsets.reset, offsets.reset_at_next_pull):
        with pytest.raises(InvalidOption, match="use 0 or more"):
            reset("g", "t", 0, QueueOffset(-1))
    assert offsets.committed("g", "t", 0) == 10
    assert pull(offsets, 10) is None


def test_pending_reset_survives_a_restart() -> None:
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    restarted = GroupOffsets()
    restarted.restore(offsets.dirty())
    assert restarted.dirty() == ()
    assert [pull(restarted, 10), pull(restarted, 3)] == [3, None]
    assert restarted.dirty() == (SavedOffset("g", "t", 0, QueueOffset(3), False),)


def test_only_changes_are_dirty_and_only_until_saved() -> None:
    offsets = at_ten()
    offsets.saved(offsets.dirty())
    commit(offsets, 10)
    assert offsets.dirty() == ()
    commit(offsets, 11)
    assert offsets.dirty() == (SavedOffset("g", "t", 0, QueueOffset(11), False),)


def test_row_changed_while_it_was_saved_stays_dirty() -> None:
    offsets = at_ten()
    writing = offsets.dirty()
    commit(offsets, 11)
    offsets.saved(writing)
    assert [row.offset for row in offsets.dirty()] == [11]


def test_offsets_are_listed_by_group_and_topic_until_they_are_deleted() -> None:
    offsets = GroupOffsets()
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        offsets.commit(group, topic, 1, QueueOffset(5), kind=CommitKind.FORWARD)
    assert offsets.of_group("g") == {("t", 1): 5, ("u", 1): 5}
    assert [group for group in offsets.groups() if offsets.has_topic(group, "t")] == ["g", "h"]
    assert offsets.forget_topic("t").groups == ("g", "h")
    assert not any(offsets.has_topic(group, "t") for group in ("g", "h"))
    assert offsets.forget_group("g").groups == ("g",)
    assert not offsets.has_group("g")
    assert offsets.dirty() == ()
    offsets._check()


def of_a_group() -> GroupOffsets:
    """Group g has a finished range and a pending reset in topic t, and an offset in topic u."""
    offsets = GroupOffsets()
    finished = FinishedRanges.of([(12, 15)])
    offsets.commit("g", "t", 0, QueueOffset(10), kind=CommitKind.FORWARD, finished=finished)
    offsets.reset_at_next_pull("g", "t", 1, QueueOffset(4))
    offsets.commit("g", "u", 0, QueueOffset(7), kind=CommitKind.FORWARD)
    return offsets


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
@pytest.mark.parametrize("forget", [lambda it: it.forget_group("g"), lambda it: it.forget_topic("t")])
def test_a_group_that_commits_again_while_its_old_offsets_are_freed_begins_anew(
    forget: Callable[[GroupOffsets], Forgotten], steps_before: int
) -> None:
    """Neither finished ranges nor a reset of the deleted group apply to it, and freeing takes nothing of it away."""
    offsets = of_a_group()
    freeing = forget(offsets).steps
    for _ in islice(freeing, steps_before):
        pass
    for queue_id in (0, 1):
        assert offsets.finished_ranges("g", "t", queue_id) == ""
        committed = offsets.commit("g", "t", queue_id, QueueOffset(2), kind=CommitKind.FORWARD)
        assert committed == Committed(None)
    offsets._check()
    for _ in freeing:
        offsets._check()
    assert offsets.committed("g", "t", 0) == offsets.committed("g", "t", 1) == 2
    assert {row[:4] for row in offsets.dirty()} >= {("g", "t", 0, 2), ("g", "t", 1, 2)}
    assert offsets.forget_topic("t").groups == ("g",), "the topic still knows its groups"


def test_what_was_forgotten_leaves_nothing_behind() -> None:
    offsets = of_a_group()
    for steps in (offsets.forget_group("g").steps, offsets.forget_topic("t").steps):
        assert sum(1 for _ in steps) < 10
    assert offsets.dirty() == ()
    assert vars(offsets) == vars(GroupOffsets())


def test_a_row_that_is_deleted_behind_its_write_is_written_again() -> None:
    """The deletion of the group's rows is behind the write: a commit that looks as before is not on disk."""
    offsets = at_ten()
    writing = offsets.dirty()
    offsets.forget_group("g")
    commit(offsets, 10)
    offsets.saved(writing)
    assert [row.offset for row in offsets.dirty()] == [10]
    offsets.saved(offsets.dirty())
    assert offsets.dirty() == ()


def test_rows_are_saved_a_limited_number_at_a_time_in_the_order_of_their_changes() -> None:
    offsets = GroupOffsets()
    for queue_id in range(5):
        offsets.commit("g", "t", queue_id, QueueOffset(1), kind=CommitKind.FORWARD)
    writing = offsets.dirty(2)
    assert [row.queue_id for row in writing] == [0, 1]
    offsets.commit("g", "t", 0, QueueOffset(2), kind=CommitKind.FORWARD)
    offsets.saved(writing)
    assert [row.queue_id for row in offsets.dirty(3)] == [2, 3, 4], "one that changes often does not delay the others"
    assert [row.queue_id for row in offsets.dirty()] == [2, 3, 4, 0]


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
    offsets = at_ten_with_finished()
    commit(offsets, offset, kind, brought)
    assert finished(offsets) == left


@pytest.mark.parametrize(
    ("kind", "offset"), [(CommitKind.ANY_WAY, 9), (CommitKind.ANY_WAY, 11), (CommitKind.FORWARD, 11)]
)
def test_a_commit_without_finished_ranges_deletes_them(kind: CommitKind, offset: int) -> None:
    """Otherwise a lane that goes back would repeat an earlier message and skip a later one."""
    offsets = at_ten_with_finished()
    commit(offsets, 10, kind)
    assert finished(offsets) == [(12, 15), (20, 21)], "the same offset says nothing new"
    commit(offsets, offset, kind)
    assert finished(offsets) == []


def test_a_reset_deletes_the_finished_ranges_and_a_late_commit_does_not_restore_them() -> None:
    offsets = at_ten_with_finished()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(10))
    assert finished(offsets) == []
    commit(offsets, 10, finished=FinishedRanges.of([(12, 15)]))
    assert finished(offsets) == []
    offsets = at_ten_with_finished()
    offsets.reset("g", "t", 0, QueueOffset(10))
    assert finished(offsets) == []


def test_too_many_finished_ranges_are_cut_at_the_upper_end() -> None:
    offsets = GroupOffsets()
    commit(offsets, 0, finished=FinishedRanges(tuple(range(1, 2 * MAX_RANGES + 3))))
    assert finished(offsets)[-1] == (2 * MAX_RANGES - 1, 2 * MAX_RANGES)


def test_finished_ranges_are_one_row_with_their_offset_and_survive_a_restart() -> None:
    offsets = at_ten_with_finished()
    rows = offsets.dirty()
    assert rows == (SavedOffset("g", "t", 0, QueueOffset(10), False, "2,3,5,1"),)
    commit(offsets, 10, finished=FinishedRanges.of([(12, 15)]))
    offsets.saved(rows)
    assert [row.finished for row in offsets.dirty()] == ["2,3"], "changed while it was written"
    offsets.saved(offsets.dirty())
    commit(offsets, 10, finished=FinishedRanges.of([(12, 15)]))
    assert offsets.dirty() == ()
    restarted = GroupOffsets()
    restarted.restore(rows)
    assert finished(restarted) == [(12, 15), (20, 21)]


def test_after_a_restart_nothing_beyond_the_end_of_a_queue_is_finished() -> None:
    """A power cut may lose messages that were consumed; new messages get their offsets."""
    offsets = at_ten_with_finished()
    offsets.saved(offsets.dirty())
    offsets.cut_finished(lambda topic, queue_id: 21)
    assert offsets.dirty() == ()
    offsets.cut_finished(lambda topic, queue_id: 13)
    assert finished(offsets) == [(12, 13)]
    assert len(offsets.dirty()) == 1


def test_deleted_finished_ranges_are_deleted_on_disk_too() -> None:
    offsets = at_ten_with_finished()
    offsets.saved(offsets.dirty())
    offsets.forget_finished("g", "t", 0)
    assert finished(offsets) == []
    assert [row.finished for row in offsets.dirty()] == [""]
    offsets = at_ten_with_finished()
    offsets.forget_topic("t")
    commit(offsets, 10)
    assert finished(offsets) == []


actions = st.tuples(
    st.sampled_from(["forward", "fenced", "reset", "reset pending", "pull", "restart", "save"]),
    st.integers(-1, 20),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, max_size=40))
def test_without_a_reset_the_offset_never_falls(schedule: list[tuple[str, int]]) -> None:
    offsets, disk = GroupOffsets(), dict[tuple[str, str, int], SavedOffset]()
    highest = -1
    for action, number in schedule:
        offset = QueueOffset(number)
        match action:
            case "forward" | "fenced":
                commit(offsets, offset, CommitKind(action))
            case "reset" if offset >= 0:
                offsets.reset("g", "t", 0, offset)
                highest = number
            case "reset pending" if offset >= 0:
                offsets.reset_at_next_pull("g", "t", 0, offset)
                highest = number
            case "pull":
                pull(offsets, number)
            case "save" | "restart":
                rows = offsets.dirty()
                disk.update({row[:3]: row for row in rows})
                offsets.saved(rows)
                assert offsets.dirty() == ()
                if action == "restart":
                    offsets = GroupOffsets()
                    offsets.restore(disk.values())
        now = offsets.committed("g", "t", 0)
        assert (-1 if now is None else now) >= highest
        highest = -1 if now is None else now
        offsets._check()


def test_an_offset_beyond_the_end_of_its_queue_is_cut_after_a_restart() -> None:
    """A power cut without durable writes shortens the log; new messages get the offsets that were lost."""
    offsets = GroupOffsets()
    offsets.commit("g", "t", 0, QueueOffset(9), kind=CommitKind.FORWARD)
    offsets.commit("g", "t", 1, QueueOffset(3), kind=CommitKind.FORWARD)
    offsets.cut_offsets(lambda topic, queue_id: 5)
    assert offsets.of_group("g") == {("t", 0): 5, ("t", 1): 3}


class Unwalkable(dict[str, Any]):
    """A table in which single entries can be looked up."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all groups are looked at")


def test_a_deleted_topic_costs_by_the_offsets_that_it_had() -> None:
    """Not by those of all groups: among 400,000 others, its deletion held the event loop for 20 ms."""
    offsets = GroupOffsets()
    for group, topic in (("g", "t"), ("g", "u"), ("h", "u")):
        offsets.commit(group, topic, 0, QueueOffset(1), kind=CommitKind.ANY_WAY)
    offsets._groups = Unwalkable(offsets._groups)
    assert offsets.forget_topic("t").groups == ("g",)
    assert offsets.forget_topic("t").groups == ()
    assert (offsets.has_topic("g", "t"), offsets.has_topic("g", "u")) == (False, True)
