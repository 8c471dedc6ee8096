"""A seed always gives the same trace; otherwise a failing seed could not be replayed."""

import os
import subprocess
import sys

import pytest

from lanemq.testing.sim.run import run_seed

PROGRAM = "import sys; from lanemq.testing.sim.run import run_seed; print(run_seed(int(sys.argv[1])).digest)"


def digest_elsewhere(seed: int, hash_seed: str) -> str:
    """The digest from a new process, in which sets of strings have another order."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, str(seed)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [6, 7, 16, 102])
def test_a_seed_gives_the_same_trace_again(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert (first.digest, first.seen, first.seconds) == (second.digest, second.seen, second.seconds)


@pytest.mark.slow
def test_two_seeds_give_two_traces() -> None:
    assert run_seed(1).digest != run_seed(2).digest


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 102])
def test_a_seed_gives_the_same_trace_in_every_process(seed: int) -> None:
    assert digest_elsewhere(seed, "1") == digest_elsewhere(seed, "77") == run_seed(seed).digest


@pytest.mark.slow
def test_listening_to_the_trace_changes_nothing() -> None:
    lines: list[str] = []
    listened = run_seed(3, lines.append)
    assert listened.digest == run_seed(3).digest
    assert lines[-len(listened.last_lines) :] == listened.last_lines
