"""`lanemq check`."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.checker.conftest import parse
from tests.checker.history_files import write_history
from tests.checker.test_random_histories import World

from lanemq.cli.main import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_history(tmp_path / "bad", parse("a turn 1 k\na end 1 k ok\na turn 0 k"))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_history(tmp_path / "good", World(2).run())


def test_the_exit_code_is_the_verdict(bad: Path, good: Path) -> None:
    assert (run("check", bad).exit_code, run("check", good).exit_code) == (1, 0)
    assert run("check", "--require", "faults=3", "--json", good).exit_code == 2


def test_check_loads_no_spark(bad: Path) -> None:
    """It must not need Java."""
    import subprocess

    code = (
        "import sys\nfrom lanemq.cli.main import main\n"
        f"try: main(['check', {str(bad)!r}])\nexcept SystemExit: pass\n"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules), 'loaded'\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
