"""The table of progress: what is unsaved, what a deletion leaves, what is watched, and what it takes."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from lanemq.core.brokering.progress_store import SavedOffset
from lanemq.core.brokering.progress_table import Forgotten, ProgressTable
from lanemq.core.brokering.queue_progress import OFFSET_BYTES, CommitKind, Committed, ResetState
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.core.lane_status import Failure
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

Q = MessageQueue("t", "b", 0)


def new() -> ProgressTable:
    return ProgressTable(serial=1)


def commit(table: ProgressTable, offset: int, queue: MessageQueue = Q, group: str = "g", finished: str = "") -> object:
    ranges = FinishedRanges.decode(finished, offset) if finished else None
    return table.at(group, queue).commit(QueueOffset(offset), kind=CommitKind.FORWARD, finished=ranges)


def park(table: ProgressTable, *offsets: int, queue: MessageQueue = Q, group: str = "g", key: str = "k") -> None:
    table.at(group, queue).park(key, offsets, Failure("broken", 1), now=Millis(1))


def check(table: ProgressTable) -> None:
    """What is counted is what is there, and nothing is empty."""
    entered: dict[str, list[tuple[int, int]]] = {}
    for progress in table:
        assert progress.offset is not None or progress.serial
        assert table.has_topic(progress.group, progress.queue.topic)
        size = 0 if progress.offset is None else OFFSET_BYTES + len(progress.finished)
        weights = sum(lane.weight for lane in progress.lanes.values())
        entered.setdefault(progress.group, []).append((size, weights))
    assert tuple(sorted(entered)) == table.groups()
    for group, sizes in entered.items():
        assert (table.offset_bytes(group), table.lane_bytes(group)) == tuple(map(sum, zip(*sizes, strict=True)))
    assert {id(each) for each in table.parked()} == {id(each) for each in table if each.lanes}


def test_queues_of_two_brokers_with_one_number_are_two_queues() -> None:
    table = new()
    commit(table, 5)
    commit(table, 7, MessageQueue("t", "other", 0))
    assert [progress.offset for progress in table.of_group("g")] == [5, 7]


def test_progress_is_entered_with_its_first_change() -> None:
    table = new()
    assert table.at("g", Q).offset is None
    assert not table.has_group("g")
    park(table, 4)
    assert [table.at("g", Q)] == table.parked() == list(table)
    table.at("g", Q).finish("k", 4)
    assert (table.parked(), list(table.of_group("g"))) == ([], []), "it has committed nothing"
    check(table)


def test_a_pending_reset_survives_a_restart() -> None:
    table = new()
    table.at("g", Q).move(QueueOffset(3), pending=True)
    restarted = new()
    restarted.restore(table.take_unsaved())
    assert restarted.take_unsaved() == []
    progress = restarted.at("g", Q)
    assert progress.reset is ResetState.UNTOLD
    assert [progress.moved_to(QueueOffset(at)) for at in (10, 3)] == [3, None]
    assert restarted.take_unsaved() == [SavedOffset("g", Q, QueueOffset(3), False)]


def test_finished_ranges_are_one_row_with_their_offset_and_survive_a_restart() -> None:
    table = new()
    commit(table, 10, finished="2,3,5,1")
    rows = table.take_unsaved()
    assert rows == [SavedOffset("g", Q, QueueOffset(10), False, "2,3,5,1")]
    commit(table, 10, finished="2,3,5,1")
    assert table.take_unsaved() == []
    table.at("g", Q).forget_finished()
    assert [row.finished for row in table.take_unsaved()] == [""]
    restarted = new()
    restarted.restore(rows)
    assert restarted.at("g", Q).finished == "2,3,5,1"
    check(restarted)


def test_only_changes_are_unsaved_and_only_until_they_are_taken() -> None:
    table = new()
    commit(table, 10)
    assert table.has_unsaved
    table.take_unsaved()
    commit(table, 10)
    assert not table.has_unsaved
    commit(table, 11)
    assert table.take_unsaved() == [SavedOffset("g", Q, QueueOffset(11))]


def test_rows_are_taken_a_limited_number_at_a_time_in_the_order_of_their_changes() -> None:
    table, queues = new(), [MessageQueue("t", "b", number) for number in range(5)]
    for queue in queues:
        commit(table, 1, queue)
    assert [row.queue.queue_id for row in table.take_unsaved(2)] == [0, 1]
    commit(table, 2, queues[0])
    assert [row.queue.queue_id for row in table.take_unsaved(3)] == [2, 3, 4], "one that changes often does not delay"
    assert [row.queue.queue_id for row in table.take_unsaved()] == [0]


def test_progress_is_listed_by_group_and_topic_until_it_is_deleted() -> None:
    table = new()
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        commit(table, 5, MessageQueue(topic, "b", 1), group)
    park(table, 7, group="h")
    assert [each.queue.topic for each in table.of_group("g")] == ["t", "u"]
    assert [group for group in table.groups() if table.has_topic(group, "t")] == ["g", "h"]
    check(table)
    assert table.forget_topic("t").groups == ("g", "h")
    assert table.groups() == ("g",)
    assert table.forget_group("g").groups == ("g",)
    assert not table.has_group("g")
    assert (table.take_unsaved(), table.parked()) == ([], [])
    check(table)


def of_a_group() -> ProgressTable:
    """Group g has a finished range, lanes and a pending reset in topic t, and an offset in topic u."""
    table = new()
    commit(table, 10, finished="2,3")
    park(table, 4, 6)
    park(table, 5, key="j")
    table.at("g", Q._replace(queue_id=1)).move(QueueOffset(4), pending=True)
    commit(table, 7, MessageQueue("u", "b", 0))
    return table


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("forget", [lambda it: it.forget_group("g"), lambda it: it.forget_topic("t")])
def test_a_group_that_begins_again_while_its_old_progress_is_freed_begins_anew(
    forget: Callable[[ProgressTable], Forgotten], steps_before: int
) -> None:
    """Nothing of the deleted group applies to it, and freeing takes nothing of it away."""
    table = of_a_group()
    freeing = forget(table).steps
    for _ in islice(freeing, steps_before):
        pass
    for queue_id in (0, 1):
        queue = Q._replace(queue_id=queue_id)
        assert (table.at("g", queue).finished, table.at("g", queue).lanes) == ("", {})
        assert commit(table, 2, queue) == Committed(None)
        park(table, 1, queue=queue)
    check(table)
    for _ in freeing:
        check(table)
    assert {row[:3] for row in table.take_unsaved()} >= {("g", Q, 2), ("g", Q._replace(queue_id=1), 2)}
    assert len(table.parked()) == 2
    assert table.forget_topic("t").groups == ("g",), "the topic still knows its groups"


def test_what_was_forgotten_leaves_nothing_behind() -> None:
    table = of_a_group()
    for forgotten in (table.forget_group("g"), table.forget_topic("t")):
        assert sum(1 for _ in forgotten.steps) < 10
    assert vars(table) == vars(new())


class Unwalkable(dict[str, Any]):
    """A table in which single entries can be looked up."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all groups are looked at")


def test_a_deleted_topic_costs_by_what_it_had() -> None:
    """Not by what all groups have: among 400,000 other offsets, its deletion held the event loop for 20 ms."""
    table = new()
    for group, topic in (("g", "t"), ("g", "u"), ("h", "u")):
        commit(table, 1, MessageQueue(topic, "b", 0), group)
    table._groups = Unwalkable(table._groups)
    assert table.forget_topic("t").groups == ("g",)
    assert table.forget_topic("t").groups == ()
    assert (table.has_topic("g", "t"), table.has_topic("g", "u")) == (False, True)


def test_those_who_watch_see_what_changed_since_and_no_longer_than_they_watch() -> None:
    table = new()
    commit(table, 1)
    with table.watching() as early:
        park(table, 7, 9)
        with table.watching() as late:
            commit(table, 2)
            park(table, 8, key="j")
            table.forget_topic("t")
    commit(table, 3)
    assert (early.offsets, early.parked_from, early.forgotten) == ({("g", Q)}, {("g", Q): 7}, {("g", "t")})
    assert (late.offsets, late.parked_from, late.forgotten) == ({("g", Q)}, {("g", Q): 8}, {("g", "t")})
