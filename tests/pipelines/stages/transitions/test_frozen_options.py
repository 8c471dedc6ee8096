"""Options that must not change while state exists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.stages.transitions.pipeline_fixture import Pipeline, Sent

from lanemq.model.errors import InvalidOption


def version(event: Any) -> int:
    found: int = event.value["n"]
    return found


@pytest.mark.parametrize(
    ("before", "then"),
    [(None, "n"), ("n", None), ("n", "m"), ("n", version), (version, None), ("function", version)],
)
def test_another_sequence_than_that_of_the_state_is_refused(
    tmp_path: Path, before: str | Callable[..., int] | None, then: str | Callable[..., int] | None
) -> None:
    """With new numbers a key would wait for earlier ones; other numbers would look like repeats."""
    running = Pipeline(tmp_path, sequence=before)
    running.process(Sent(0, 0, "k", {"n": 1, "m": 1, "function": 1}))
    with pytest.raises(InvalidOption, match=r"sequence is .*was made with .*Keep sequence="):
        running.restart(sequence=then)
    running.restart(sequence=before)
    running.process(Sent(0, 1, "k", {"n": 2, "m": 2, "function": 2}))
    assert running.outputs("k") == [1, 2]


def test_another_sequence_function_is_accepted(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, sequence=version)
    running.restart(sequence=lambda event: event.value["n"])


@pytest.mark.parametrize(("before", "then"), [(1, 0), (0, 1), (None, 1)])
def test_another_first_number_is_refused(tmp_path: Path, before: int | None, then: int) -> None:
    running = Pipeline(tmp_path, sequence="n", first_number=before)
    with pytest.raises(InvalidOption, match=f"first_number={then}, but .* made with {before}"):
        running.restart(first_number=then)


def test_first_number_none_is_accepted_later(tmp_path: Path) -> None:
    """A key that waits for its first number then continues with its next message."""
    running = Pipeline(tmp_path, sequence="n", on_gap="hold")
    running.process(Sent(0, 0, "k", {"n": 7}))
    running.restart(first_number=None)
    running.process(Sent(0, 1, "k", {"n": 8}))
    assert running.outputs("k") == [7, 8]


def test_first_number_is_ignored_without_a_sequence(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, first_number=1)
    running.restart(first_number=5)


def test_a_checkpoint_without_recorded_sequence_records_it_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text(json.dumps({"shards": "queue"}))
    Pipeline(tmp_path, sequence="n")
    with pytest.raises(InvalidOption, match="sequence is none"):
        Pipeline(tmp_path)
