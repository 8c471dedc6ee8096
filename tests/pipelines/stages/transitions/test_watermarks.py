"""Event time over several queues: the minimum, idle queues, events that are late, and repetitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, arrow
from tests.pipelines.stages.transitions.test_timers import START, due, on_timer, sent, step

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import EventTime, Park
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.stages.transitions.event_time import IdleQueues, QueueTime, common_watermark
from lanemq.pipelines.stages.transitions.machine import ShardMachine
from lanemq.pipelines.stages.transitions.messages import queue_slices
from lanemq.pipelines.stages.transitions.shard import Shard
from lanemq.pipelines.stages.transitions.stage import Transitions

QUEUES = ("orders/broker-a/0", "orders/broker-a/1")


class Ends:
    """What the brokers say: by queue the position, or None if there is more to read."""

    def __init__(self, *positions: int | None) -> None:
        self.positions = dict(zip(QUEUES, positions, strict=True))

    def __call__(self) -> dict[str, int | None]:
        return self.positions


def pipeline(folder: Path, ends: Ends, **options: Any) -> Pipeline:
    given = {"step": step, "on_timer": on_timer, "on_failure": Park(), "event_time": EventTime(idle_after=60)}
    running = Pipeline(folder, **(given | options))
    running.clock.time = START
    running.stage.accept_queue_ends(ends)
    return running


def wait(running: Pipeline, seconds: float) -> None:
    """Lets time pass as a runner does, which asks often what is due, and does it."""
    end = running.clock.time + int(seconds * 1_000)
    while running.clock.time < end:
        running.clock.time += 5_000
        if due(running) == 0:
            running.process_retry_pass()


# Rules.


def times(*newest: int, read_at: int = 0) -> dict[str, QueueTime]:
    return {name: QueueTime(time, read_at) for name, time in zip("abc", newest, strict=False)}


def test_the_slowest_queue_that_is_not_idle_counts() -> None:
    assert common_watermark(times(50, 20, 90), "abc", (), 5, 0) == 15
    assert common_watermark(times(50, 20, 90), "abc", "b", 5, 0) == 45


def test_a_queue_that_brought_nothing_yet_holds_event_time_unless_it_is_idle() -> None:
    """Its messages may be older than all others."""
    assert common_watermark(times(50), "ab", (), 0, 0) == 0
    assert common_watermark(times(50), "ab", "b", 0, 0) == 50


def test_event_time_goes_on_with_the_wall_clock_if_all_queues_are_idle() -> None:
    assert common_watermark(times(50, 20, read_at=1_000), "ab", "ab", 5, 1_300) == 345
    assert common_watermark(times(50, 20, read_at=1_000), "ab", "ab", 5, 900) == 45
    assert common_watermark({}, "ab", "ab", 0, 900) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([None, 1, 2])), max_size=20))
def test_a_queue_is_idle_after_it_was_at_one_position_for_long_enough(seen: list[tuple[int, int | None]]) -> None:
    found, now, since = IdleQueues(30), 0, None
    for later, position in seen:
        now += later
        if position is None:
            since = None
        elif since is None or since[1] != position:
            since = (now, position)
        found.observe({"a": position, "b": None}, now)
        assert found.idle == ({"a"} if since is not None and now - since[0] >= 30 else set())


# The stage.


def test_an_idle_queue_goes_on_with_the_time_of_the_others(tmp_path: Path) -> None:
    running = pipeline(tmp_path, Ends(1, None))
    running.process(sent(0, "a", 1, 0, after=100), sent(0, "b", 2, 0, queue=1))
    running.process(sent(1, "b", 3, 300, queue=1))
    wait(running, 30)
    assert running.outputs("a") == [1]
    wait(running, 60)
    assert running.outputs("a") == [1, -100]
    assert due(running) is None


def test_keys_in_several_queues_go_by_what_all_queues_have_read(tmp_path: Path) -> None:
    """A queue that is ahead says nothing about events that another one still holds."""
    rules = replace(pipeline(tmp_path, Ends(1, 1)).stage._options, by_queue=False).rules()
    shard, rows = Shard(), []
    for watermark, offset in ((0, 0), (START + 20_000, 2)):
        machine = ShardMachine(shard, rules, START, watermark)
        ((_, slice_),) = queue_slices(arrow([sent(offset, "a", 1, 0, after=10), sent(offset + 1, "a", 2, 50)]))
        machine.take(slice_)
        machine.call_due_timers(100)
        rows.append([row[1] for row in machine.table.outputs])
        machine.finish()
    assert rows == [[1, 2], [-10, 1, -10, 2]]


def test_without_the_idle_rule_event_time_stands_still(tmp_path: Path) -> None:
    """Negative control of the test above."""
    running = pipeline(tmp_path, Ends(1, None), event_time=EventTime(idle_after=None))
    running.process(sent(0, "a", 1, 0, after=100), sent(0, "b", 2, 0, queue=1))
    running.process(sent(1, "b", 3, 300, queue=1))
    wait(running, 600)
    assert running.outputs("a") == [1]


def test_the_last_timers_of_a_topic_that_fell_silent_are_called(tmp_path: Path) -> None:
    running = pipeline(tmp_path, Ends(1, 1))
    running.process(sent(0, "a", 1, 0, after=100), sent(0, "b", 2, 0, queue=1))
    wait(running, 90)
    assert running.outputs("a") == [1]
    wait(running, 20)
    assert running.outputs("a") == [1, -100]


def test_a_queue_with_messages_to_read_is_not_idle_after_a_restart(tmp_path: Path) -> None:
    """Its messages came while the pipeline was down. They would all be late."""
    ends = Ends(1, 1)
    running = pipeline(tmp_path, ends)
    running.process(sent(0, "a", 1, 0, after=100), sent(0, "b", 2, 0, queue=1))
    running.clock.time += 36_000_000
    ends.positions = dict.fromkeys(QUEUES)
    running.restart()
    running.stage.accept_queue_ends(ends)
    wait(running, 120)
    running.process(sent(1, "a", 3, 50))
    assert running.outputs("a") == [1, 3]


def test_a_queue_that_brought_a_message_is_not_idle_any_more(tmp_path: Path) -> None:
    ends = Ends(1, None)
    running = pipeline(tmp_path, ends)
    running.process(sent(0, "a", 1, 0, after=500), sent(0, "b", 2, 300, queue=1))
    wait(running, 70)
    ends.positions[QUEUES[0]] = 2
    running.process(sent(1, "a", 3, 10), sent(1, "b", 4, 900, queue=1))
    wait(running, 20)
    assert running.outputs("a") == [1, 3]


# Late events.


def test_a_late_event_is_delivered_and_marked(tmp_path: Path) -> None:
    def marks(state: Any, event: Any, context: Any) -> tuple[Any, list[dict[str, object]]]:
        return 1, [{"key": event.key, "n": event.value["n"], "seen": int(context.is_late)}]

    running = pipeline(tmp_path, Ends(None, None), step=marks, event_time=EventTime(of="at", lateness=10))
    events = [sent(at, "a", at, 90, at=START + 1_000 * time) for at, time in enumerate([0, 60, 50, 49])]
    running.process(*events)
    assert [row["seen"] for row in running.sink.rows()] == [0, 0, 0, 1]


def test_a_late_event_is_a_dead_letter_if_asked_and_its_key_continues(tmp_path: Path) -> None:
    late = EventTime(of="at", on_late="dead_letter")
    running = pipeline(tmp_path, Ends(None, None), event_time=late, sequence="n", on_gap="hold")
    events = [sent(at, "a", at + 1, 90, at=START + 1_000 * time) for at, time in enumerate([0, 60, 50, 60])]
    assert running.process(*events)["late"] == 1
    (row,) = running.sink.dead_rows()
    assert (row["queue_offset"], row["reason"].startswith("came late: its time is")) == (2, True)
    assert (running.outputs("a"), list_parked(tmp_path)) == ([1, 2, 4], [])
    assert show(tmp_path, "a")[0].number == 4


@pytest.mark.parametrize(
    "options", [{"lateness": -1}, {"idle_after": 0}, {"on_late": "drop"}, {"of": 7}], ids=lambda each: next(iter(each))
)
def test_event_times_without_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        EventTime(**options)


def test_a_stage_without_context_asks_for_no_ends(tmp_path: Path) -> None:
    def refuses() -> dict[str, int | None]:
        raise AssertionError("asked")

    running = Pipeline(tmp_path)
    assert isinstance(running.stage, Transitions)
    running.stage.accept_queue_ends(refuses)
    running.process(sent(0, "a", 1, 0))
    assert due(running) is None
