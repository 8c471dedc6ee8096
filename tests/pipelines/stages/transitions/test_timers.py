"""Timers: when `on_timer` is called, in which order with events, after failures, repetitions and restarts."""

import re
import tempfile
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipelines.stages.transitions.pipeline_fixture import OUTPUTS, Crash, Pipeline, Sent, counting

from lanemq.clock import wall_time
from lanemq.model.errors import InvalidOption
from lanemq.pipelines import (
    DeadLetter,
    Event,
    EventTime,
    Hold,
    Park,
    StateLimits,
    StepContext,
    Timer,
    Transitions,
)
from lanemq.pipelines.operate.dead_letters import DeadLetterState, _message
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.stages.transitions.lanes import LaneTable
from lanemq.pipelines.stages.transitions.operator_requests import request_redrive
from lanemq.pipelines.stages.transitions.shard import CACHE
from lanemq.pipelines.stages.transitions.timers import PendingTimer, TimerIndex, due_of, first_due, takes_context

START = 1_700_000_000_000
TOO_EARLY = re.compile(r"timer 't': ValueError: too early at transitions/test_timers\.py:\d+ in on_timer")
Rows = list[dict[str, object]]


def step(state: Any, event: Event, context: StepContext) -> tuple[Any, Rows]:
    """Counts events. A value may set a timer (`after`, `clock`), cancel it, fail, or end its key."""
    value, seen = event.value, (0 if state is None else state["seen"]) + 1
    if event.attempt <= value.get("fails", 0):
        raise ValueError("not yet")
    if value.get("cancel"):
        context.cancel_timer("t")
    if "after" in value:
        context.set_timer("t", after=value["after"], clock=value.get("clock", "event"))
    rows: Rows = [{"key": event.key, "n": value["n"], "seen": seen}]
    return (None if value.get("end") else {"seen": seen, "fails": value.get("timer_fails", 0)}), rows


