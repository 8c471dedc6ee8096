"""Options that may not change while the state lives."""

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
def test_events_are_not_numbered_otherwise_than_the_state_was_made_with(
    tmp_path: Path, before: str | Callable[..., int] | None, then: str | Callable[..., int] | None
) -> None:
    """Numbers from here on would make a key wait for those before, other numbers would look like repeats."""
    running = Pipeline(tmp_path, sequence=before)
    running.run(Sent(0, 0, "k", {"n": 1, "m": 1, "function": 1}))
    with pytest.raises(InvalidOption, match=r"sequence is .*was made with .*Keep sequence="):
        running.restart(sequence=then)
    running.restart(sequence=before)
    running.run(Sent(0, 1, "k", {"n": 2, "m": 2, "function": 2}))
    assert running.outputs("k") == [1, 2]


def test_a_changed_function_is_a_function_still(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, sequence=version)
    running.restart(sequence=lambda event: event.value["n"])


@pytest.mark.parametrize(("before", "then"), [(1, 0), (0, 1), (None, 1)])
def test_keys_do_not_begin_with_another_number_than_before(tmp_path: Path, before: int | None, then: int) -> None:
    running = Pipeline(tmp_path, sequence="n", first_number=before)
    with pytest.raises(InvalidOption, match=f"first_number={then}, but .* made with {before}"):
        running.restart(first_number=then)


def test_keys_may_begin_with_any_number_from_now_on(tmp_path: Path) -> None:
    """And a key that waits for its first number goes on with its next message: this is how to mend it."""
    running = Pipeline(tmp_path, sequence="n", on_gap="hold")
    running.run(Sent(0, 0, "k", {"n": 7}))
    running.restart(first_number=None)
    running.run(Sent(0, 1, "k", {"n": 8}))
    assert running.outputs("k") == [7, 8]


def test_without_numbers_the_first_one_means_nothing(tmp_path: Path) -> None:
    running = Pipeline(tmp_path, first_number=1)
    running.restart(first_number=5)


def test_a_checkpoint_that_did_not_note_its_numbers_notes_them_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text(json.dumps({"shards": "queue"}))
    Pipeline(tmp_path, sequence="n")
    with pytest.raises(InvalidOption, match="sequence is none"):
        Pipeline(tmp_path)
