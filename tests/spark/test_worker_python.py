"""Spark's Python processes import the installed PySpark, which is compiled, instead of its copy in a zip."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from lanemq.spark.session import python_mismatch, recommended
from lanemq.spark.worker_python import LAUNCHER, PYTHON, SPARK_HOME, interpreter_of, worker_environment

HOME = Path(pyspark.__file__).parent
ZIPS = [str(path) for path in (HOME / "python" / "lib").glob("*.zip")]
FIND = "import importlib.util as u, sys; print(u.find_spec('pyspark').origin, sys.argv[1:])"


def plain(**more: str) -> dict[str, str]:
    """The environment of a user, without what the tests set for Spark."""
    theirs = ("PYSPARK_PYTHON", "SPARK_HOME", PYTHON, SPARK_HOME)
    return {name: value for name, value in os.environ.items() if name not in theirs} | more


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before the first session of a program."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)


def start(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LAUNCHER, *words], env=env, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("no_jvm")
def test_the_launcher_finds_the_installed_pyspark_although_spark_puts_its_zip_first() -> None:
    mine = os.environ.get("PYTHONPATH", "")
    env = plain(PYTHONPATH=os.pathsep.join([*ZIPS, "a folder", mine]))
    direct = subprocess.run([sys.executable, "-c", FIND], env=env, capture_output=True, text=True, check=True)
    assert "pyspark.zip" in direct.stdout
    found = start(env | worker_environment(plain(), local=True), "-c", FIND, "one word", "*")
    assert (found.stdout.strip(), found.stderr) == (f"{HOME / '__init__.py'} ['one word', '*']", "")
    path = start(env | worker_environment(plain(), local=True), "-c", "import os; print(os.environ['PYTHONPATH'])")
    assert path.stdout.strip() == os.pathsep.join(["a folder", *mine.split(os.pathsep)]).rstrip(os.pathsep)


def test_the_launcher_says_what_to_do_if_it_does_not_know_the_interpreter() -> None:
    run = start(plain(), "-c", "pass")
    assert run.returncode != 0
    assert "set PYSPARK_PYTHON to a Python" in run.stderr


@pytest.mark.usefixtures("no_jvm")
def test_the_launcher_is_used_only_where_it_finds_the_same_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_environment(plain(), local=True) == {
        "PYSPARK_PYTHON": str(LAUNCHER), PYTHON: sys.executable, SPARK_HOME: str(HOME),
    }  # fmt: skip
    assert worker_environment(plain(PYSPARK_PYTHON="/other/python"), local=True) == {}
    assert worker_environment(plain(), local=False) == {"PYSPARK_PYTHON": sys.executable}
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_environment(plain(), local=True) == {"PYSPARK_PYTHON": sys.executable}


@pytest.mark.usefixtures("no_jvm")
def test_a_jvm_that_runs_without_the_launchers_variables_starts_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", object())
    assert worker_environment(plain(), local=True) == {"PYSPARK_PYTHON": sys.executable}
    again = plain(PYSPARK_PYTHON=str(LAUNCHER)) | {PYTHON: sys.executable}
    assert worker_environment(again, local=True)["PYSPARK_PYTHON"] == str(LAUNCHER)


@pytest.mark.usefixtures("no_jvm")
@pytest.mark.parametrize(
    ("master", "launched"),
    [("local[2]", True), ("local", True), ("spark://a:7077", False), ("local-cluster[2,1,1024]", False), (None, False)],
)
def test_only_a_local_master_uses_the_launcher_which_other_machines_need_not_have(
    master: str | None, launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", plain())
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: None)
    builder = recommended() if master is None else recommended().master(master)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    builder.getOrCreate()
    assert os.environ["PYSPARK_PYTHON"] == (str(LAUNCHER) if launched else sys.executable)


def test_the_launcher_is_no_other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter_of(str(LAUNCHER), {PYTHON: "/a/python"}) == "/a/python"
    assert interpreter_of("/b/python", {PYTHON: "/a/python"}) == "/b/python"
    monkeypatch.setenv(PYTHON, sys.executable)
    assert python_mismatch(str(LAUNCHER), sys.executable) is None
