"""The way of a message does not grow unnoticed: how many files it passes, and how often a reader must turn back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "follow.py"
CEILINGS = {
    "send": {"client": (21, 70), "broker": (25, 45)},
    "consume": {"client": (31, 135)},
}
"""Files and returns on each side. Threads meet in different orders, so counts vary: the least of some runs counts."""
RUNS = 4


@pytest.mark.slow
@pytest.mark.parametrize("path", CEILINGS)
def test_a_message_passes_no_more_files_than_it_did(path: str) -> None:
    """Who raises a ceiling says in the commit what the reader gets for the further file."""
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, SCRIPT, path, "--json"], capture_output=True, text=True, check=True)
        counts = json.loads(done.stdout.splitlines()[-1])
        if all(
            counts[side]["files"] <= files and counts[side]["returns"] <= returns
            for side, (files, returns) in CEILINGS[path].items()
        ):
            return
    pytest.fail(f"above {CEILINGS[path]} in each of {RUNS} runs, the last one:\n{done.stdout}")
