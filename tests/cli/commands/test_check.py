"""`lanemq check` and `lanemq history`: the verdict is the same for JSONL, Parquet and Spark."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.checker.conftest import parse
from tests.checker.test_random_histories import World
from tests.pipelines.audit.histories import write_history

from lanemq.cli.main import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_history(tmp_path / "bad", parse("a turn 1 k\na end 1 k ok\na turn 0 k"))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_history(tmp_path / "good", World(2).run())


def test_converted_history_gets_the_same_answer(bad: Path, tmp_path: Path) -> None:
    into = tmp_path / "columns"
    result = run("history", "convert", bad, "--into", into)
    assert result.exit_code == 0
    assert result.output == f"{into / 'a.parquet'}: 4 events\n"
    assert run("check", into).output == run("check", bad).output
    assert run("check", into).exit_code == 1


def test_conversion_reports_what_it_could_not_read(bad: Path, tmp_path: Path) -> None:
    with (bad / "a.jsonl").open("a") as file:
        file.write("nonsense\n")
    result = run("history", "convert", bad, "--into", tmp_path / "columns", "--json")
    assert json.loads(result.stdout)["problems"] == 1
    assert "cannot read the line after n=3" in result.stderr


def test_a_folder_without_histories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("history", "convert", tmp_path / "empty", "--into", tmp_path / "columns")
    assert result.exit_code == 2
    assert "no *.jsonl files in" in result.output


def test_converting_into_the_same_folder_is_refused(bad: Path) -> None:
    result = run("history", "convert", bad, "--into", bad)
    assert result.exit_code == 2
    assert "choose another folder" in result.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_gives_the_same_output_and_exit_code(spark: Any, bad: Path, good: Path) -> None:
    for history, code in ((bad, 1), (good, 0)):
        plain, by_spark = run("check", history), run("check", "--spark", history)
        assert by_spark.exit_code == plain.exit_code == code
        assert by_spark.output == plain.output
    assert run("check", "--spark", "--require", "faults=3", "--json", good).exit_code == 2
    assert spark.range(3).count() == 3, "a session that was there before is left running"


def test_without_pyspark_a_sentence_says_what_to_install(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("lanemq.pipelines.audit", "lanemq.cli.spark"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    result = run("check", "--spark", bad)
    assert result.exit_code == 2
    assert "pip install '.[spark]'" in result.output


def test_plain_check_loads_no_spark(bad: Path) -> None:
    """A check without --spark must not need Java."""
    import subprocess

    code = (
        "import sys\nfrom lanemq.cli.main import main\n"
        f"try: main(['check', {str(bad)!r}])\nexcept SystemExit: pass\n"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules), 'loaded'\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
