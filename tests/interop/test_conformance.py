"""The conformance suite of `interop/` between LaneMQ's own client and broker.

`make interop` proves the same cases with Apache's broker and Java clients, which need a JDK and Maven; what holds
there and breaks here would go unnoticed until that suite runs.
"""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FEWEST_CASES = 60
"""A suite that collects next to nothing must not pass."""


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    """How many tests passed, and what was said; fails if one did not."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", f"--junitxml={report}"]
    command += [f"--basetemp={folder / 'run'}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{said}\nlogs of broker and client: {folder / 'run'}"
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    return int(suite.attrib["tests"]) - int(suite.attrib["skipped"]), said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_case_holds_between_our_client_and_our_broker(tmp_path: Path) -> None:
    passed, said = _run(tmp_path, "interop/cases", "--backend", "lane", "--client", "lane")
    assert passed >= FEWEST_CASES, said


@pytest.mark.slow
def test_the_suite_notices_what_it_is_for(tmp_path: Path) -> None:
    """Its judges and its way to talk to client processes, without a broker."""
    passed, said = _run(tmp_path, "interop/selftest")
    assert passed > 0, said
