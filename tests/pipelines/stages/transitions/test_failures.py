"""Keys that fail: held, parked, redriven, discarded or skipped, and the retry passes that try them."""

import re
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import Crash, Pipeline, Sent, counting

from lanemq.clock import wall_time
from lanemq.model.errors import LaneFrozen
from lanemq.pipelines import DeadLetter, Event, Hold, Park, StateLimits, StepContext
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.stages.transitions.operator_requests import request_discard, request_redrive
from lanemq.pipelines.stages.transitions.shard import WaitReason

HOLD = Hold(retries=2, first=0.1, max=1.0)


def test_a_failed_step_changes_neither_state_nor_rows_and_holds_its_key_only(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=HOLD)
    counts = pipeline.process(
        Sent(0, 0, "a", 0), Sent(0, 1, "a", {"n": 1, "fails": 2}), Sent(0, 2, "b", 2), Sent(0, 3, "a", 3)
    )
    assert (counts["applied"], counts["held"], counts["lanes_held"]) == (2, 2, 1)
    assert pipeline.outputs("a") == [0]
    assert show(tmp_path, "a")[0].state == {"seen": 1}


def test_a_held_key_is_retried_in_passes_and_then_continues(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=HOLD)
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 2}), Sent(0, 1, "a", 1))
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0.1
    assert pipeline.process_retry_pass() is None
    pipeline.clock.time += 100
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0
    pipeline.process_retry_pass()
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0.2
    pipeline.process(Sent(0, 2, "a", 2))
    pipeline.clock.time += 200
    counts = pipeline.process_retry_pass()
    assert counts is not None
    assert (counts["applied"], counts["lanes_held"]) == (3, 0)
    assert pipeline.outputs("a") == [0, 1, 2]
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None


def test_a_retry_pass_over_many_queues_has_as_many_tasks_as_can_run_at_once(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=HOLD)
    pipeline.process(*(Sent(queue, 0, f"key-{queue}", {"n": queue, "fails": 1}) for queue in range(5)))
    pipeline.clock.time += 100
    tasks: list[int | None] = []
    pipeline.lose = tasks.append
    assert (pipeline.process_retry_pass() or {})["applied"] == 5
    assert tasks == [0, 1, None]


def test_a_key_without_retries_left_is_parked_until_it_is_redriven(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Hold(retries=1, first=0.001))
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 9}), Sent(0, 1, "a", 1), Sent(0, 2, "b", 2))
    pipeline.clock.time += 1_000
    assert (pipeline.process_retry_pass() or {})["parked"] == 1
    pipeline.clock.time += 10_000_000
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None
    (parked,) = list_parked(tmp_path, held=False)
    assert (parked.key, parked.why, [each.offset for each in parked.messages]) == ("a", WaitReason.PARKED, [0, 1])
    pipeline.restart(step=forgiving)
    request_redrive(tmp_path, "a")
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0
    pipeline.process_retry_pass()
    pipeline.process(Sent(0, 3, "a", 3))
    assert pipeline.outputs("a") == [0, 1, 3]
    assert list_parked(tmp_path) == []
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None


def forgiving(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    value = event.value if isinstance(event.value, dict) else {"n": event.value}
    return state or {"seen": 0}, [{"key": event.key, "n": value["n"]}]


def test_a_request_survives_a_restart_and_a_retry_pass_that_crashed(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 9}), Sent(0, 1, "b", {"n": 1, "fails": 9}))
    request_redrive(tmp_path, everything=True)
    pipeline.restart(step=forgiving)

    def after_the_tasks(at: int | None) -> None:
        if at is None:
            raise Crash

    pipeline.lose = after_the_tasks
    with pytest.raises(Crash):
        pipeline.process_retry_pass()
    pipeline.lose = lambda at: None
    pipeline.restart()
    counts = pipeline.process_retry_pass()
    assert counts is not None
    assert (counts["redriven"], counts["applied"]) == (2, 2)
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None


def test_a_redriven_key_gets_all_its_retries_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Hold(retries=1, first=0.01))
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 9}))
    pipeline.clock.time += 10
    pipeline.process_retry_pass()
    assert [lane.why for lane in list_parked(tmp_path)] == [WaitReason.PARKED]
    request_redrive(tmp_path, "a")
    pipeline.process_retry_pass()
    assert [(lane.why, lane.failures) for lane in list_parked(tmp_path)] == [(WaitReason.HELD, 1)]


