"""Progress moves forward only, except where somebody is named who may take it back."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lanemq.core.group_offsets import (
    Backward,
    Commit,
    CommitKind,
    Committed,
    GroupOffsets,
    Ignored,
    OffsetRow,
    WhyIgnored,
    kind_of,
)
from lanemq.core.lock_table import Current, Stale, Unowned, Verdict
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Epoch, QueueOffset


def commit(offsets: GroupOffsets, offset: int, kind: CommitKind = CommitKind.FORWARD) -> Commit:
    return offsets.commit("g", "t", 0, QueueOffset(offset), kind=kind)


def at_ten() -> GroupOffsets:
    offsets = GroupOffsets()
    commit(offsets, 10)
    return offsets


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
def test_standing_decides_what_a_commit_may_do(verdict: Verdict, stock: bool, kind: CommitKind) -> None:
    assert kind_of(verdict, stock=stock) is kind


def test_reset_goes_back_by_name() -> None:
    offsets = at_ten()
    offsets.reset("g", "t", 0, QueueOffset(3))
    assert offsets.committed("g", "t", 0) == 3
    assert offsets.take_pending_reset("g", "t", 0) is None
    assert commit(offsets, 4) == Committed(QueueOffset(3))


def test_commits_from_before_a_pending_reset_are_ignored() -> None:
    """A member that has not heard of the reset would otherwise undo it with its next commit."""
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    assert commit(offsets, 12, CommitKind.ANY_WAY) == Ignored(WhyIgnored.RESET_PENDING)
    assert offsets.take_pending_reset("g", "t", 0) == 3
    assert offsets.take_pending_reset("g", "t", 0) is None
    assert commit(offsets, 4) == Committed(QueueOffset(3))


def test_plain_reset_replaces_a_pending_one() -> None:
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    offsets.reset("g", "t", 0, QueueOffset(7))
    assert offsets.take_pending_reset("g", "t", 0) is None
    assert commit(offsets, 8) == Committed(QueueOffset(7))


def test_forgotten_group_forgets_its_pending_reset() -> None:
    offsets = GroupOffsets()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    offsets.forget(group="g")
    assert commit(offsets, 1) == Committed(None)


def test_reset_to_a_negative_offset_is_refused() -> None:
    offsets = at_ten()
    for reset in (offsets.reset, offsets.reset_at_next_pull):
        with pytest.raises(InvalidOption, match="use 0 or more"):
            reset("g", "t", 0, QueueOffset(-1))
    assert offsets.committed("g", "t", 0) == 10
    assert offsets.take_pending_reset("g", "t", 0) is None


def test_pending_reset_survives_a_restart() -> None:
    offsets = at_ten()
    offsets.reset_at_next_pull("g", "t", 0, QueueOffset(3))
    restarted = GroupOffsets()
    restarted.restore(offsets.dirty())
    assert restarted.dirty() == ()
    assert restarted.take_pending_reset("g", "t", 0) == 3
    assert restarted.dirty() == (OffsetRow("g", "t", 0, QueueOffset(3), False),)


def test_only_changes_are_dirty_and_only_until_saved() -> None:
    offsets = at_ten()
    offsets.saved(offsets.dirty())
    commit(offsets, 10)
    assert offsets.dirty() == ()
    commit(offsets, 11)
    assert offsets.dirty() == (OffsetRow("g", "t", 0, QueueOffset(11), False),)


def test_row_changed_while_it_was_saved_stays_dirty() -> None:
    offsets = at_ten()
    writing = offsets.dirty()
    commit(offsets, 11)
    offsets.saved(writing)
    assert [row.offset for row in offsets.dirty()] == [11]


def test_views_and_forgetting() -> None:
    offsets = GroupOffsets()
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        offsets.commit(group, topic, 1, QueueOffset(5), kind=CommitKind.FORWARD)
    assert offsets.of_group("g") == {("t", 1): 5, ("u", 1): 5}
    assert offsets.groups_of("t") == ("g", "h")
    assert offsets.forget(topic="t") == (("g", "t", 1), ("h", "t", 1))
    assert offsets.groups_of("t") == ()
    assert offsets.forget(group="g") == (("g", "u", 1),)
    assert offsets.dirty() == ()
    offsets._check()


actions = st.tuples(
    st.sampled_from(["forward", "fenced", "reset", "reset pending", "pull", "restart", "save"]),
    st.integers(-1, 20),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(actions, max_size=40))
def test_without_a_reset_the_offset_never_falls(schedule: list[tuple[str, int]]) -> None:
    offsets, disk = GroupOffsets(), dict[tuple[str, str, int], OffsetRow]()
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
                offsets.take_pending_reset("g", "t", 0)
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
