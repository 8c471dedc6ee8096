"""The tests that docs/guides/testing.md shows pass, with the plugin as users load it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.documents import ROOT, snippets


@pytest.mark.slow
def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    shown = [each for each in snippets("python") if each.document == ROOT / "docs" / "guides" / "testing.md"]
    for number, snippet in enumerate(shown):
        named = re.match(r"# (\w+\.py)\n", snippet.code)
        (tmp_path / (named[1] if named else f"test_guide_{number}.py")).write_text(snippet.code, "utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "lanemq.testing.plugin"]
    done = subprocess.run(
        [*words, "--strict-markers", "-W", "error", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_pytest_finds_the_plugin_of_an_installed_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"lanemq.testing.plugin": "lanemq.testing.plugin"}
