"""`python -m lanemq.testing.sim`: output and exit code."""

import pytest
from click.testing import CliRunner

from lanemq.testing.sim import __main__ as runner
from lanemq.testing.sim.judge import Result


def good(seed: int, _: object = None) -> Result:
    return Result(seed, [], "aa", 60.0, {"rebalance": 1, "broker killed": 0})


def second_fails(seed: int, _: object = None) -> Result:
    problems = ["B2 offset 3 ran before offset 2"] if seed == 11 else []
    return Result(seed, problems, "aa", 60.0, {"rebalance": 1}, ["1.0 broker wrote something"])


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(runner.main, [*arguments, "--jobs", "1"])
    return result.exit_code, result.output


@pytest.mark.slow
def test_passing_seeds_end_with_a_list_of_what_they_exercised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_seed", good)
    code, output = run("--seeds", "50")
    assert code == 0
    assert "50 of 50 seeds, 50 virtual minutes, 0 failed" in output
    assert "50  rebalance" in output
    assert "broker killed" not in output


@pytest.mark.slow
def test_a_seed_that_fails_is_explained_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_seed", second_fails)
    code, output = run("--start", "10", "--seeds", "5")
    assert code == 1
    assert "broker wrote something" in output
    assert "B2 offset 3 ran before offset 2" in output
    assert "python -m lanemq.testing.sim --seed 11 --verbose" in output
    assert "2 seeds" in output


@pytest.mark.slow
def test_with_keep_going_it_continues_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_seed", second_fails)
    code, output = run("--start", "10", "--seeds", "5", "--keep-going")
    assert code == 1
    assert "1 of 5 seeds failed: 11" in output


def test_one_seed_shows_its_trace() -> None:
    code, output = run("--seed", "1", "--verbose")
    assert code == 0
    assert "0.000000 broker begin" in output
    assert "seed 1 passed" in output
