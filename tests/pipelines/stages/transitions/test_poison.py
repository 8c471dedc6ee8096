"""Messages, rows, states and errors that cannot be stored affect only their key."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, Sent

from lanemq.pipelines import DeadLetter, Event, Hold, Park
from lanemq.pipelines.operate.parked import list_parked
from lanemq.pipelines.stages.transitions.rules import MAX_REASON_CHARACTERS, UnfitState, error_text
from lanemq.pipelines.stages.transitions.shard import WaitReason

HALF = "\ud800"
"""A lone surrogate: JSON may contain it, UTF-8 cannot."""


def echo(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
    return 1, [{"text": event.value}]


@pytest.mark.parametrize("texts", [["fine", HALF, "größer"], [HALF, "fine", "größer"]])
def test_a_row_with_a_lone_surrogate_fails_only_its_event(tmp_path: Path, texts: list[str]) -> None:
    pipeline = Pipeline(tmp_path, step=echo, outputs="text string", decode=json.loads, on_failure=Park())
    counts = pipeline.process(*(Sent(0, at, f"key-{at}", text) for at, text in enumerate(texts)))
    assert (counts["applied"], counts["parked"]) == (2, 1)
    assert [row["text"] for row in pipeline.sink.rows()] == ["fine", "größer"]
    assert "output 'text': '\\ud800' is not " in list_parked(tmp_path)[0].reason


def test_a_row_that_a_column_would_change_deep_inside_fails_only_its_event(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, step=echo, outputs="text array<struct<n: int>>", decode=json.loads, on_failure=Park())
    counts = pipeline.process(Sent(0, 0, "bad", [{"n": 1}, {"n": 1.5}]), Sent(0, 1, "good", [{"n": 1}]))
    assert (counts["applied"], counts["parked"]) == (1, 1)
    assert [row["text"] for row in pipeline.sink.rows()] == [[{"n": 1}]]
    assert "1.5 would become 1" in list_parked(tmp_path)[0].reason


@pytest.mark.parametrize("policy", [Hold(), Park(), DeadLetter(skip=True)])
@pytest.mark.parametrize("words", [f"bad: {HALF}", "with\0in it", None])
def test_an_error_whose_text_cannot_be_stored_affects_only_its_key(
    tmp_path: Path, policy: Any, words: str | None
) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            if words is None:
                raise RuntimeError("no words")
            return words

    def failing(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        if event.key == "bad":
            raise Odd
        return 1, []

    pipeline = Pipeline(tmp_path, step=failing, on_failure=policy)
    assert pipeline.process(Sent(0, 0, "bad", 1), Sent(0, 1, "good", 2))["applied"] == 1
    reasons = [row["reason"] for row in pipeline.sink.dead_rows()] + [lane.reason for lane in list_parked(tmp_path)]
    (reason,) = reasons
    assert reason.startswith("Odd: ")
    assert "\0" not in reason


def test_a_long_error_text_is_cut() -> None:
    assert len(error_text(ValueError("x" * 10_000_000))) < MAX_REASON_CHARACTERS + 10


def test_a_decoder_whose_error_cannot_be_printed_makes_poison(tmp_path: Path) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def decode(body: bytes) -> Any:
        raise Odd

    pipeline = Pipeline(tmp_path, decode=decode)
    assert pipeline.process(Sent(0, 0, "a", 1))["poison"] == 1


@pytest.mark.parametrize(
    "bad", [{datetime.date(2024, 1, 1): 2}, {"deep": [{datetime.date(2024, 1, 1): 2}]}, {WaitReason.GAP: 2}]
)
def test_a_state_whose_keys_change_when_read_back_is_refused(tmp_path: Path, bad: Any) -> None:
    """Each state is checked: a date as a key is read back as text, so counts would be split between both."""

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return (bad if event.key == "bad" else {"fine": 1}), []

    pipeline = Pipeline(tmp_path, step=step)
    with pytest.raises(UnfitState, match=r"key 'bad'"):
        pipeline.process(Sent(0, 0, "good", 0), Sent(0, 1, "bad", 1))


def test_state_keys_of_types_that_are_read_back_are_allowed(tmp_path: Path) -> None:
    kept = {1: "a", -2: "b", 1.5: "c", None: "d", b"x": "e", False: "f", (1, "x"): "g"}

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        assert state in (None, kept)
        return kept, []

    pipeline = Pipeline(tmp_path, step=step)
    for offset in range(2):
        assert pipeline.process(Sent(0, offset, "k", 0))["applied"] == 1


def test_a_state_that_cannot_be_stored_fails_only_its_event(tmp_path: Path) -> None:
    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return (HALF if event.value == 1 else "fine"), []

    pipeline = Pipeline(tmp_path, step=step, on_failure=DeadLetter(skip=True))
    for offset in range(3):
        pipeline.process(Sent(0, offset, "k", offset))
    assert pipeline.sink.dead_rows()[0]["queue_offset"] == 1
