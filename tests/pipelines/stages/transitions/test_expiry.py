"""Expiry: which states and numbers are forgotten, and keys that come back."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import Crash, Pipeline, Sent

from lanemq.model.errors import InvalidOption
from lanemq.pipelines import DeadLetter, Event, Hold, Park, StateLimits
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.declare.ddl import parse_columns
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.ports import FileRows, Results, RowFile
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.pipelines.stages.transitions.operator_requests import request_redrive
from lanemq.pipelines.stages.transitions.shard import CACHE

HOUR = 3_600_000
LIMITS = StateLimits(expire_after=HOUR / 1000)


def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    if event.attempt <= event.value.get("fails", 0):
        raise ValueError("not yet")
    seen = 1 if state is None else state["seen"] + 1
    return {"seen": seen}, [{"key": event.key, "n": event.value["n"], "seen": seen}]


def pipeline(folder: Path, **options: Any) -> Pipeline:
    return Pipeline(folder, **({"step": step, "limits": LIMITS, "on_failure": Park()} | options))


def numbered(folder: Path, on_gap: str, **options: Any) -> Pipeline:
    return pipeline(folder, sequence="n", on_gap=on_gap, **options)


def sent(offset: int, key: str, n: int, hours: float, **more: object) -> Sent:
    return Sent(0, offset, key, {"n": n, **more}, stored=int(1_700_000_000_000 + hours * HOUR))


@pytest.mark.parametrize("on_gap", ["report", "hold", "fail"])
def test_a_numbered_key_that_comes_back_has_its_number_but_no_state(tmp_path: Path, on_gap: str) -> None:
    """Without its number it would wait for events that were applied long ago."""
    running = numbered(tmp_path, on_gap)
    running.process(*(sent(at, "k", at + 1, 0) for at in range(3)))
    assert running.process(sent(3, "other", 1, 50))["expired"] == 1
    CACHE._shards.clear()
    counts = running.process(sent(4, "k", 2, 51), sent(5, "k", 4, 51))
    assert (counts["repeats"], counts.get("gaps", 0), counts["lanes_held"]) == (1, 0, 0)
    assert [(row["n"], row["seen"]) for row in running.sink.rows() if row["key"] == "k"] == [
        (1, 1), (2, 2), (3, 3), (4, 1),
    ]  # fmt: skip


def test_missing_numbers_are_remembered_after_an_expiry(tmp_path: Path) -> None:
    running = numbered(tmp_path, "report")
    running.process(sent(0, "k", 1, 0), sent(1, "k", 3, 0))
    running.process(sent(2, "other", 1, 50))
    assert running.process(sent(3, "k", 2, 51))["late"] == 1


def test_numbers_are_forgotten_after_their_own_time(tmp_path: Path) -> None:
    limits = StateLimits(expire_after=HOUR / 1000, forget_numbers_after=HOUR / 100)
    running = numbered(tmp_path, "report", limits=limits)
    running.process(sent(0, "k", 1, 0))
    counts = running.process(sent(1, "other", 1, 5))
    assert (counts["expired"], counts["keys"], counts.get("forgotten_numbers", 0)) == (1, 2, 0)
    counts = running.process(sent(2, "other", 2, 11))
    assert (counts["forgotten_numbers"], counts["keys"]) == (1, 1)
    assert show(tmp_path, "k") == []


def test_numbers_of_ended_keys_are_forgotten_while_states_are_kept(tmp_path: Path) -> None:
    def ending(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return (None if event.key == "ended" else 1), []

    running = numbered(tmp_path, "report", step=ending, limits=StateLimits(forget_numbers_after=HOUR / 1000))
    running.process(sent(0, "ended", 1, 0), sent(1, "lives", 1, 0))
    counts = running.process(sent(2, "other", 1, 50))
    assert (counts["forgotten_numbers"], counts["keys"]) == (1, 2)


def test_a_skipped_first_event_leaves_its_number(tmp_path: Path) -> None:
    """Its key has no store time yet, and must not count as silent since 1970."""
    limits = StateLimits(expire_after=HOUR / 1000, forget_numbers_after=HOUR / 1000)
    running = numbered(tmp_path, "hold", on_failure=DeadLetter(skip=True), limits=limits)
    running.process(sent(0, "k", 1, 0, fails=1))
    running.process(sent(1, "k", 2, 0.1))
    assert running.outputs("k") == [2]


def test_a_late_message_keeps_a_state_from_expiring(tmp_path: Path) -> None:
    running = numbered(tmp_path, "report")
    running.process(sent(0, "k", 2, 0))
    assert running.process(sent(1, "k", 1, 0.9), sent(2, "other", 1, 1.1))["late"] == 1
    assert show(tmp_path, "k")[0].state == {"seen": 1}


@pytest.mark.parametrize("batches", [1, 2])
def test_an_event_finds_a_state_expired_wherever_batches_end(tmp_path: Path, batches: int) -> None:
    """The key was not swept since, but the event's store time shows that its state has expired."""
    events = [sent(0, "a", 1, 0), sent(1, "a", 2, 0.9), sent(2, "a", 3, 1.9), sent(3, "a", 4, 2)]
    running = pipeline(tmp_path)
    for part in [events] if batches == 1 else [events[:2], events[2:]]:
        running.process(*part)
    assert [(row["n"], row["seen"]) for row in running.sink.rows()] == [(1, 1), (2, 2), (3, 1), (4, 2)]


