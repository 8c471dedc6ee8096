"""The benchmarks of pipelines run with numbers too small to measure anything: `make extended`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("module", "call", "lines"),
    [
        ("spark_transitions", "b.KEYS = (100,); b.main(800, 3, ['ours'])", 1),
        ("spark_cdc", "b.KEYS = (100,); b.main(500, 2)", 2),
        ("spark_memory", "b.main(2_000, 500)", 2),
        ("spark_scale", "b.WARM_UP = 1; b.main(['1000,2000', '2,4', '1'])", 2),
        ("pipeline_sinks", "b.MERGES = ((100, 10),); b.main(['500', 'parquet', 'sqlite'])", 3),
    ],
)
def test_a_benchmark_runs_and_prints_its_figures(module: str, call: str, lines: int) -> None:
    code = f"import benchmarks.{module} as b; {call}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) >= lines, done.stdout
    assert all(line["value"] > 0 for line in found)