@pytest.mark.parametrize("jump", [1_000, -80])
def test_a_retry_pass_that_the_sink_has_is_not_repeated(tmp_path: Path, jump: int) -> None:
    """Rows of lanes that became due since would never reach it."""
    pipeline = Pipeline(tmp_path, on_failure=HOLD)
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 1}))
    pipeline.clock.time += 50
    pipeline.process(Sent(0, 1, "b", {"n": 1, "fails": 1}))
    pipeline.clock.time += 50

    def die(_: Batch) -> None:
        raise Crash

    pipeline.stage.finished = die  # type: ignore[method-assign]
    with pytest.raises(Crash):
        pipeline.process_retry_pass()
    pipeline.clock.time += jump
    pipeline.restart()
    pipeline.passes += 1
    pipeline.clock.time += 1_000
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0
    pipeline.process_retry_pass()
    assert (pipeline.outputs("a"), pipeline.outputs("b")) == ([0], [1])


def test_discarded_messages_become_dead_letters_and_the_key_continues(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 9}), Sent(0, 1, "a", 1))
    request_discard(tmp_path, "a")
    pipeline.process_retry_pass()
    pipeline.process(Sent(0, 2, "a", 2))
    assert pipeline.outputs("a") == [2]
    assert [(row["queue_offset"], row["reason"]) for row in pipeline.sink.dead_rows()] == [
        (0, "discarded by an operator"),
        (1, "discarded by an operator"),
    ]


def test_only_the_failed_message_can_be_discarded(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 9}), Sent(0, 1, "a", 1))
    request_discard(tmp_path, "a", first_only=True)
    pipeline.process_retry_pass()
    assert pipeline.outputs("a") == [1]
    assert [row["queue_offset"] for row in pipeline.sink.dead_rows()] == [0]


def test_a_request_for_a_key_that_is_not_held_does_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.process(Sent(0, 0, "a", 0))
    request_redrive(tmp_path, "a")
    assert pipeline.process_retry_pass() is None
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) is None


def test_a_key_continues_after_a_dead_letter(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=DeadLetter(skip=True))
    counts = pipeline.process(Sent(0, 0, "a", 0), Sent(0, 1, "a", {"n": 1, "fails": 1}), Sent(0, 2, "a", 2))
    assert (counts["dead_letters"], counts["lanes_held"]) == (1, 0)
    assert pipeline.outputs("a") == [0, 2]
    (row,) = pipeline.sink.dead_rows()
    assert (row["key"], row["queue_offset"]) == ("a", 1)
    assert re.fullmatch(r"ValueError: attempt 1 failed at transitions/\w+\.py:\d+ in \w+", row["reason"])


def test_a_reason_names_the_last_frames_of_the_step_without_values(tmp_path: Path) -> None:
    def price(event: Event) -> int:
        return {42: 10}[event.value["n"]]

    def step(state: Any, event: Event) -> Any:
        return state, [{"n": price(event)}]

    pipeline = Pipeline(tmp_path, step=step, on_failure=Park())
    pipeline.process(Sent(0, 0, "a", {"n": 43, "card": "4111"}))
    (lane,) = list_parked(tmp_path)
    here = r"transitions/test_failures\.py:\d+"
    assert re.fullmatch(rf"KeyError: 43 at {here} in price, called from {here} in step", lane.reason)


@pytest.mark.parametrize("policy", [HOLD, Park(), DeadLetter(skip=True)])
def test_poison_is_a_dead_letter_and_holds_its_key_unless_the_policy_skips_it(tmp_path: Path, policy: Any) -> None:
    pipeline = Pipeline(tmp_path, on_failure=policy)
    counts = pipeline.process(Sent(0, 0, "a", b"{"), Sent(0, 1, "a", 1), Sent(0, 2, "b", 2))
    assert (counts["poison"], counts["dead_letters"]) == (1, 1)
    assert pipeline.sink.dead_rows()[0]["value"] == b"{"
    assert pipeline.outputs("b") == [2]
    assert pipeline.outputs("a") == ([1] if isinstance(policy, DeadLetter) else [])


def test_poison_is_reported_once_however_often_it_is_tried(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=HOLD)
    pipeline.process(Sent(0, 0, "a", b"{"))
    for _ in range(3):
        pipeline.clock.time += 1_000
        pipeline.process_retry_pass()
    assert [lane.why for lane in list_parked(tmp_path)] == [WaitReason.PARKED]
    assert len(pipeline.sink.dead_rows()) == 1