def test_a_state_stays_forgotten_if_the_event_after_it_fails(tmp_path: Path) -> None:
    running = pipeline(tmp_path, on_failure=Hold(retries=3, first=0.01))
    running.process(sent(0, "a", 1, 0), sent(1, "a", 2, 1.5, fails=2))
    assert [row["n"] for row in running.sink.rows()] == [1]
    for _ in range(2):
        running.clock.time += 100
        running.process_retry_pass()
    assert [(row["n"], row["seen"]) for row in running.sink.rows()] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("cut", [4, 2])
@pytest.mark.parametrize("bad", [{"n": 2, "fails": 9}, b"{"])
def test_a_failing_event_does_not_revive_a_state_wherever_batches_end(tmp_path: Path, bad: object, cut: int) -> None:
    running = pipeline(tmp_path, on_failure=DeadLetter(skip=True))
    failing = sent(2, "k", 2, 5)._replace(value=bad)
    events = [sent(0, "k", 1, 0), sent(1, "other", 1, 4), failing, sent(3, "k", 3, 5.1)]
    for part in (events[:cut], events[cut:]):
        if part:
            running.process(*part)
    mine = [(row["n"], row["seen"]) for row in running.sink.rows() if row["key"] == "k"]
    assert mine == [(1, 1), (3, 1)]


def test_a_late_number_does_not_revive_a_state(tmp_path: Path) -> None:
    running = numbered(tmp_path, "report")
    running.process(sent(0, "k", 2, 0), sent(1, "k", 1, 5), sent(2, "k", 3, 5.1))
    assert [(row["n"], row["seen"]) for row in running.sink.rows()] == [(2, 1), (3, 1)]


def test_a_late_number_does_not_expire_a_state_that_messages_wait_for(tmp_path: Path) -> None:
    running = numbered(tmp_path, "hold")
    running.process(sent(0, "k", 2, 0))
    request_redrive(tmp_path, "k")
    running.process_retry_pass()
    running.process(sent(1, "k", 4, 0.2), sent(2, "k", 1, 5), sent(3, "k", 3, 0.3))
    assert [(row["n"], row["seen"]) for row in running.sink.rows()] == [(2, 1), (3, 2), (4, 3)]


def test_an_event_that_waits_for_a_number_expires_no_state(tmp_path: Path) -> None:
    running = numbered(tmp_path, "hold")
    running.process(sent(0, "k", 1, 0), sent(1, "k", 3, 5), sent(2, "k", 2, 0.5))
    assert [(row["n"], row["seen"]) for row in running.sink.rows()] == [(1, 1), (2, 2), (3, 1)]


def test_the_same_states_expire_in_a_repeated_batch(tmp_path: Path) -> None:
    running = pipeline(tmp_path)
    running.process(sent(0, "a", 1, 0))

    def after_the_tasks(at: int | None) -> None:
        if at is None:
            raise Crash

    running.lose = after_the_tasks
    with pytest.raises(Crash):
        running.process(sent(1, "b", 2, 5))
    running.lose = lambda at: None
    running.restart()
    assert running.process(sent(1, "b", 2, 5), again=True)["expired"] == 1
    assert running.process(sent(2, "b", 3, 5.1)).get("expired", 0) == 0
    assert show(tmp_path, "a") == []


def test_held_keys_do_not_expire(tmp_path: Path) -> None:
    running = pipeline(tmp_path)
    running.process(sent(0, "a", 1, 0), sent(1, "a", 2, 0.1, fails=1))
    assert running.process(sent(2, "b", 3, 50)).get("expired", 0) == 0
    assert [lane.key for lane in list_parked(tmp_path)] == ["a"]
    request_redrive(tmp_path, "a")
    running.restart(step=lambda state, event: ({"seen": state["seen"] + 1}, []))
    running.process_retry_pass()
    assert show(tmp_path, "a")[0].state == {"seen": 2}


@pytest.mark.parametrize(
    "limits", [{"forget_numbers_after": 0.0}, {"expire_after": 0.005, "forget_numbers_after": 0.004}]
)
def test_numbers_are_not_forgotten_before_states(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=f"forget_numbers_after={limits['forget_numbers_after']}"):
        StateLimits(**limits)


def test_rows_of_timers_are_not_in_the_history(tmp_path: Path) -> None:
    """The checker would look for the message that they came from."""
    effects = EffectHistory(tmp_path / "history", "orders")
    schema = parse_columns("topic string, queue_id int, queue_offset long, key string")
    path = tmp_path / "rows.parquet"
    rows = [{"topic": "t", "queue_id": 0, "queue_offset": 5, "key": "a"}, dict.fromkeys(schema.names)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    effects.applied(Results(FileRows(schema, [RowFile("s", path, 2)])), Batch("q", 0, 1), 0)
    effects.close()
    written = "".join(file.read_text() for file in (tmp_path / "history").iterdir())
    assert written.count('"effect"') == 1
