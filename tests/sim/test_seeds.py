"""A fixed set of seeds passes; `make sim SEEDS=20000` runs more."""

import multiprocessing
from collections import Counter
from collections.abc import Iterator

import pytest

from lanemq.testing.sim.judge import Result
from lanemq.testing.sim.plan import KINDS, OPERATOR_REQUESTS
from lanemq.testing.sim.run import run_seed

FEW, MANY = 4, 100
JOBS = 2

SEEN_OFTEN = (
    "rebalance", "redelivery", "send_unknown", "repeat dropped by its stamp", "power cut that lost unsynced bytes",
    "power cut that lost commits", "half-open connection", "connection swallowed", "commit_refused",
    "broker read-only", "dead_letter",
    "turn that outlived its lease", "forgotten_commits", "restarts", "parked", "redriven", "skipped", "resets",
    "disk: a hole in what was not synced",
)  # fmt: skip
SEEN_ONCE = ("disk: a bit flipped in a torn write",)


def passed(result: Result) -> bool:
    replay = f"python -m lanemq.testing.sim --seed {result.seed} --verbose"
    assert result.passed, "\n".join([*result.last_lines[-20:], *result.problems, f"replay it: {replay}"])
    return True


def in_parallel(seeds: range) -> Iterator[Result]:
    """Runs seeds in new processes: a fork would inherit the threads and loops of its parent."""
    with multiprocessing.get_context("spawn").Pool(JOBS) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=4)
        pool.close()
        pool.join()


def test_a_few_seeds_pass() -> None:
    assert all(passed(run_seed(seed)) for seed in range(FEW))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_seeds_pass_and_exercise_what_they_are_for() -> None:
    """Runs without the events that guards are for would pass without the guards."""
    seeds_with: Counter[str] = Counter()
    for result in in_parallel(range(MANY)):
        assert passed(result)
        seeds_with.update(what for what, count in result.seen.items() if count)
    assert [what for what in (*KINDS, *OPERATOR_REQUESTS, *SEEN_OFTEN) if seeds_with[what] < 2] == []
    assert [what for what in SEEN_ONCE if not seeds_with[what]] == []