def timed(state: int | None, event: Event, context: StepContext) -> Any:
    return counting(state, event)


@pytest.mark.parametrize(
    "options", [{}, {"on_failure": Park()}, {"on_failure": DeadLetter(skip=True)}, {"step": timed}]
)
def test_a_message_without_a_key_is_a_dead_letter(tmp_path: Path, options: Any) -> None:
    """All of a queue would share one state, and a policy that waits would hold them for ever."""
    pipeline = Pipeline(tmp_path, **options)
    counts = pipeline.process(Sent(0, 0, None, 1), Sent(0, 1, "a", 2), Sent(0, 2, None, 3), Sent(1, 0, None, 4))
    assert [(row["key"], row["n"]) for row in pipeline.sink.rows()] == [("a", 2)]
    dead = pipeline.sink.dead_rows()
    assert sorted((row["queue_id"], row["queue_offset"], row["key"]) for row in dead) == [
        (0, 0, None), (0, 2, None), (1, 0, None),
    ]  # fmt: skip
    assert all(row["reason"].startswith("it has no key") and not row["waits"] for row in dead)
    assert not list_parked(tmp_path)
    assert (counts["poison"], counts["applied"]) == (3, 1)


def test_a_full_lane_fails_the_batch_before_anything_is_lost(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, on_failure=Park(), limits=StateLimits(max_waiting_per_lane=2))
    full = [Sent(0, 0, "a", {"n": 0, "fails": 1}), Sent(0, 1, "a", 1)]
    pipeline.process(*full)
    with pytest.raises(LaneFrozen, match="max_waiting_per_lane"):
        pipeline.process(Sent(0, 2, "a", 2))
    request_discard(tmp_path, "a")
    pipeline.restart()
    pipeline.batch -= 1
    assert pipeline.stage.due(wall_time(pipeline.clock.wall())) == 0
    pipeline.process_retry_pass()
    pipeline.batch += 1
    pipeline.process(Sent(0, 2, "a", 2), again=True)
    assert pipeline.outputs("a") == [2]


def test_messages_for_a_full_lane_can_become_dead_letters(tmp_path: Path) -> None:
    limits = StateLimits(max_waiting_per_lane=1, when_lane_is_full="dead_letter")
    pipeline = Pipeline(tmp_path, on_failure=Park(), limits=limits)
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 1}), Sent(0, 1, "a", 1))
    assert [row["queue_offset"] for row in pipeline.sink.dead_rows()] == [1]


def test_a_held_lane_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    """What waits is written with every batch, and a few large messages are as much as many small ones."""
    pipeline = Pipeline(tmp_path, on_failure=Park(), limits=StateLimits(max_waiting_bytes_per_lane=50))
    pipeline.process(Sent(0, 0, "a", {"n": 0, "fails": 1}), Sent(0, 1, "a", b"x" * 20))
    with pytest.raises(LaneFrozen, match=r"2 messages of key .* StateLimits\(max_waiting_bytes_per_lane=50\)"):
        pipeline.process(Sent(0, 2, "a", b"x" * 20))


class Odd(BaseException):
    """Not an `Exception`, as those of some libraries are not."""


@pytest.mark.parametrize("error", [SystemExit(3), CancelledError(), Odd("own")])
def test_a_step_that_would_end_its_process_holds_its_key_only(tmp_path: Path, error: BaseException) -> None:
    def step(state: int | None, event: Event) -> tuple[int, list[dict[str, Any]]]:
        if event.key == "a":
            raise error
        return counting(state, event)  # type: ignore[return-value]

    pipeline = Pipeline(tmp_path, step=step, on_failure=HOLD)
    counts = pipeline.process(Sent(0, 0, "a", 0), Sent(0, 1, "b", 1))
    assert (counts["applied"], counts["held"]) == (1, 1)
    pipeline.clock.time += 100
    assert (pipeline.process_retry_pass() or {})["lanes_held"] == 1
    assert type(error).__name__ in next(iter(list_parked(tmp_path, held=True))).reason


def test_an_interrupt_ends_the_batch(tmp_path: Path) -> None:
    def step(state: int | None, event: Event) -> tuple[int, list[dict[str, Any]]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pipeline(tmp_path, step=step, on_failure=HOLD).process(Sent(0, 0, "a", 0))
