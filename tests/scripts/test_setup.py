"""`make setup` reports each stage as it begins, because minutes of silence look like a hang."""

import os
import re
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
case "$*" in
    -V) echo "Python 3.11.9" ;;
    *"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; printf '#!/bin/sh\\necho lanemq 1.0' > "$3/bin/lanemq"
        chmod +x "$3/bin/lanemq" ;;
    *"pip install"*) echo "$*" > asked.txt; cat pip.txt; exit "$(cat code.txt)" ;;
esac
"""
PIP = """Obtaining file:///somewhere
Collecting click>=8
  Downloading click-8.2.1-py3-none-any.whl (102 kB)
Collecting pyspark
  Downloading https://index.example/packages/pyspark-4.3.0.tar.gz (455.3 MB)
  Using cached pyarrow-26-cp311.whl (47.8 MB)
Building wheels for collected packages: lanemq
  Building editable for lanemq (pyproject.toml): started
  lanemq: compiling producer (3 of 12)
Installing collected packages: click, pyspark
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a fake Python that prints what pip would print."""
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "pip.txt").write_text(PIP)
    return tmp_path


def setup(place: Path, code: int) -> subprocess.CompletedProcess[str]:
    (place / "code.txt").write_text(str(code))
    words = ["bash", str(ROOT / "scripts" / "setup.sh"), str(place / "python"), ".venv", "main"]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, check=False, env=dict(os.environ))


def test_every_stage_and_every_large_download_is_printed(place: Path) -> None:
    said = [line.strip() for line in setup(place, 0).stdout.splitlines()]
    assert [line[:12] for line in said if line.startswith("setup")] == ["setup 1 of 3", "setup 2 of 3", "setup 3 of 3"]
    assert "pyspark-4.3.0.tar.gz (455.3 MB)" in said
    assert "pyarrow-26-cp311.whl (47.8 MB)" in said
    assert "compiling producer (3 of 12)" in said
    assert "click" not in "".join(said), "small downloads are not printed"
    assert (place / "var" / "setup.log").read_text() == PIP
    assert said[-1].endswith("lanemq 1.0")


def test_the_main_job_needs_no_tool_of_development(place: Path) -> None:
    setup(place, 0)
    asked = (place / "asked.txt").read_text()
    assert "--editable .[fast,spark,console] pytest" in asked
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.findall(r"^(\w[\w-]*):.*\bsetup\b", makefile, re.MULTILINE) == ["run"]


def installed_bytes(*names: str) -> tuple[int, int]:
    """Number of packages, and bytes of all their files with byte code, of these requirements and what they need."""
    waiting, seen, total = [Requirement(name) for name in names], set[tuple[str, str]](), 0
    packages = set[str]()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in wanted.extras or {""}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            waiting += [
                each
                for each in map(Requirement, distribution(name).requires or [])
                if each.marker is None or any(each.marker.evaluate({"extra": one}) for one in (extra, ""))
            ]
        packages.add(name)
    for name in packages:
        files = [Path(str(file.locate())) for file in distribution(name).files or []]
        total += sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())
    return len(packages), total


def test_the_sizes_that_documents_and_setup_name_are_those_of_the_packages() -> None:
    packages, size = installed_bytes("lanemq[fast,spark,console]", "pytest")
    readme = (ROOT / "README.md").read_text("utf-8")
    named = re.search(r"(\d+) packages, about (\d\.\d) GB", readme)
    assert named is not None
    assert abs(packages - int(named[1])) <= 5
    for text in (named[0], (ROOT / "scripts" / "setup.sh").read_text("utf-8")):
        said = re.search(r"about (\d\.\d) GB", text)
        assert said is not None
        assert size / 1e9 == pytest.approx(float(said[1]), abs=0.15)


def test_a_failure_shows_the_end_of_the_log(place: Path) -> None:
    (place / "pip.txt").write_text("ERROR: No matching distribution found for pyspark\n")
    failed = setup(place, 1)
    assert failed.returncode == 1
    assert "No matching distribution found for pyspark" in failed.stderr


def test_a_missing_browser_is_said_in_one_sentence_and_ends_nothing(tmp_path: Path) -> None:
    """`make test` continues without Chromium: its tests in a browser are skipped, with the same remedy as reason."""
    bash = shutil.which("bash")
    assert bash is not None
    look = [bash, str(ROOT / "scripts" / "browser.sh"), "--look"]
    done = subprocess.run(look, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "Chromium is not installed, so the console's tests in a browser are skipped: make browser installs it, or says "
        "how.\n"
    )
    (tmp_path / "chromium").touch(0o755)
    done = subprocess.run(look, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout == f"browser: {tmp_path}/chromium\n"
