"""A fixed share of seeds with every run of the tests; `make sim SEEDS=20000` runs as many as wanted."""

from collections import Counter

import pytest

from lanemq.testing.sim.plan import KINDS, ORDERS_OF_PEOPLE
from lanemq.testing.sim.run import run_seed

SEEDS = 90

SEEN_OFTEN = (
    "rebalance", "redelivery", "send_unknown", "repeat dropped by its stamp", "power cut that lost unsynced bytes",
    "power cut that lost commits", "half-open connection", "commit_refused", "broker read-only", "dead_letter",
    "turn that outlived its lease", "forgotten_commits", "restarts", "parked", "redriven", "skipped", "resets",
    "disk: a bit flipped in a torn write",
)  # fmt: skip


@pytest.mark.timeout(900)
def test_seeds_pass_and_exercise_what_they_are_for() -> None:
    """A run without the events that the guards are for would pass without the guards, too."""
    seeds_with: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = run_seed(seed)
        replay = f"python -m lanemq.testing.sim --seed {seed} --verbose"
        assert result.passed, "\n".join([*result.last_lines[-20:], *result.problems, f"replay it: {replay}"])
        seeds_with.update(what for what, count in result.seen.items() if count)
    assert [what for what in (*KINDS, *ORDERS_OF_PEOPLE, *SEEN_OFTEN) if seeds_with[what] < 2] == []
