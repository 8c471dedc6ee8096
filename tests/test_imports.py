"""What each entry point loads, and how much CPU time that takes. Start-up time is a promise of ours.

Measured with compiled byte code: `import lanemq` 12 ms, `App` about 130 ms, `lanemq --help` about 90 ms of CPU.
"""

import os
import subprocess
import sys
from functools import partial

import pytest

HEAVY = {
    "click", "difflib", "fastapi", "lz4", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "pytest", "rich",
    "secrets", "sqlalchemy", "sqlite3", "starlette", "tempfile", "uvloop", "zstandard",
    "lanemq.broker", "lanemq.checker", "lanemq.cli", "lanemq.effects", "lanemq.log", "lanemq.mirror",
    "lanemq.pipelines", "lanemq.spark", "lanemq.testing",
}  # fmt: skip
"""What no client needs to start."""

CASES = [
    ("import lanemq", HEAVY | {"asyncio", "msgspec", "lanemq.client", "lanemq.core", "lanemq.net", "lanemq.wire"}),
    ("from lanemq import Producer", HEAVY | {"lanemq.client.consumer", "lanemq.client.admin"}),
    ("from lanemq import App", HEAVY | {"lanemq.client.producer", "lanemq.client.admin"}),
    ("from lanemq import Admin", HEAVY | {"lanemq.client.producer"}),
    (
        "import lanemq.spark.source, lanemq.spark.read.batch_reader, lanemq.spark.read.stream_reader",
        {"asyncio", "lanemq.client.admin", "lanemq.client.routing", "lanemq.spark.lag"}
        | {"lanemq.spark.read.brokers", "lanemq.spark.read.stream_driver", "lanemq.spark.write"},
    ),
    ("import lanemq.cli.main", (HEAVY - {"click", "lanemq.cli"}) | {"asyncio", "ssl", "lanemq.client", "lanemq.net"}),
]


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {*done.stdout.split()}


@pytest.mark.parametrize(("code", "unwanted"), CASES, ids=[code for code, _ in CASES])
def test_nothing_is_loaded_that_is_not_needed(code: str, unwanted: set[str]) -> None:
    assert loaded(code) & unwanted == set()


def test_the_help_loads_no_command() -> None:
    code = "import lanemq.cli.main as cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert {name for name in loaded(code) if name.startswith("lanemq.cli.")} <= {
        "lanemq.cli.errors",
        "lanemq.cli.main",
        "lanemq.cli.options",
        "lanemq.cli.output",
        "lanemq.cli.security",
    }


# CPU time

SECONDS = {
    "import lanemq": 0.100,
    "from lanemq import App": 0.150,
    "import lanemq.cli.main as cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass": 0.250,
}
"""CPU seconds that each may take, on a machine that needs `REFERENCE_SECONDS` for `REFERENCE`."""
REFERENCE = "import asyncio, ssl, logging, inspect, ipaddress, typing, concurrent.futures.thread"
REFERENCE_SECONDS = 0.045
ROUNDS = 20
COMPILING = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The first run leaves byte code for the others, also if the environment of the tests forbids it."""


def cpu_seconds(code: str) -> float:
    """CPU time of the code itself, without that of Python's start."""
    timed = f"import time\nbegin = time.process_time()\n{code}\nprint('took', time.process_time() - begin)"
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True, env=COMPILING)
    return float(done.stdout.rpartition("took")[2])


@pytest.mark.parametrize("code", SECONDS, ids=["lanemq", "App", "help"])
def test_an_entry_point_starts_within_its_cpu_time(code: str) -> None:
    """The least of several runs counts, because a busy machine adds CPU time and never takes any away.

    A slow machine may take longer, by as much as it does for modules of the standard library.
    """
    took, reference = partial(cpu_seconds, code), partial(cpu_seconds, REFERENCE)
    runs, references = [took()], list[float]()
    while min(runs) >= SECONDS[code] * max(1.0, min(references, default=0.0) / REFERENCE_SECONDS):
        assert len(runs) < ROUNDS, f"{min(runs):.3f} s of CPU, and {min(references):.3f} s for the reference"
        references.append(reference())
        runs.append(took())