def on_timer(state: Any, timer: Timer) -> tuple[Any, Rows]:
    """Its rows have the seconds at which the timer was due, negative."""
    if state is not None and timer.attempt <= state["fails"]:
        raise ValueError("too early")
    return state, [{"key": timer.key, "n": -((timer.due_ms - START) // 1_000), "seen": timer.attempt}]


def pipeline(folder: Path, **options: Any) -> Pipeline:
    running = Pipeline(folder, **({"step": step, "on_timer": on_timer, "on_failure": Park()} | options))
    running.clock.time = START
    return running


def sent(offset: int, key: str, n: int, seconds: float, queue: int = 0, **more: object) -> Sent:
    return Sent(queue, offset, key, {"n": n, **more}, stored=int(START + seconds * 1_000))


def due(running: Pipeline) -> float | None:
    return running.stage.due(wall_time(running.clock.time))


def pass_after(running: Pipeline, seconds: float) -> None:
    running.clock.time += int(seconds * 1_000)
    running.process_retry_pass()


# The order of calls.


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3)])
def test_a_timer_in_event_time_is_called_between_the_same_events_wherever_batches_end(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    events = [sent(0, "a", 1, 0, after=10), sent(1, "b", 2, 9), sent(2, "a", 3, 9), sent(3, "b", 4, 30)]
    running = pipeline(tmp_path)
    for begin, end in zip((0, *cuts), (*cuts, 4), strict=True):
        running.process(*events[begin:end])
    running.process(sent(4, "a", 5, 31))
    assert running.outputs("a") == [1, 3, -10, 5]


def test_a_timer_that_is_due_exactly_at_an_events_time_is_called_before_it(tmp_path: Path) -> None:
    running = pipeline(tmp_path)
    running.process(sent(0, "a", 1, 0, after=10), sent(1, "a", 2, 10))
    assert running.outputs("a") == [1, -10, 2]


def test_a_silent_key_is_called_when_the_time_of_its_queue_has_come(tmp_path: Path) -> None:
    """And not by the time of another queue, whose messages say nothing about this one."""
    running = pipeline(tmp_path)
    running.process(sent(0, "a", 1, 0, after=10))
    running.process(sent(0, "other", 2, 50, queue=1))
    assert running.outputs("a") == [1]
    assert running.process(sent(1, "b", 3, 10))["timers"] == 1
    assert running.outputs("a") == [1, -10]


def test_a_timer_in_processing_time_is_called_without_any_message(tmp_path: Path) -> None:
    running = pipeline(tmp_path, timers_every=0.5)
    running.process(sent(0, "a", 1, 0, after=10, clock="processing"), sent(1, "b", 2, 99))
    assert due(running) == 10
    assert running.process_retry_pass() is None
    pass_after(running, 10)
    assert running.outputs("a") == [1, -10]
    assert due(running) is None


def test_retry_passes_for_timers_keep_their_distance(tmp_path: Path) -> None:
    running = pipeline(tmp_path, timers_every=5.0)
    running.process(sent(0, "a", 1, 0, after=1, clock="processing"))
    assert due(running) == 5


def test_a_timer_is_replaced_cancelled_and_removed_with_its_key(tmp_path: Path) -> None:
    running = pipeline(tmp_path)
    running.process(
        sent(0, "replaced", 1, 0, after=5), sent(1, "replaced", 2, 1, after=20),
        sent(2, "cancelled", 3, 1, after=5), sent(3, "cancelled", 4, 1, cancel=True),
        sent(4, "ended", 5, 1, after=5), sent(5, "ended", 6, 1, end=True),
        sent(6, "only-a-timer", 7, 1, after=5, end=True),
    )  # fmt: skip
    running.process(sent(7, "other", 8, 99))
    called = {row["key"]: row["n"] for row in running.sink.rows() if row["n"] < 0}
    assert called == {"replaced": -21, "only-a-timer": -6}
    assert {lane for lane in ("ended", "only-a-timer") if show(tmp_path, lane)} == set()


def test_a_handler_that_sets_its_timer_again_is_called_for_every_span(tmp_path: Path) -> None:
    def again(state: Any, timer: Timer, context: StepContext) -> tuple[Any, Rows]:
        context.set_timer(timer.name, after=10)
        return on_timer(state, timer)

    running = pipeline(tmp_path, on_timer=again)
    running.process(sent(0, "a", 1, 0, after=10), sent(1, "a", 2, 35))
    assert running.outputs("a") == [1, -10, -20, -30, 2]


def test_a_handler_cannot_set_a_timer_that_never_lets_the_batch_end(tmp_path: Path) -> None:
    def loops(state: Any, timer: Timer, context: StepContext) -> tuple[Any, Rows]:
        context.set_timer(timer.name, at=timer.due_at)
        return state, []

    running = pipeline(tmp_path, on_timer=loops)
    running.process(sent(0, "a", 1, 0, after=10), sent(1, "b", 2, 35))
    assert "without end" in list_parked(tmp_path)[0].reason


def test_a_key_with_a_timer_does_not_expire(tmp_path: Path) -> None:
    running = pipeline(tmp_path, limits=StateLimits(expire_after=10))
    running.process(sent(0, "a", 1, 0, after=100), sent(1, "b", 2, 0))
    running.process(sent(2, "a", 3, 50))
    assert [row["seen"] for row in running.sink.rows() if row["key"] == "a"] == [1, 2]
    running.process(sent(3, "c", 4, 60))
    assert (bool(show(tmp_path, "a")), bool(show(tmp_path, "b"))) == (True, False)


def test_event_time_is_a_field_and_lateness_lets_events_be_out_of_order(tmp_path: Path) -> None:
    """One clock far in the future moves event time only to its store time."""
    running = pipeline(tmp_path, event_time=EventTime(of="at", lateness=10))
    times = [START, START + 15_000, START + 9_000, 4_000_000_000_000, START + 21_000]
    events = [sent(at, "a", at + 1, 30 if at == 3 else 29, at=time) for at, time in enumerate(times)]
    running.process(events[0]._replace(value={"n": 1, "at": START, "after": 8}), *events[1:])
    assert running.outputs("a") == [1, 2, 3, -8, 4, 5]
    failing = sent(5, "b", 6, 40, at="yesterday")
    running.process(failing)
    assert "ValueError" in list_parked(tmp_path)[0].reason


# Repetition, restarts.


def lane_state_of(running: Pipeline, key: str) -> tuple[Timer, ...]:
    return show(running.folder, key)[0].timers


def test_timers_survive_restarts_and_snapshots(tmp_path: Path) -> None:
    running = pipeline(tmp_path, limits=StateLimits(snapshot_every=2))
    running.process(*(sent(at, f"key-{at}", at, 0, after=10 + at) for at in range(5)))
    for at in range(5, 9):
        CACHE._shards.clear()
        running.restart()
        running.process(sent(at, "other", at, at))
    running.process(sent(9, "other", 9, 12))
    assert sorted(row["n"] for row in running.sink.rows() if row["n"] < 0) == [-12, -11, -10]
    assert [(timer.name, timer.clock) for timer in lane_state_of(running, "key-4")] == [("t", "event")]


def test_a_due_key_is_found_without_reading_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = pipeline(tmp_path)
    running.process(*(sent(at, f"key-{at}", at, 0, after=at, clock="processing") for at in range(50)))
    read: list[str] = []
    restore = LaneTable.restore
    monkeypatch.setattr(LaneTable, "restore", lambda self, name: read.append(name) or restore(self, name))
    CACHE._shards.clear()
    pass_after(running, 2)
    assert read == ["key-0", "key-1", "key-2"]


# Failures.


def test_a_handler_that_fails_holds_its_key_and_is_tried_again_first(tmp_path: Path) -> None:
    running = pipeline(tmp_path, on_failure=Hold(retries=3, first=1, max=1))
    running.process(sent(0, "a", 1, 0, after=10, timer_fails=2), sent(1, "b", 2, 10))
    running.process(sent(2, "a", 3, 11), sent(3, "b", 4, 11))
    assert (running.outputs("a"), running.outputs("b")) == ([1], [2, 4])
    assert TOO_EARLY.fullmatch(list_parked(tmp_path)[0].reason)
    for _ in range(2):
        pass_after(running, 2)
    assert running.outputs("a") == [1, -10, 3]
    assert [row["seen"] for row in running.sink.rows() if row["n"] == -10] == [3]


def test_the_timers_of_a_parked_key_wait_and_are_called_in_their_place(tmp_path: Path) -> None:
    running = pipeline(tmp_path)
    running.process(sent(0, "a", 1, 0, after=10), sent(1, "a", 2, 5, fails=1), sent(2, "a", 3, 8))
    running.process(sent(3, "b", 4, 60), sent(4, "a", 5, 60))
    assert (running.outputs("a"), due(running)) == ([1], None)
    running.restart(step=partial(_lenient, None))
    request_redrive(tmp_path, "a")
    running.process_retry_pass()
    assert running.outputs("a") == [1, 2, 3, -10, 5]


def _lenient(_: object, state: Any, event: Event, context: StepContext) -> tuple[Any, Rows]:
    event.value.pop("fails", None)
    return step(state, event, context)


def test_a_timer_that_is_given_up_is_a_dead_letter_and_its_key_continues(tmp_path: Path) -> None:
    running = pipeline(tmp_path, on_failure=DeadLetter(skip=True))
    running.process(sent(0, "a", 1, 0, after=10, timer_fails=9), sent(1, "a", 2, 11))
    assert running.outputs("a") == [1, 2]
    (row,) = running.sink.dead_rows()
    assert (row["key"], row["value"]) == ("a", None)
    assert TOO_EARLY.fullmatch(row["reason"])
    record = _message(row, set(), set())
    assert (record.state, record.id) == (DeadLetterState.TIMER, "a/timer t")


def test_a_step_that_fails_sets_no_timer(tmp_path: Path) -> None:
    def fails_late(state: Any, event: Event, context: StepContext) -> tuple[Any, Rows]:
        context.set_timer("t", after=1)
        raise ValueError

    running = pipeline(tmp_path, step=fails_late, on_failure=DeadLetter(skip=True))
    running.process(sent(0, "a", 1, 0), sent(1, "b", 2, 60))
    assert running.sink.rows() == []


# Random histories against a model without batches, failures and crashes.

random_events = st.lists(
    st.tuples(
        st.integers(0, 2),  # key
        st.integers(0, 6),  # seconds since the event before
        st.sampled_from([None, 1, 3, 8, 20]),  # sets its timer after so many seconds
        st.sampled_from([0, 0, 0, 1, 2]),  # how often the event fails
        st.sampled_from([0, 0, 1]),  # how often its timer fails
        st.sampled_from(["", "", "batch", "crash", "pass"]),  # what comes after it
    ),
    min_size=1,
    max_size=14,
)


def modelled(events: list[Sent]) -> dict[str, list[int]]:
    """What each key is given: its events, and its timer before the first event of the key that is not before it."""
    rows: dict[str, list[int]] = defaultdict(list)
    timers: dict[str, int] = {}
    for event in events:
        key, value = str(event.key), event.value
        assert isinstance(value, dict)
        if timers.get(key, event.stored + 1) <= event.stored:
            rows[key].append(-((timers.pop(key) - START) // 1_000))
        rows[key].append(value["n"])
        if "after" in value:
            timers[key] = event.stored + value["after"] * 1_000
    return rows


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_events)
def test_keys_get_the_same_calls_wherever_batches_end_and_whatever_fails(history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage_folder = Path(folder) / "stage"
        stage_folder.mkdir()
        running = pipeline(stage_folder, on_failure=Hold(retries=4, first=0.01, max=0.01))
        events: list[Sent] = []
        begin, time = 0, 0
        for key, later, after, fails, timer_fails, then in history:
            time += later
            more = {} if after is None else {"after": after}
            n = len(events)
            events.append(sent(n, f"key-{key}", n + 1, time, fails=fails, timer_fails=timer_fails, **more))
            if then:
                finish(running, events[begin:], crash=then == "crash")
                begin = len(events)
            if then == "pass":
                pass_after(running, 0.1)
        events += [sent(len(events) + at, f"key-{at}", 1_000, time + 60) for at in range(3)]
        finish(running, events[begin:])
        for _ in range(30):
            pass_after(running, 0.1)
        expected = modelled(events)
        assert {key: running.outputs(key) for key in expected} == expected
        assert due(running) is None


def finish(running: Pipeline, events: list[Sent], *, crash: bool = False) -> None:
    running.batch, running.passes = running.batch + 1, 0

    def after_the_tasks(at: int | None) -> None:
        if at is None:
            raise Crash

    if crash:
        running.lose = after_the_tasks
        with pytest.raises(Crash):
            running.process(*events, again=True)
        running.lose = lambda at: None
        running.clock.time += 5_000
        running.restart()
    running.process(*events, again=True)


# Parts.


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, *range(6)]), st.sampled_from([None, *range(6)]))))
def test_the_index_finds_the_key_that_is_due_first(changes: list[tuple[int, int | None, int | None]]) -> None:
    index, expected = TimerIndex(), {}
    for key, event, processing in changes:
        index.set(str(key), (event, processing))
        expected[str(key)] = (event, processing)
        events = [due[0] for due in expected.values() if due[0] is not None]
        assert index.next_due("event") == min(events, default=None)
        for watermark, wall in ((0, 0), (3, 1), (9, 9)):
            keys = {k for k, (e, p) in expected.items() if (e or 0 if e is not None else 99) <= watermark
                    or (p if p is not None else 99) <= wall}  # fmt: skip
            found = index.due_key(watermark, wall)
            assert found in keys if keys else found is None


