"""What each entry point loads. Start-up time is a promise of ours; these sets keep it, on any machine.

Measured with compiled byte code: `import lanemq` 12 ms, `App` about 130 ms, `lanemq --help` about 90 ms of CPU.
"""

import subprocess
import sys

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
        {"asyncio", "lanemq.client.admin", "lanemq.client.routing", "lanemq.spark.group", "lanemq.spark.lag"}
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
