"""`make bench-check` fails if a path costs too much, and only then."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks import check
from benchmarks.check import Cost, Measured

BASELINE = {"send, client": 2.0, "send, broker": 4.0}


def test_ratios_within_the_allowance_pass() -> None:
    assert check.too_slow(BASELINE, {"send, client": 2.29, "send, broker": 1.0}) == {}


def test_a_ratio_beyond_the_allowance_is_named_with_its_figures() -> None:
    wrong = check.too_slow(BASELINE, {"send, client": 2.0, "send, broker": 4.8})
    assert wrong == {"send, broker": "send, broker costs 4.8 references, 20% more than the baseline 4.0"}


def test_a_row_that_only_one_of_the_two_has_is_named() -> None:
    assert check.too_slow(BASELINE, {"send, client": 2.0, "new, client": 1.0}).keys() == {"send, broker", "new, client"}


def test_a_figure_is_the_least_repetition_over_the_least_reference() -> None:
    costs, references = iter([Cost(9.0, 3.0), Cost(6.0, 8.0)]), iter([2.0, 4.0])
    some = {"send": Measured(lambda: next(costs), lambda: next(references))}
    assert check.Least().repeat(some, 2).ratios() == {"send, client": 3.0, "send, broker": 1.5}


def test_each_path_is_compared_with_its_own_reference() -> None:
    some = {
        "bulk": Measured(lambda: Cost(4.0, 4.0), lambda: 1.0),
        "single": Measured(lambda: Cost(4.0, 4.0), lambda: 2.0),
    }
    found = check.Least().repeat(some, 1).ratios()
    assert (found["bulk, client"], found["single, client"]) == (4.0, 2.0)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One repetition a look, a time-out of almost nothing, and a baseline of its own."""
    monkeypatch.setattr(check, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(check, "ROUNDS", 1)
    monkeypatch.setattr(check, "ROUNDS_AGAIN", 1)
    check.BASELINE.write_text(json.dumps({**BASELINE, "other, client": 1.0, "other, broker": 1.0}))
    return monkeypatch


def test_a_path_that_seems_too_expensive_is_measured_again_and_the_others_are_not(quick: pytest.MonkeyPatch) -> None:
    costs, others = iter([9.0, 9.0, 2.0]), iter([1.0])
    repeats = {"send": lambda: Cost(next(costs), 4.0), "other": lambda: Cost(next(others), 1.0)}
    quick.setattr(check, "paths", given(repeats))
    check.check()
    assert next(costs, None) is None


def test_a_path_that_stays_too_expensive_fails_the_check_when_the_time_is_over(quick: pytest.MonkeyPatch) -> None:
    quick.setattr(check, "SECONDS", 0.01)
    quick.setattr(check, "paths", given({"send": lambda: Cost(9.0, 4.0), "other": lambda: Cost(1.0, 1.0)}))
    with pytest.raises(SystemExit, match="send, client costs 9"):
        check.check()


def given(
    repeats: dict[str, Callable[[], Cost]],
) -> Callable[[], contextlib.AbstractContextManager[dict[str, Measured]]]:
    @contextlib.contextmanager
    def paths() -> Iterator[dict[str, Measured]]:
        yield {path: Measured(repeat, lambda: 1.0) for path, repeat in repeats.items()}

    return paths


def test_the_committed_baseline_guards_both_sides_of_bulk_async_single_and_large_paths() -> None:
    rows = json.loads(check.BASELINE.read_text()).keys()
    for path in ("consume, 100 keys", "consume, 100 keys, 1 KB", "submit, 1 KB", "send_many", "async submit", "send"):
        assert {f"{path}, client", f"{path}, broker"} <= rows