def test_the_index_does_not_grow_with_timers_that_are_set_again() -> None:
    index = TimerIndex()
    for at in range(10_000):
        index.set("a", (at, None))
    assert len(index._heaps[0]) < 200


def test_the_earliest_due_timer_is_called_first() -> None:
    timers = [PendingTimer(5, "b", "event"), PendingTimer(3, "a", "processing"), PendingTimer(4, "c", "event")]
    assert first_due(timers, 5, 5) == timers[1]
    assert first_due(timers, 5, 2) == timers[2]
    assert first_due(timers, 3, 2) is None
    assert due_of(timers) == (4, 3)


def test_a_context_is_given_to_functions_that_ask_for_it() -> None:
    assert takes_context(lambda state, event, context: None)
    assert takes_context(lambda state, event, context=None: None)
    assert takes_context(lambda state, event, c: None)
    assert not takes_context(lambda state, event, table={}: None)
    assert not takes_context(lambda state, event: None)
    assert not takes_context(print)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "at= or after="),
        ({"at": NOW, "after": 1}, "at= or after="),
        ({"at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"after": 1, "clock": "lunar"}, "lunar"),
        ({"after": 1e12}, "9999"),
    ],
)
def test_timers_without_meaning_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        StepContext(0, 0, 0).set_timer("t", **options)


def test_a_context_says_what_time_it_is() -> None:
    context = StepContext(2_000, 1_000, 1_500)
    assert (context.now - context.event_time, context.is_late) == (timedelta(seconds=1), True)
    assert StepContext(0, 0, 0).watermark is None
    context.set_timer("t", after=timedelta(seconds=9), clock="processing")
    assert context.timers == {"t": wall_time(11_000)}
    assert context.cancel_timer("t")
    assert not context.cancel_timer("t")
    with pytest.raises(InvalidOption, match="on_timer"):
        StepContext(0, 0, 0, allowed=False).set_timer("t", after=1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"step": counting, "on_timer": on_timer}, "never called"),
        ({"step": step, "on_timer": "later"}, "on_timer='later'"),
        ({"step": counting, "event_time": EventTime()}, "no effect"),
        ({"step": step, "on_timer": on_timer, "timers_every": 0}, "timers_every=0"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        Transitions(outputs=OUTPUTS, **options)


def test_state_with_timers_is_not_opened_without_on_timer(tmp_path: Path) -> None:
    running = pipeline(tmp_path)
    running.process(sent(0, "a", 1, 0, after=10))
    with pytest.raises(InvalidOption, match=r"1 keys .+ have timers"):
        running.restart(on_timer=None)
