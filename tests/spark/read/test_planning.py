"""Planning of a batch: ranges, limits and losses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.spark.offsets import (
    Bounds,
    Positions,
    created_in,
    creation_key,
    from_json,
    least_tasks_in,
    parse_offsets,
    to_json,
)
from lanemq.spark.read.planning import (
    MESSAGES_PER_TASK,
    OffsetRange,
    available,
    limit_bytes,
    limit_rows,
    must_wait,
    pack,
    plan_batch,
    replaced_queues,
    resume_points,
    split,
)

QUEUES = [MessageQueue("orders", "a", number) for number in range(5)]
A, B = QUEUES[0], QUEUES[1]


def at(*offsets: int) -> Positions:
    return {queue: QueueOffset(offset) for queue, offset in zip(QUEUES, offsets, strict=False)}


def holds(*bounds: tuple[int, int]) -> dict[MessageQueue, Bounds]:
    return {
        queue: Bounds(QueueOffset(low), QueueOffset(high)) for queue, (low, high) in zip(QUEUES, bounds, strict=False)
    }


backlogs = st.lists(st.integers(0, 50), min_size=1, max_size=5)


@given(backlogs, st.integers(1, 120))
def test_a_row_limit_is_used_up_and_never_exceeded(sizes: list[int], most: int) -> None:
    start, end = at(*[10] * len(sizes)), at(*[10 + size for size in sizes])
    limited = limit_rows(start, end, most)
    assert available(start, limited) == min(most, sum(sizes))
    assert all(start[queue] <= limited[queue] <= end[queue] for queue in start)


@given(backlogs, st.integers(5, 120))
def test_every_queue_gets_a_message_if_the_limit_allows_it(sizes: list[int], most: int) -> None:
    start, end = at(*[0] * len(sizes)), at(*sizes)
    limited = limit_rows(start, end, most)
    assert all(limited[queue] > 0 for queue in start if end[queue] > 0)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=5), st.integers(1, 4), st.integers(0, 30))
def test_queues_take_turns_if_the_limit_is_smaller_than_their_number(sizes: list[int], most: int, began: int) -> None:
    """New messages arrive as fast as old ones are read, so no backlog shrinks; no queue waits for another."""
    start = at(*[began] * len(sizes))
    now = dict(start)
    for _ in sizes:
        now = limit_rows(
            now, {queue: QueueOffset(now[queue] + size) for queue, size in zip(now, sizes, strict=True)}, most
        )
    assert all(now[queue] > start[queue] for queue in start)


@given(backlogs, st.integers(1, 100_000))
def test_a_byte_limit_makes_progress_and_is_roughly_kept(sizes: list[int], most: int) -> None:
    start, end = at(*[0] * len(sizes)), at(*sizes)
    limited = limit_bytes(start, end, dict.fromkeys(start, 100.0), most)
    if sum(sizes):
        assert available(start, limited) >= 1
    assert available(start, limited) * 100 <= max(most, 100)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 60)), max_size=5), st.integers(0, 40))
def test_split_ranges_cover_the_same_messages_once(parts: list[tuple[int, int]], least: int) -> None:
    spans = [
        OffsetRange(queue, QueueOffset(first), QueueOffset(first + size))
        for queue, (first, size) in zip(QUEUES, parts, strict=False)
        if size
    ]
    pieces = split(spans, least)
    assert len(pieces) >= min(least, sum(span.end - span.first for span in spans))
    covered = [(piece.queue, offset) for piece in pieces for offset in range(piece.first, piece.end)]
    assert covered == [(span.queue, offset) for span in spans for offset in range(span.first, span.end)]
    assert all(piece.first < piece.end for piece in pieces)


def ranges_of(sizes: list[int], first: int = 10) -> list[OffsetRange]:
    return [
        OffsetRange(MessageQueue("orders", "ab"[number % 2], number), QueueOffset(first), QueueOffset(first + size))
        for number, size in enumerate(sizes)
    ]


def load(task: tuple[OffsetRange, ...]) -> int:
    return sum(each.end - each.first for each in task)


range_sizes = st.lists(st.one_of(st.integers(1, 50), st.integers(1, 3 * MESSAGES_PER_TASK)), max_size=40)


@given(range_sizes, st.one_of(st.none(), st.integers(1, 50)))
def test_every_range_is_in_one_task_and_whole(sizes: list[int], least: int | None) -> None:
    ranges = ranges_of(sizes)
    tasks = pack(ranges, least)
    assert sorted(each for task in tasks for each in task) == sorted(ranges)
    assert all(list(task) == sorted(task, key=ranges.index) for task in tasks), "the order within a task is kept"
    assert [task[0] for task in tasks] == sorted((task[0] for task in tasks), key=ranges.index)
    assert pack(iter(ranges), least) == tasks, "a repeated batch has the same tasks"


@given(range_sizes, st.integers(1, 50))
def test_a_task_has_not_more_messages_than_another_and_its_smallest_range(sizes: list[int], least: int) -> None:
    tasks = pack(ranges_of(sizes), least)
    fewest = min(map(load, tasks), default=0)
    assert all(load(task) <= fewest + min(each.end - each.first for each in task) for task in tasks if len(task) > 1)


@given(range_sizes, st.integers(1, 50))
def test_there_are_as_many_tasks_as_asked_for_and_a_multiple_of_that_for_a_large_batch(
    sizes: list[int], least: int
) -> None:
    """With one task more than cores, all but one core would wait for it."""
    tasks = len(pack(ranges_of(sizes), least))
    assert tasks == len(sizes) or (tasks % least == 0 and tasks * MESSAGES_PER_TASK >= sum(sizes))
    assert tasks <= least or (tasks - least) * MESSAGES_PER_TASK < sum(sizes), "and not more than needed"


def test_each_queue_is_a_task_if_the_checkpoint_tells_no_number() -> None:
    ranges = ranges_of([1] * 40)
    assert pack(ranges, None) == tuple((each,) for each in ranges)


def test_a_queue_is_one_range_and_an_empty_one_none() -> None:
    planned = plan_batch(at(2, 5, 0), at(9, 5, 3), holds((0, 20), (0, 20), (0, 3)))
    assert planned.ranges == (
        OffsetRange(A, QueueOffset(2), QueueOffset(9)),
        OffsetRange(QUEUES[2], QueueOffset(0), QueueOffset(3)),
    )
    assert planned.losses == ()


def test_a_truncated_range_is_reported_and_its_rest_is_read() -> None:
    planned = plan_batch(at(2, 0), at(9, 4), holds((5, 20), (6, 20)))
    assert planned.ranges == (OffsetRange(A, QueueOffset(5), QueueOffset(9)),)
    assert len(planned.losses) == 2
    assert "messages 2 to 4 are gone" in planned.losses[0]


def test_an_end_beyond_the_queue_is_a_loss() -> None:
    planned = plan_batch(at(2), at(9), holds((0, 6)))
    assert planned.ranges == (OffsetRange(A, QueueOffset(2), QueueOffset(6)),)
    assert "created again" in planned.losses[0]


def test_a_deleted_queue_is_a_loss_only_if_the_batch_contains_it() -> None:
    assert plan_batch(at(2, 3), at(2, 7), {}).losses == (
        f"{B}: the queue or its topic no longer exists; the query was at offset 3",
    )


def test_a_topic_that_the_options_no_longer_select_is_not_called_deleted() -> None:
    """The topic exists, so an error that says it was deleted would mislead."""
    said = f"{A}: the checkpoint is at offset 2, but the options no longer select topic orders"
    for losses in (
        resume_points(at(2), {}, lambda _: False).losses,
        plan_batch(at(2), at(7), {}, lambda _: False).losses,
    ):
        assert len(losses) == 1
        assert losses[0].startswith(said)


def test_an_end_before_its_start_reads_nothing() -> None:
    """The loss was already reported when the position was set back."""
    planned = plan_batch(at(50), at(3), holds((0, 2)))
    assert (planned.ranges, planned.losses) == ((), ())


def test_a_new_queue_begins_at_its_first_message_and_loses_nothing() -> None:
    found = resume_points({}, holds((7, 9)))
    assert (found.offsets, found.losses) == (at(7), ())
    assert plan_batch({}, at(9), holds((7, 9))).ranges == (OffsetRange(A, QueueOffset(7), QueueOffset(9)),)


def test_a_recreated_queue_is_set_back_and_read_in_the_next_batch() -> None:
    found = resume_points(at(50, 4), holds((0, 5), (0, 5)))
    assert found.set_back == at(0)
    assert found.offsets == {B: 4}
    assert "created again" in found.losses[0]


@pytest.mark.parametrize(("before", "now", "found"), [(1, 1, 0), (1, 2, 1), (None, 2, 0), (1, None, 0)])
def test_a_queue_is_replaced_if_both_times_of_creation_are_known_and_differ(
    before: int | None, now: int | None, found: int
) -> None:
    times = [{} if time is None else {creation_key(A): time} for time in (before, now)]
    replaced = replaced_queues(at(4), times[0], times[1], holds((0, 50)))
    assert replaced == (at(0) if found else {})


def test_a_queue_of_which_nothing_was_read_is_not_replaced() -> None:
    key = creation_key(A)
    assert replaced_queues(at(0), {key: 1}, {key: 2}, holds((0, 50))) == {}


def test_the_time_of_creation_is_kept_in_the_offset_and_is_no_position() -> None:
    offset = to_json(at(4), {creation_key(A): 7})
    assert (from_json(offset), created_in(offset)) == (at(4), {creation_key(A): 7})
    assert created_in(to_json(at(4))) == {}
    assert parse_offsets("startingOffsets", json.dumps(offset)).given_for(A) == 4


def test_the_number_of_tasks_is_kept_in_the_offset_and_is_no_position() -> None:
    offset = to_json(at(4), None, 8)
    assert (from_json(offset), least_tasks_in(offset)) == (at(4), 8)
    assert least_tasks_in(to_json(at(4))) is None
    assert parse_offsets("startingOffsets", json.dumps(offset)).given_for(A) == 4


def test_a_batch_waits_for_enough_messages_up_to_the_delay() -> None:
    assert must_wait(5, 10, Millis(99), Millis(100))
    assert not must_wait(5, 10, Millis(100), Millis(100))
    assert not must_wait(10, 10, Millis(0), Millis(100))
    assert must_wait(0, 10, Millis(500), Millis(100))


@given(st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 2**62).map(QueueOffset)))
def test_positions_survive_json_and_equal_ones_have_equal_text(positions: Positions) -> None:
    assert from_json(to_json(positions)) == positions
    backwards = dict(reversed(positions.items()))
    assert str(to_json(backwards)) == str(to_json(positions))


@pytest.mark.parametrize("foreign", [{"offset": 5}, {"orders": {"x": 1}}, {"orders": {"a/0": None}}])
def test_a_foreign_checkpoint_is_refused(foreign: Any) -> None:
    with pytest.raises(UsageError, match="checkpoint"):
        from_json(foreign)
